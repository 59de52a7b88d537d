"""Add, change and remove upstreams, for the API, the dashboard and the command line alike."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET

from gatepost.upstreams.catalogue import Catalogue, CatalogueSummary
from gatepost.upstreams.fields import InvalidField
from gatepost.upstreams.management_audit import ManagementActor, ManagementAudit
from gatepost.upstreams.registration_changes import ServerChanges
from gatepost.upstreams.sealed_headers import ServerSecrets
from gatepost.upstreams.store import (
    CredentialsBound,
    NameTaken,
    RegistrationChanged,
    TooManyRegistrations,
    UpstreamStore,
)
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost_authz.address_policy import ToolAddressPolicy


class NotRegistered(Exception):
    """A tenant has no server or agent with this id; the message is a sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Conflict(Exception):
    """A change does not fit what is registered; the message is a sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Catalogues(Protocol):
    """Fetches and reviews catalogues."""

    async def current(self, server: UpstreamServer) -> Catalogue | None:
        """Return the stored catalogue; fetch it in the background if it is missing or stale."""

    async def refresh(self, server: UpstreamServer) -> Catalogue:
        """Fetch the catalogue now; raises ConnectionFailure."""

    async def accept(self, server: UpstreamServer, digests: Sequence[str]) -> Catalogue | None:
        """Accept the changes with these digests and return the catalogue."""


Forget = Callable[[UpstreamServer], Awaitable[None]]
"""Closes all connections to a server, and forgets its health."""


class UpstreamAdministration:
    """
    The servers of all tenants, as administrators manage them.

    Each change is recorded in the tenant's audit log.
    """

    def __init__(  # the composition root hands over each part by name
        self,
        store: UpstreamStore,
        catalogues: Catalogues,
        *,
        address_policy: Callable[[], ToolAddressPolicy],
        forget: Forget,
        audit: ManagementAudit,
    ) -> None:
        self._store, self._catalogues = store, catalogues
        self._address_policy, self._forget, self._audit = address_policy, forget, audit

    async def servers(self, tenant: str) -> Sequence[UpstreamServer]:
        """Return the servers of a tenant."""
        return await self._store.servers(tenant)

    async def server(self, tenant: str, server_id: str) -> UpstreamServer:
        """Return a server of the tenant by its id; raises NotRegistered."""
        server = await self._store.server(tenant, server_id)
        if server is None:
            raise NotRegistered("There is no such MCP server.")
        return server

    async def named(self, tenant: str, name: str) -> UpstreamServer:
        """Return a server of the tenant by its name; raises NotRegistered."""
        for server in await self._store.servers(tenant):
            if server.name == name:
                return server
        raise NotRegistered(f"There is no MCP server {name!r}.")

    async def catalogue(self, server: UpstreamServer) -> Catalogue | None:
        """Return the last catalogue of a server."""
        return await self._store.catalogues.get(server.tenant, server.id)

    async def summary(self, server: UpstreamServer) -> CatalogueSummary | None:
        """Return what a list shows of the last catalogue of a server."""
        return await self._store.catalogues.summary(server.tenant, server.id)

    async def ready_catalogue(self, server: UpstreamServer) -> Catalogue | None:
        """Return the catalogue, which is fetched in the background if it is missing or stale."""
        if server.status == "disabled":
            return await self.catalogue(server)
        return await self._catalogues.current(server)

    async def add(
        self, tenant: str, changes: ServerChanges, actor: ManagementActor
    ) -> UpstreamServer:
        """Register a server; raises InvalidField, Conflict and SecretRefused."""
        changes = changes.checked(self._address_policy())
        if changes.name is UNSET:
            raise InvalidField("name", "The field name is missing.")
        if changes.url is UNSET:
            raise InvalidField("url", "The field url is missing.")
        changed = UpstreamServer(id="", tenant=tenant, name=changes.name)
        try:
            server = await self._store.create(_changed(changed, changes), _secrets(changes))
        except NameTaken:
            raise name_conflict(changes.name) from None
        except TooManyRegistrations as too_many:
            raise Conflict(f"The MCP server is not added: {too_many}.") from None
        await self._note("added", server, actor)
        if server.status == "active":
            # Discovered in the background: the answer does not wait for the upstream.
            await self._catalogues.current(server)
        return server

    async def change(
        self, server: UpstreamServer, changes: ServerChanges, actor: ManagementActor
    ) -> UpstreamServer:
        """Change a registered server; raises InvalidField, Conflict and SecretRefused."""
        self._check_source(server)
        changes = changes.checked(self._address_policy())
        try:
            changed = await self._store.replace(_changed(server, changes), _secrets(changes))
        except NameTaken:
            raise name_conflict(str(changes.name)) from None
        except CredentialsBound:
            raise InvalidField(
                "api_key" if server.api_key_set and changes.api_key is UNSET else "headers",
                "With a `url` of another host, set `api_key` and `headers` again, or to null: the "
                "stored ones are for the host before.",
            ) from None
        except RegistrationChanged:
            raise Conflict(
                "The MCP server was changed at the same time. Read it and try again."
            ) from None
        await self._forget(server)
        await self._note(_audit_verb(server, changed), changed, actor)
        return changed

    async def remove(self, server: UpstreamServer, actor: ManagementActor) -> None:
        """Remove a registered server with its secrets; raises Conflict and NotRegistered."""
        self._check_source(server)
        if not await self._store.delete(server.tenant, server.id):
            raise NotRegistered("There is no such MCP server.")
        await self._forget(server)
        await self._note("removed", server, actor)

    async def refresh(self, server: UpstreamServer, actor: ManagementActor) -> Catalogue:
        """Fetch the catalogue of a server now; raises Conflict and ConnectionFailure."""
        if server.status == "disabled":
            raise Conflict("The MCP server is disabled. Enable it first.")
        catalogue = await self._catalogues.refresh(server)
        await self._note("refreshed", server, actor)
        return catalogue

    async def accept(
        self, server: UpstreamServer, digests: Sequence[str] | None, actor: ManagementActor
    ) -> Catalogue | None:
        """Accept the changes with these digests, or all; the digests are put on record."""
        waiting = await self.catalogue(server)
        changes = [
            change
            for change in (() if waiting is None else waiting.changes)
            if digests is None or change.digest in digests
        ]
        if not changes:
            raise Conflict("None of these changes is waiting. Review the changes that wait now.")
        # Not "all": a refresh may bring others meanwhile, which the administrator has not seen.
        digests_to_accept = [change.digest for change in changes]
        catalogue = await self._catalogues.accept(server, digests_to_accept)
        for change in changes:
            await self._note(
                "accepted", server, actor, {"definition": change.key, "digest": change.digest}
            )
        return catalogue

    def _check_source(self, server: UpstreamServer) -> None:
        if server.source == "configuration":
            raise Conflict(
                f"The MCP server {server.name!r} comes from the configuration of the server. Only "
                "its operator can change it there."
            )

    async def _note(
        self,
        outcome: str,
        server: UpstreamServer,
        actor: ManagementActor,
        details: dict[str, str] | None = None,
    ) -> None:
        recorded = {"server": server.name, "id": server.id, **(details or {})}
        await self._audit.note(server.tenant, "upstream", outcome, actor, recorded)


def name_conflict(name: str) -> Conflict:
    """Return the error for a name that another server of the tenant has."""
    return Conflict(f"There is an MCP server {name!r} already.")


def _changed(server: UpstreamServer, changes: ServerChanges) -> UpstreamServer:
    values = {
        name: getattr(changes, name)
        for name in ("name", "url", "status")
        if getattr(changes, name) is not UNSET
    }
    if changes.description is not UNSET:
        values["description"] = changes.description or ""
    return msgspec.structs.replace(server, **values)


def _secrets(changes: ServerChanges) -> ServerSecrets:
    headers = changes.headers
    return ServerSecrets(
        api_key=changes.api_key, headers=UNSET if headers is UNSET else headers or {}
    )


def _audit_verb(before: UpstreamServer, after: UpstreamServer) -> str:
    if before.status == after.status:
        return "changed"
    return "enabled" if after.status == "active" else "disabled"
