"""The HTTP client of tools."""
