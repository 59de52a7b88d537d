"""Open the registry of upstreams for a command."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import click

from gatepost.audit.writer import AuditWriter
from gatepost.cli.configuration import administrator, check_tenant
from gatepost.cli.stores import OpenStores, configured, run_with_stores
from gatepost.config.settings import Config
from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.upstreams import UpstreamServices
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.names import SecretRefused
from gatepost.secrets.store import SecretStore
from gatepost.storage.change_poller import ChangePoller
from gatepost.tools.calls.registry import Registry
from gatepost.upstreams.administration import Conflict, NotRegistered
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.fields import InvalidField
from gatepost.upstreams.management_audit import ManagementActor
from gatepost_authz.fetch import Fetcher

T = TypeVar("T")
NEEDS = ("storage.database", "storage.shared", "keys.ring")
"""The settings that these commands need; problems of other settings are ignored."""


class CommandParts:
    """The services that the management of upstreams uses, opened for one command."""

    def __init__(self, config: Config, stores: OpenStores, audit_writer: AuditWriter) -> None:
        if stores.keyring is None:
            raise click.ClickException(
                "There is no key ring to encrypt secrets with. Run `gatepost keyring new` and set "
                '[keys] ring = "file:keyring.json".'
            )
        self.records, self.shared_store = stores.records, stores.shared_store
        self.changes = ChangePoller(stores.records, stores.shared_store)
        self.keyring: KeyRing = stores.keyring
        self.secrets = SecretCache(SecretStore(stores.records, stores.keyring))
        self.fetcher = Fetcher(development=config.development, network=config.network)
        self.outbound = OutboundClient(config.network, tls=self.fetcher.tls)
        self.audit_writer = audit_writer
        self.registry = Registry(())


def with_upstreams(
    path: Path, tenant: str | None, do: Callable[[UpstreamServices], Awaitable[T]]
) -> T:
    """Run *do* with the registry of a configuration; its errors end the command."""
    config = configured(path, settings=NEEDS)
    if tenant is not None:
        check_tenant(config, tenant)

    async def work(stores: OpenStores) -> T:
        if stores.audit_writer is None:
            raise click.ClickException("These commands need the key ring and the audit log.")
        parts = CommandParts(config, stores, stores.audit_writer)
        async with AsyncExitStack() as closing:
            closing.push_async_callback(parts.fetcher.aclose)
            closing.push_async_callback(parts.outbound.aclose)
            services = UpstreamServices(parts, config)
            closing.push_async_callback(services.aclose)
            return await do(services)

    try:
        return run_with_stores(config, work)
    except (Conflict, NotRegistered, InvalidField, ConnectionFailure) as error:
        raise click.ClickException(error.message) from None
    except SecretRefused as refused:
        raise click.ClickException(f"The secret is not stored: {refused}.") from None


def operator() -> ManagementActor:
    """Return who runs the command, for the audit log."""
    return ManagementActor(operator=administrator())
