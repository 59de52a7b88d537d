"""Helpers for commands that change the stores of running servers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal, TypeVar

import click
import msgspec

from gatepost.audit.batches import RingLinker
from gatepost.audit.record import RecordedPerson
from gatepost.audit.writer import AuditWriter
from gatepost.cli.configuration import administrator, check_database, check_store, fit_for, nearest
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config
from gatepost.runtime.reload import known_tenants
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.secrets.store import SecretStore
from gatepost.storage.audit import EVERY_TENANT, AuditStore
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.telemetry.logs import configure
from gatepost.tools.calls.redaction import Redaction
from gatepost_authz.config import TENANT_ID
from gatepost_authz.tenant import closed_set

T = TypeVar("T")
SETTINGS = ("storage.database", "storage.shared")
"""The settings that these commands need; problems of other settings are ignored."""


def configured(path: Path, *, settings: tuple[str, ...] = SETTINGS) -> Config:
    """Return the configuration if it names a database that servers share; else exit 1."""
    config = fit_for(path, settings)
    check_store(config)
    return config


class OpenStores(msgspec.Struct, frozen=True):
    """The stores of running servers, with the audit writer."""

    records: Records
    shared_store: SharedStore
    keyring: KeyRing | None
    """None if there is no key ring, or it cannot be read."""
    audit_store: AuditStore
    audit_writer: AuditWriter | None
    """None if the audit log is disabled, or there is no key to sign it."""

    async def note(
        self,
        tenant: str,
        kind: Literal["tenant", "revocation"],
        outcome: str,
        *,
        person: RecordedPerson | None = None,
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Record in the audit log what was done and by whom."""
        if self.audit_writer is None:
            return
        private = {"by": administrator()} | ({"reason": reason} if reason else {})
        try:
            await self.audit_writer.events.note(
                tenant or EVERY_TENANT,
                kind,
                outcome=outcome,
                person=person,
                details=details,
                private=private,
            )
        except StoreUnavailable as outage:
            raise click.ClickException(
                f"The change was made, but it was not recorded in the audit log: {outage}."
            ) from None


def configured_server(path: Path) -> Config:
    """Return the configuration if it names a database of a server; else exit 1."""
    config = configured(path)
    check_database(config)
    return config


def run_with_stores(config: Config, do: Callable[[OpenStores], Awaitable[T]]) -> T:
    """Run *do* with the configured stores open, and return its result."""

    async def work() -> T:
        async with AsyncExitStack() as closing:
            records = await open_records(resolved_setting(config.storage.database))
            closing.push_async_callback(records.aclose)
            shared_store = await open_shared_store(resolved_setting(config.storage.shared))
            closing.push_async_callback(shared_store.aclose)
            keyring, audit_writer = _ring(config), None
            if keyring is not None and config.audit.enabled:
                redaction = Redaction(SecretCache(SecretStore(records, keyring)))
                audit_writer = AuditWriter(records, keyring, redaction, config.audit)
                closing.push_async_callback(audit_writer.aclose)
                audit_store = audit_writer.store
            else:
                linker = None if keyring is None else RingLinker(keyring)
                audit_store = records.open_audit(linker)
            stores = OpenStores(records, shared_store, keyring, audit_store, audit_writer)
            return await do(stores)

    configure(level="error", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def _ring(config: Config) -> KeyRing | None:
    if not config.keys.ring:
        return None
    try:
        return KeyRing.load(config.keys.ring, group_read=config.keys.group_read)
    except KeyRingError as error:
        # A revocation must not fail because of the key ring.
        click.echo(f"The change is not recorded in the audit log: {error}", err=True)
        return None


async def check_known(tenant: str, config: Config, records: Records) -> None:
    """
    Refuse an impossible tenant id, and warn about an unknown tenant.

    A misspelt tenant would leave the intended one open.
    """
    if unknown_reason := await why_unknown(tenant, config, records):
        if not config.creates_tenants:
            raise click.ClickException(unknown_reason)
        click.echo(f"Warning: {unknown_reason}", err=True)


async def why_unknown(tenant: str, config: Config, records: Records) -> str:
    """Return why a tenant may not exist; empty if a setting or stored data names it."""
    if not TENANT_ID.fullmatch(tenant):
        raise click.ClickException("A tenant id has 1 to 63 characters of a-z, 0-9, _ and -.")
    configured = {*known_tenants(config), config.stdio.tenant, *config.tenancy.suspended} - {""}
    closed = [closed_set(issuer) for issuer in config.issuers if issuer.enabled]
    tenants = configured.union(*filter(None, closed), await records.tenant_data.tenants())
    if tenant in tenants:
        return ""
    hint = nearest(tenant, sorted(tenants)) or " Run `gatepost tenant list` to see all tenants."
    if not config.creates_tenants:
        return f"There is no tenant {tenant}.{hint}"
    # An issuer with a `tenants` table has only these tenants, even if tenants are created on use.
    if None not in closed:
        return (
            f"No issuer's `tenants` table and no stored data names a tenant {tenant}, "
            f"so it has no callers.{hint}"
        )
    return (
        f"No setting and no stored data names a tenant {tenant}. "
        f"It has never called, or the name is misspelt.{hint}"
    )
