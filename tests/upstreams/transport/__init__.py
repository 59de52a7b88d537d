"""Connections to MCP servers, without any imitation of what is between."""
