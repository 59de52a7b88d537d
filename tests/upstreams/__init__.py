"""MCP servers behind this gate."""
