"""The pack `gitlab`: its tools, and its description of the API."""
