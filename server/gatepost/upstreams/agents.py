"""A registered agent: which capabilities the callers of its client ids have."""

from typing import Literal

import msgspec


class AgentRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """One agent of one tenant, as it is registered."""

    id: str
    """A UUID, also for agents of the configuration."""
    tenant: str
    name: str
    description: str = ""
    icon: str = ""
    category: str = ""
    client_ids: tuple[str, ...] = ()
    """The OAuth client ids whose callers see only what its capabilities name."""
    capabilities: tuple[str, ...] = ()
    """`pack:{name}` for a pack, `mcp:{uuid}` for an upstream."""
    mode: Literal["list", "search"] = "list"
    source: Literal["configuration", "api"] = "api"
    created_at: float = 0.0
    updated_at: float = 0.0
    revision: int = 1
    """Grows with each change."""
