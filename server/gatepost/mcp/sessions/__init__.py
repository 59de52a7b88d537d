"""Older MCP revisions: the handshake, signed sessions, and streams that can be resumed."""
