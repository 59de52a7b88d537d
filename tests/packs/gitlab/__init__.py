"""The pack `gitlab`: its description of the API."""
