"""Convert servers, agents and capabilities to the API's form, without secrets."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.catalogue import Catalogue, CatalogueSummary
from gatepost.upstreams.upstream_server import UpstreamServer, capability

ICON, CATEGORY = "plug", "MCP Servers"
"""The icon of every upstream, as agent platforms show it."""
PACK_ICON, PACK_CATEGORY = "package", "Built-in"


def server_representation(
    server: UpstreamServer, catalogue: Catalogue | CatalogueSummary | None
) -> dict[str, Any]:
    """Return a server without its tools."""
    return {
        "id": server.id,
        "name": server.name,
        "description": server.description,
        "url": server.url,
        "transport_type": server.transport,
        "status": server.status,
        "api_key_set": server.api_key_set,
        "header_names": list(server.header_names),
        "source": server.source,
        "tools_cached_at": None if catalogue is None else moment(catalogue.fetched_at),
        "failing_since": None if catalogue is None else moment(catalogue.failing_since),
        "failure": None if catalogue is None else catalogue.failure or None,
        "created_at": moment(server.created_at),
        "updated_at": moment(server.updated_at),
    }


def server_with_tools(server: UpstreamServer, catalogue: Catalogue | None) -> dict[str, Any]:
    """Return a server with the tools of its last catalogue."""
    return {
        **server_representation(server, catalogue),
        "cached_tools": [] if catalogue is None else tools_representation(catalogue),
    }


def tools_representation(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Return the tools of a catalogue with the names that the server and callers use."""
    return [
        {
            "name": definition.key,
            "full_name": definition.name,
            "description": definition.value.get("description", ""),
            "input_schema": definition.value.get("inputSchema", {}),
        }
        for definition in catalogue.definitions
        if definition.section == "tools"
    ]


def agent_representation(agent: AgentRegistration) -> dict[str, Any]:
    """Return an agent."""
    return {
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "icon": agent.icon,
        "category": agent.category,
        "client_id": next(iter(agent.client_ids), None),
        "mode": agent.mode,
        "capabilities": [{"ref": capability} for capability in agent.capabilities],
        "source": agent.source,
        "created_at": moment(agent.created_at),
        "updated_at": moment(agent.updated_at),
    }


def server_capability(server: UpstreamServer) -> dict[str, Any]:
    """Return the capability of a server's tools."""
    return {
        "id": capability(server.id),
        "name": server.name,
        "description": server.description,
        "icon": ICON,
        "category": CATEGORY,
    }


def pack_capability(name: str, packs: Mapping[str, str]) -> dict[str, Any]:
    """Return the capability of a pack's tools."""
    return {
        "id": f"pack:{name}",
        "name": name,
        "description": packs[name],
        "icon": PACK_ICON,
        "category": PACK_CATEGORY,
    }


def moment(at: float | None) -> str | None:
    """Return a time as RFC 3339 text in UTC, None for none."""
    if not at:
        return None
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
