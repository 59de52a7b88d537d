"""What commands that work on a running server's stores have in common."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import click
import msgspec

from gatepost.audit.journal import Journal
from gatepost.audit.record import Person
from gatepost.commands.configuration import administrator, check_store, fit_for, nearest
from gatepost.config.references import plain
from gatepost.keyring import KeyRing, KeyRingError
from gatepost.renewal import known_tenants
from gatepost.secrets.shelf import Secrets
from gatepost.secrets.vault import Vault
from gatepost.settings import Config
from gatepost.stores.api import Records, Relay, StoreRefused, StoreUnavailable
from gatepost.stores.backends import open_records, open_relay
from gatepost.telemetry.logs import configure
from gatepost.tools.redaction import Redaction
from gatepost_authz.config import TENANT_ID
from gatepost_authz.tenant import closed_set

T = TypeVar("T")
SETTINGS = ("storage.database", "storage.shared")
"""What else is wrong with a configuration may wait."""
EVERY_TENANT = "-"
"""In whose record stands what concerns no tenant alone; no tenant has this id."""


def configured(path: Path, *, needs: tuple[str, ...] = SETTINGS) -> Config:
    """The configuration, if the database that servers use can be told from it; else exit 1."""
    config = fit_for(path, needs)
    check_store(config)
    return config


class Stores(msgspec.Struct, frozen=True):
    """The stores of running servers, and the record of what is done to them."""

    records: Records
    relay: Relay
    keyring: KeyRing | None
    """None: there is none, or it cannot be read."""
    journal: Journal | None
    """None: nothing is put on record, because that is off or nothing could sign it."""

    async def note(
        self,
        tenant: str,
        kind: Literal["tenant", "cutoff"],
        outcome: str,
        *,
        about: Person | None = None,
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Put on record what was just done, and by whom."""
        if self.journal is None:
            return
        private = {"by": administrator()} | ({"reason": reason} if reason else {})
        try:
            await self.journal.note(
                tenant or EVERY_TENANT,
                kind,
                outcome=outcome,
                about=about,
                details=details,
                private=private,
            )
        except StoreUnavailable as outage:
            raise click.ClickException(f"It is done, and not on record: {outage}.") from None


def at_stores(config: Config, do: Callable[[Stores], Awaitable[T]]) -> T:
    """What *do* answers, with the configured stores open for it."""

    async def work() -> T:
        async with AsyncExitStack() as closing:
            records = await open_records(plain(config.storage.database))
            closing.push_async_callback(records.aclose)
            relay = await open_relay(plain(config.storage.shared))
            closing.push_async_callback(relay.aclose)
            keyring, journal = _ring(config), None
            if keyring is not None and config.audit.enabled:
                redaction = Redaction(Secrets(Vault(records, keyring)))
                journal = Journal(records, keyring, redaction, config.audit)
                closing.push_async_callback(journal.aclose)
            return await do(Stores(records, relay, keyring, journal))

    configure(level="error", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def _ring(config: Config) -> KeyRing | None:
    if not config.keys.ring:
        return None
    try:
        return KeyRing.load(config.keys.ring)
    except KeyRingError as error:
        # Whoever has to be shut out must not wait for that.
        click.echo(f"Nothing is put on record: {error}", err=True)
        return None


async def check_known(tenant: str, config: Config, records: Records) -> None:
    """
    Refuse a tenant that cannot be, and warn of one that nobody knows: a misspelt one is nobody, and
    whoever shuts it in a hurry believes the right one to be shut.
    """
    if doubt := await doubts(tenant, config, records):
        if not config.creates_tenants:
            raise click.ClickException(doubt)
        click.echo(f"Warning: {doubt}", err=True)


async def doubts(tenant: str, config: Config, records: Records) -> str:
    """Why a tenant may be none, in sentences; nothing where a setting or a record names it."""
    if not TENANT_ID.fullmatch(tenant):
        raise click.ClickException("A tenant's id is 1 to 63 of a-z, 0-9, _ and -.")
    named = {*known_tenants(config), config.stdio.tenant, *config.tenancy.suspended} - {""}
    closed = [closed_set(one) for one in config.issuers if one.enabled]
    known = named.union(*filter(None, closed), await records.estate.tenants())
    if tenant in known:
        return ""
    hint = nearest(tenant, sorted(known)) or " `gatepost tenant list` shows those there are."
    if not config.creates_tenants:
        return f"Nobody knows a tenant {tenant}.{hint}"
    # Where an issuer has a table, its tokens name nobody else, even if tenants may come by use.
    if None not in closed:
        return (
            f"No issuer's table and nothing in the database names a tenant {tenant}, "
            f"so nobody calls for it.{hint}"
        )
    return (
        f"No setting and nothing in the database names a tenant {tenant}: "
        f"it has never called, or it is misspelt.{hint}"
    )


def moment(seconds: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns; the first row is their names."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
