"""Upstreams: MCP servers whose tools, resources and prompts stand behind this gate."""
