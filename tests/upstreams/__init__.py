"""MCP servers behind this gate: names, catalogues, pins, and how they are kept fresh."""
