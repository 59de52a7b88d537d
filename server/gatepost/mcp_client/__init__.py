"""A client of any MCP server for the command line: both eras of the protocol, and sign-in."""
