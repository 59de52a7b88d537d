"""What commands that work on a running server's stores have in common."""

import asyncio
import difflib
import getpass
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from gatepost.commands.configuration import examine, show
from gatepost.config.references import plain
from gatepost.renewal import known_tenants
from gatepost.settings import Config
from gatepost.stores.api import Records, Relay, StoreRefused, StoreUnavailable
from gatepost.stores.backends import MEMORY, open_records, open_relay
from gatepost.telemetry.logs import configure
from gatepost_authz.config import TENANT_ID

T = TypeVar("T")
SETTINGS = ("storage.database", "storage.shared")
"""What else is wrong with a configuration may wait."""


def configured(path: Path, *, needs: tuple[str, ...] = SETTINGS) -> Config:
    """The configuration, if the database that servers use can be told from it; else exit 1."""
    config, _, found = examine(path)
    if config is not None:
        found = [one for one in found if one.setting in needs and one.level == "error"]
    show(found)
    if config is None or found:
        raise click.exceptions.Exit(1)
    if plain(config.storage.database) == MEMORY:
        raise click.ClickException(
            "`storage.database` is the memory of the server's process, which no other one can "
            "change. Choose a file or PostgreSQL."
        )
    return config


def at_stores(config: Config, do: Callable[[Records, Relay], Awaitable[T]]) -> T:
    """What *do* answers, with the configured stores open for it."""

    async def work() -> T:
        records = await open_records(plain(config.storage.database))
        async with aclosing(records):
            relay = await open_relay(plain(config.storage.shared))
            async with aclosing(relay):
                return await do(records, relay)

    configure(level="error", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def checked(tenant: str, config: Config, others: list[str]) -> str:
    """The tenant's id, if the configuration or a record knows it: a misspelt one is nobody."""
    if not TENANT_ID.fullmatch(tenant):
        raise click.ClickException("A tenant's id is 1 to 63 of a-z, 0-9, _ and -.")
    known = {*known_tenants(config), config.stdio.tenant, *config.tenancy.suspended, *others} - {""}
    if config.creates_tenants or tenant in known:
        return tenant
    near = difflib.get_close_matches(tenant, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else " `gatepost tenant list` shows those there are."
    raise click.ClickException(f"Nobody knows a tenant {tenant}.{hint}")


def administrator() -> str:
    """Who runs the command, as the machine knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container runs as numbers without names.
        return f"uid {os.getuid()}"


def visible(text: str) -> str:
    """A text with what a terminal would act on, or would reorder, as escapes."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def moment(seconds: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns; the first row is their names."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
