"""Add, change and remove agents."""

from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec import UNSET

from gatepost.upstreams.administration import Conflict, NotRegistered
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.fields import InvalidField
from gatepost.upstreams.management_audit import ManagementActor, ManagementAudit
from gatepost.upstreams.registration_changes import AgentChanges
from gatepost.upstreams.store import (
    NameTaken,
    RegistrationChanged,
    TooManyRegistrations,
    UpstreamStore,
)
from gatepost.upstreams.upstream_server import capability


class AgentAdministration:
    """The agents of all tenants; *packs* returns the names of the enabled packs."""

    def __init__(
        self,
        store: UpstreamStore,
        *,
        packs: Callable[[], Collection[str]],
        audit: ManagementAudit,
    ) -> None:
        self._store, self._packs, self._audit = store, packs, audit

    async def agents(self, tenant: str) -> Sequence[AgentRegistration]:
        """Return the agents of a tenant."""
        return await self._store.agents(tenant)

    async def agent(self, tenant: str, agent_id: str) -> AgentRegistration:
        """Return an agent of the tenant by its id; raises NotRegistered."""
        agent = await self._store.agent(tenant, agent_id)
        if agent is None:
            raise NotRegistered("There is no such agent.")
        return agent

    async def add(
        self, tenant: str, changes: AgentChanges, actor: ManagementActor
    ) -> AgentRegistration:
        """Register an agent; raises InvalidField and Conflict."""
        changes = changes.checked()
        if changes.name is UNSET:
            raise InvalidField("name", "The field name is missing.")
        fresh = AgentRegistration(id="", tenant=tenant, name=changes.name)
        changed = await self._changed(fresh, changes)
        try:
            agent = await self._store.create_agent(changed)
        except NameTaken:
            raise agent_conflict(changed) from None
        except TooManyRegistrations as too_many:
            raise Conflict(f"The agent is not added: {too_many}.") from None
        await self._note("added", agent, actor)
        return agent

    async def change(
        self, agent: AgentRegistration, changes: AgentChanges, actor: ManagementActor
    ) -> AgentRegistration:
        """Change an agent; raises InvalidField and Conflict."""
        _check_source(agent)
        changed = await self._changed(agent, changes.checked())
        try:
            changed = await self._store.replace_agent(changed)
        except NameTaken:
            raise agent_conflict(changed) from None
        except RegistrationChanged:
            raise Conflict(
                "The agent was changed at the same time. Read it and try again."
            ) from None
        await self._note("changed", changed, actor)
        return changed

    async def remove(self, agent: AgentRegistration, actor: ManagementActor) -> None:
        """Remove an agent: its client then sees everything that its scopes reach."""
        _check_source(agent)
        if not await self._store.delete_agent(agent.tenant, agent.id):
            raise NotRegistered("There is no such agent.")
        await self._note("removed", agent, actor)

    async def _changed(self, agent: AgentRegistration, changes: AgentChanges) -> AgentRegistration:
        values: dict[str, object] = {}
        for name in ("name", "description", "icon", "category", "mode"):
            value = getattr(changes, name)
            if value is not UNSET:
                values[name] = value or ""
        if changes.capabilities is not UNSET:
            values["capabilities"] = await self._capabilities(agent, changes)
        if changes.client_id is not UNSET:
            values["client_ids"] = (changes.client_id,) if changes.client_id else ()
        changed: AgentRegistration = msgspec.structs.replace(agent, **values)
        if changed.name != agent.name or not agent.id:
            agents = await self._store.agents(agent.tenant)
            if any(registered.name == changed.name for registered in agents):
                raise agent_conflict(changed)
        return changed

    async def _capabilities(
        self, agent: AgentRegistration, changes: AgentChanges
    ) -> tuple[str, ...]:
        references = changes.references()
        capabilities = {f"pack:{name}" for name in self._packs()}
        capabilities |= {
            capability(server.id) for server in await self._store.servers(agent.tenant)
        }
        # The agent may have a capability of a server that no longer exists.
        for reference in references:
            if reference not in capabilities and reference not in agent.capabilities:
                raise InvalidField(
                    "capabilities",
                    f"There is no capability {reference[:80]}. GET /v1/capabilities lists them.",
                )
        return references

    async def _note(self, outcome: str, agent: AgentRegistration, actor: ManagementActor) -> None:
        recorded = {"agent": agent.name, "id": agent.id, "client": " ".join(agent.client_ids)}
        await self._audit.note(agent.tenant, "agent", outcome, actor, recorded)


def agent_conflict(agent: AgentRegistration) -> Conflict:
    """Return the error for a name or client id that another agent of the tenant has."""
    client = f", or one for the client {agent.client_ids[0]!r}" if agent.client_ids else ""
    return Conflict(f"There is an agent {agent.name!r} already{client}.")


def _check_source(agent: AgentRegistration) -> None:
    if agent.source == "configuration":
        raise Conflict(
            f"The agent {agent.name!r} comes from the configuration of the server. Only its "
            "operator can change it there."
        )
