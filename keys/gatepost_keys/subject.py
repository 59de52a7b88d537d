"""The subject of a token."""

import msgspec


class TokenSubject(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a token: a development user, or a machine client."""

    username: str
    """Becomes `sub`; unique at this issuer."""
    tenant: str
    """Becomes `org_id`."""
    name: str = ""
    email: str = ""
    roles: tuple[str, ...] = ()
    machine: bool = False
    """Whether this is a client that speaks for itself."""
