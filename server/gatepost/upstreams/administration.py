"""Add, change and remove upstreams, for the API, the dashboard and the command line alike."""

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET

from gatepost.credentials.stored import ServerSecrets
from gatepost.upstreams.actor import Actor, ManagementAudit
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.changes import ServerChanges
from gatepost.upstreams.fields import InvalidField
from gatepost.upstreams.server import UpstreamServer
from gatepost_authz.address_policy import ToolAddressPolicy

MOST_SERVERS = 200
"""The most servers that one tenant can register."""


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


class RegisteredServers(Protocol):
    """The servers of all tenants and their catalogues; raises StoreUnavailable."""

    async def servers(self, tenant: str) -> Sequence[UpstreamServer]:
        """Return the servers of a tenant, those of the configuration first."""

    async def add_server(self, server: UpstreamServer) -> bool:
        """Store a new server durably; return False if its name is taken."""

    async def change_server(self, server: UpstreamServer, revision: int) -> bool:
        """Replace the server of that revision; return False if it was changed or removed."""

    async def remove_server(self, tenant: str, server_id: str) -> bool:
        """Remove a server with its catalogue and pins; return whether there was one."""

    async def catalogue(self, tenant: str, server_id: str) -> Catalogue | None:
        """Return the last good catalogue, None if there never was one."""


class Catalogues(Protocol):
    """Fetches and reviews catalogues."""

    async def ready(self, server: UpstreamServer) -> Catalogue | None:
        """Return the stored catalogue; fetch it in the background if it is missing or stale."""

    async def refresh(self, server: UpstreamServer) -> Catalogue:
        """Fetch the catalogue now; raises ConnectionFailure."""

    async def accept(self, server: UpstreamServer, digests: Sequence[str] | None) -> Catalogue:
        """Accept the changes with these digests, or all (None), and return the catalogue."""


Forget = Callable[[str], Awaitable[None]]
"""Closes all connections to a server."""


