"""Send the HTTP requests of tools."""
