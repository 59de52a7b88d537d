"""Add, change and remove agents."""

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET

from gatepost.upstreams.actor import Actor, ManagementAudit
from gatepost.upstreams.administration import Conflict, NotRegistered, RegisteredServers
from gatepost.upstreams.agent import AgentRegistration
from gatepost.upstreams.changes import AgentChanges
from gatepost.upstreams.fields import InvalidField
from gatepost.upstreams.server import capability

MOST_AGENTS = 500
"""The most agents that one tenant can register."""


class RegisteredAgents(Protocol):
    """The agents of all tenants; raises StoreUnavailable."""

    async def agents(self, tenant: str) -> Sequence[AgentRegistration]:
        """Return the agents of a tenant, those of the configuration first."""

    async def add_agent(self, agent: AgentRegistration) -> bool:
        """Store a new agent durably; return False if its name or client id is taken."""

    async def change_agent(self, agent: AgentRegistration, revision: int) -> bool:
        """Replace the agent of that revision; return False if it was changed or removed."""

    async def remove_agent(self, tenant: str, agent_id: str) -> bool:
        """Remove an agent; return whether there was one."""


class AgentAdministration:
    """The agents of all tenants; *packs* returns the names of the enabled packs."""

    def __init__(
        self,
        store: RegisteredAgents,
        servers: RegisteredServers,
        *,
        packs: Callable[[], Collection[str]],
        audit: ManagementAudit,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._servers, self._packs = store, servers, packs
        self._audit, self._clock = audit, clock

    async def agents(self, tenant: str) -> Sequence[AgentRegistration]:
        """Return the agents of a tenant."""
        return await self._store.agents(tenant)

    async def agent(self, tenant: str, agent_id: str) -> AgentRegistration:
        """Return an agent of the tenant by its id; raises NotRegistered."""
        for one in await self._store.agents(tenant):
            if one.id == agent_id:
                return one
        raise NotRegistered("There is no such agent.")

    async def add(self, tenant: str, changes: AgentChanges, actor: Actor) -> AgentRegistration:
        """Register an agent; raises InvalidField and Conflict."""
        changes = changes.checked()
        if changes.name is UNSET:
            raise InvalidField("name", "The field name is missing.")
        known = await self._store.agents(tenant)
        if len(known) >= MOST_AGENTS:
            raise Conflict(f"A tenant has at most {MOST_AGENTS} agents.")
        now = self._clock()
        fresh = AgentRegistration(
            id=str(uuid.uuid4()),
            tenant=tenant,
            name=changes.name,
            created_at=now,
            updated_at=now,
        )
        agent = await self._changed(fresh, changes, known)
        if not await self._store.add_agent(agent):
            raise taken(agent)
        await self._note("added", agent, actor)
        return agent

    async def change(
        self, agent: AgentRegistration, changes: AgentChanges, actor: Actor
    ) -> AgentRegistration:
        """Change an agent; raises InvalidField and Conflict."""
        _own(agent)
        known = await self._store.agents(agent.tenant)
        changed = msgspec.structs.replace(
            await self._changed(agent, changes.checked(), known),
            updated_at=self._clock(),
            revision=agent.revision + 1,
        )
        if not await self._store.change_agent(changed, agent.revision):
            raise Conflict("The agent was changed at the same time. Read it and try again.")
        await self._note("changed", changed, actor)
        return changed

    async def remove(self, agent: AgentRegistration, actor: Actor) -> None:
        """Remove an agent: its client then sees everything that its scopes reach."""
        _own(agent)
        if not await self._store.remove_agent(agent.tenant, agent.id):
            raise NotRegistered("There is no such agent.")
        await self._note("removed", agent, actor)

    async def _changed(
        self, agent: AgentRegistration, changes: AgentChanges, known: Sequence[AgentRegistration]
    ) -> AgentRegistration:
        values: dict[str, object] = {}
        for name in ("name", "description", "icon", "category", "client_id", "mode"):
            value = getattr(changes, name)
            if value is not UNSET:
                values[name] = value or ""
        if changes.capabilities is not UNSET:
            values["capabilities"] = await self._capabilities(agent, changes)
        changed = msgspec.structs.replace(agent, **values)
        for other in known:
            same_client = changed.client_id and other.client_id == changed.client_id
            if other.id != agent.id and (other.name == changed.name or same_client):
                raise taken(changed)
        return changed

    async def _capabilities(
        self, agent: AgentRegistration, changes: AgentChanges
    ) -> tuple[str, ...]:
        references = changes.references()
        known = {f"pack:{name}" for name in self._packs()}
        known |= {capability(one.id) for one in await self._servers.servers(agent.tenant)}
        # A capability that the agent has may name a server that is gone by now.
        for one in references:
            if one not in known and one not in agent.capabilities:
                raise InvalidField(
                    "capabilities",
                    f"There is no capability {one[:80]}. GET /v1/capabilities lists them.",
                )
        return references

    async def _note(self, outcome: str, agent: AgentRegistration, actor: Actor) -> None:
        told = {"agent": agent.name, "id": agent.id, "client": agent.client_id}
        await self._audit.note(agent.tenant, "agent", outcome, actor, told)


def taken(agent: AgentRegistration) -> Conflict:
    """Return the error for a name or client id that another agent of the tenant has."""
    client = f", or one for the client {agent.client_id!r}" if agent.client_id else ""
    return Conflict(f"There is an agent {agent.name!r} already{client}.")


def _own(agent: AgentRegistration) -> None:
    if agent.source == "configuration":
        raise Conflict(
            f"The agent {agent.name!r} comes from the configuration of the server. Only its "
            "operator can change it there."
        )
