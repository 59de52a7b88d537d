"""Serve upstreams: MCP servers whose tools, resources and prompts are offered behind this gate."""