class UpstreamAdministration:
    """
    The servers of all tenants, and what administrators do to them.

    Secrets are stored before the server that names them, and removed after it. Each change is on
    record in the tenant's audit trail.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        store: RegisteredServers,
        catalogues: Catalogues,
        *,
        secrets: ServerSecrets,
        reach: Callable[[], ToolAddressPolicy],
        forget: Forget,
        audit: ManagementAudit,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._catalogues, self._secrets = store, catalogues, secrets
        self._reach, self._forget, self._audit, self._clock = reach, forget, audit, clock

    async def servers(self, tenant: str) -> Sequence[UpstreamServer]:
        """Return the servers of a tenant."""
        return await self._store.servers(tenant)

    async def server(self, tenant: str, server_id: str) -> UpstreamServer:
        """Return a server of the tenant by its id; raises NotRegistered."""
        for one in await self._store.servers(tenant):
            if one.id == server_id:
                return one
        raise NotRegistered("There is no such MCP server.")

    async def named(self, tenant: str, name: str) -> UpstreamServer:
        """Return a server of the tenant by its name; raises NotRegistered."""
        for one in await self._store.servers(tenant):
            if one.name == name:
                return one
        raise NotRegistered(f"There is no MCP server {name!r}.")

    async def catalogue(self, server: UpstreamServer) -> Catalogue | None:
        """Return the last catalogue of a server."""
        return await self._store.catalogue(server.tenant, server.id)

    async def ready_catalogue(self, server: UpstreamServer) -> Catalogue | None:
        """Return the catalogue, which is fetched in the background if it is missing or stale."""
        if server.status == "disabled":
            return await self.catalogue(server)
        return await self._catalogues.ready(server)

    async def add(self, tenant: str, changes: ServerChanges, actor: Actor) -> UpstreamServer:
        """Register a server; raises InvalidField, Conflict and SecretRefused."""
        changes = changes.checked(self._reach())
        if changes.name is UNSET:
            raise InvalidField("name", "The field name is missing.")
        if changes.url is UNSET:
            raise InvalidField("url", "The field url is missing.")
        known = await self._store.servers(tenant)
        if len(known) >= MOST_SERVERS:
            raise Conflict(f"A tenant has at most {MOST_SERVERS} MCP servers.")
        if any(one.name == changes.name for one in known):
            raise taken(changes.name)
        now = self._clock()
        server = _changed(
            UpstreamServer(
                id=str(uuid.uuid4()),
                tenant=tenant,
                name=changes.name,
                created_at=now,
                updated_at=now,
            ),
            changes,
        )
        await self._put_secrets(server, changes)
        if not await self._store.add_server(server):
            await self._drop_secrets(server)
            raise taken(server.name)
        await self._note("added", server, actor)
        if server.status == "active":
            # Discovered in the background: the answer does not wait for the upstream.
            await self._catalogues.ready(server)
        return server

    async def change(
        self, server: UpstreamServer, changes: ServerChanges, actor: Actor
    ) -> UpstreamServer:
        """Change a registered server; raises InvalidField, Conflict and SecretRefused."""
        self._own(server)
        changes = changes.checked(self._reach())
        if changes.url not in (UNSET, server.url):
            self._keeps_no_secret(server, changes)
        if changes.name not in (UNSET, server.name):
            known = await self._store.servers(server.tenant)
            if any(one.name == changes.name for one in known):
                raise taken(str(changes.name))
        changed = msgspec.structs.replace(
            _changed(server, changes), updated_at=self._clock(), revision=server.revision + 1
        )
        await self._put_secrets(changed, changes)
        if not await self._store.change_server(changed, server.revision):
            raise Conflict("The MCP server was changed at the same time. Read it and try again.")
        if server.api_key_set and not changed.api_key_set:
            await self._secrets.delete_key(server.tenant, server.id)
        gone = sorted({*server.header_names} - {*changed.header_names})
        await self._secrets.delete_headers(server.tenant, server.id, gone)
        await self._forget(server.id)
        await self._note(_word(server, changed), changed, actor)
        return changed

    async def remove(self, server: UpstreamServer, actor: Actor) -> None:
        """Remove a registered server with its secrets; raises Conflict and NotRegistered."""
        self._own(server)
        if not await self._store.remove_server(server.tenant, server.id):
            raise NotRegistered("There is no such MCP server.")
        await self._drop_secrets(server)
        await self._forget(server.id)
        await self._note("removed", server, actor)

    async def refresh(self, server: UpstreamServer, actor: Actor) -> Catalogue:
        """Fetch the catalogue of a server now; raises Conflict and ConnectionFailure."""
        if server.status == "disabled":
            raise Conflict("The MCP server is disabled. Enable it first.")
        catalogue = await self._catalogues.refresh(server)
        await self._note("refreshed", server, actor)
        return catalogue

    async def accept(
        self, server: UpstreamServer, digests: Sequence[str] | None, actor: Actor
    ) -> Catalogue:
        """Accept the changes with these digests, or all; the digests are put on record."""
        waiting = await self.catalogue(server)
        changes = [
            one
            for one in (() if waiting is None else waiting.changes)
            if digests is None or one.digest in digests
        ]
        if not changes:
            raise Conflict("None of these changes waits any more. Look at what waits now.")
        catalogue = await self._catalogues.accept(server, digests)
        for one in changes:
            await self._note(
                "accepted", server, actor, {"definition": one.key, "digest": one.digest}
            )
        return catalogue

    def _own(self, server: UpstreamServer) -> None:
        if server.source == "configuration":
            raise Conflict(
                f"The MCP server {server.name!r} comes from the configuration of the server. Only "
                "its operator can change it there."
            )

    def _keeps_no_secret(self, server: UpstreamServer, changes: ServerChanges) -> None:
        """Refuse to send stored secrets to another URL than that for which they were given."""
        if server.api_key_set and changes.api_key is UNSET:
            raise InvalidField("api_key", "With a new `url`, set `api_key` again, or to null.")
        if server.header_names and changes.headers is UNSET:
            raise InvalidField("headers", "With a new `url`, set `headers` again, or to null.")

    async def _put_secrets(self, server: UpstreamServer, changes: ServerChanges) -> None:
        if isinstance(changes.api_key, str):
            await self._secrets.put_key(server.tenant, server.id, changes.api_key)
        if changes.headers is not UNSET and changes.headers:
            await self._secrets.put_headers(server.tenant, server.id, changes.headers)

    async def _drop_secrets(self, server: UpstreamServer) -> None:
        if server.api_key_set:
            await self._secrets.delete_key(server.tenant, server.id)
        await self._secrets.delete_headers(server.tenant, server.id, server.header_names)

    async def _note(
        self,
        outcome: str,
        server: UpstreamServer,
        actor: Actor,
        details: dict[str, str] | None = None,
    ) -> None:
        told = {"server": server.name, "id": server.id, **(details or {})}
        await self._audit.note(server.tenant, "upstream", outcome, actor, told)


def taken(name: str) -> Conflict:
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
    if changes.api_key is not UNSET:
        values["api_key_set"] = changes.api_key is not None
    if changes.headers is not UNSET:
        values["header_names"] = tuple(changes.headers or ())
    return msgspec.structs.replace(server, **values)


def _word(before: UpstreamServer, after: UpstreamServer) -> str:
    if before.status == after.status:
        return "changed"
    return "enabled" if after.status == "active" else "disabled"
