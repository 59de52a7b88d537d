"""The pack `openapi` against a petstore that really runs."""
