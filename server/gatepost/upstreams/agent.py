"""An agent: which tools the clients with one client id see."""

from typing import Literal

import msgspec


class AgentRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """One agent of one tenant, as it is registered."""

    id: str
    """A UUID, also for agents of the configuration (then made from tenant and name)."""
    tenant: str
    name: str
    description: str = ""
    icon: str = ""
    category: str = ""
    client_id: str = ""
    """The OAuth client id of the agent; empty: it limits no client."""
    mode: Literal["list", "search"] = "list"
    capabilities: tuple[str, ...] = ()
    """`mcp:{uuid}` for an upstream, `pack:{name}` for a pack."""
    source: Literal["configuration", "api"] = "api"
    created_at: float = 0.0
    updated_at: float = 0.0
    revision: int = 1
    """Grows with each change."""
