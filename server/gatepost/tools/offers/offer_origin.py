"""Describe the origin of an offer that another MCP server defines."""

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """The MCP server behind an offer, and the name that it uses for the offer."""

    server_id: str
    server: str
    """The server's name."""
    key: str
    """The offer's own name or URI there."""
    digest: str
    """The digest of its definition; approvals and records name it."""
    location: str = ""
    """A digest of the registration and of where its server is; approvals are for no other one."""
