"""`gatepost audit`: prove that the record is whole, take it out, and anchor it elsewhere."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import click

from gatepost.audit.cef import as_cef
from gatepost.audit.checkpoint import PublicKeys, Unproven, as_pem, from_pem, public_keys
from gatepost.audit.erasure import sign
from gatepost.audit.export import (
    PAGE,
    Unreadable,
    checkpoints_in,
    exported,
    line,
    of_checkpoint,
    verify_lines,
)
from gatepost.audit.otlp import as_otlp
from gatepost.audit.trail import read
from gatepost.audit.verify import Verdict, verify
from gatepost.commands.configuration import config_option, fit_for, nearest, visible
from gatepost.config.references import plain
from gatepost.keyring import KeyRing
from gatepost.release import version
from gatepost.settings import Config
from gatepost.stores.api import Records, StoreRefused, StoreUnavailable
from gatepost.stores.audit import Checkpoint
from gatepost.stores.backends import MEMORY, open_records
from gatepost.telemetry.logs import configure

T = TypeVar("T")
Form = Literal["jsonl", "cef", "otlp"]
Kept = list[tuple[str, Checkpoint]]
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SETTINGS = ("storage.database", "keys.ring")
"""What else is wrong with a configuration may wait."""


@click.group()
def audit() -> None:
    """
    Verify, export and anchor the record of what happened.

    Each tenant's records are a chain of hashes with signed checkpoints; see docs/audit.md.
    """


@audit.command("verify")
@click.argument("files", nargs=-1, type=FILE)
@click.option("--tenant", help="Only this tenant's records; default: all of them.")
@click.option("--key", type=FILE, help="Public keys, as `gatepost audit key` prints them.")
@click.option(
    "--checkpoint",
    "anchors",
    multiple=True,
    type=FILE,
    help="Checkpoints that were kept elsewhere, or a log that holds them; several times.",
)
@config_option
def verify_(
    files: tuple[Path, ...],
    tenant: str | None,
    key: Path | None,
    anchors: tuple[Path, ...],
    path: Path,
) -> None:
    """
    Find out whether records are those that were written, and name the first that is not.

    Of the configured database, or of exported FILES, which needs no configuration but --key.
    """
    try:
        kept = [
            one for anchor in anchors for one in checkpoints_in(anchor.read_bytes().splitlines())
        ]
        keys = from_pem(key.read_text()) if key is not None else {}
        if files:
            keys = keys or public_keys(_ring(fit_for(path, SETTINGS)))
            found = [verify_lines(one.read_bytes().splitlines(), keys, kept) for one in files]
        else:
            found = _in_database(fit_for(path, SETTINGS), tenant, keys, kept)
    except (Unreadable, ValueError) as problem:
        raise click.ClickException(f"{problem}.") from None
    if not found:
        click.echo("There are no records.")
    for one in found:
        click.echo(told(one))
    if any(one.bad is not None for one in found):
        raise click.exceptions.Exit(1)


def told(found: Verdict) -> str:
    """A verdict in a sentence or two."""
    if found.bad is not None:
        return f"{found.tenant}: record {found.bad} is bad: {found.problem}."
    first = found.last - found.records + 1
    words = f"{found.tenant}: {found.records} records are as they were written"
    if found.records:
        words += f", {first} to {found.last}; checkpoints prove those up to {found.proven}"
    if found.erased:
        words += f". The details of {found.erased} were erased, which is on record"
    return f"{words}."


@audit.command()
@click.option("--tenant", required=True, help="Whose records.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "cef", "otlp"]),
    default="jsonl",
    show_default=True,
    help="JSON lines (which can be verified), CEF, or OpenTelemetry logs as OTLP JSON.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Only what is not older, in UTC; JSON lines begin behind the checkpoint before it.",
)
@click.option("--output", type=click.File("wb"), default="-", help="Default: standard output.")
@config_option
def export(tenant: str, form: Form, since: datetime | None, output: BinaryIO, path: Path) -> None:
    """Write a tenant's records, after signing a checkpoint of the last one."""
    config = fit_for(path, SETTINGS)
    begin = int(since.replace(tzinfo=UTC).timestamp() * 1000) if since is not None else 0

    async def work(records: Records, keyring: KeyRing) -> None:
        if await records.of(tenant).trail.head() is None:
            # What is written then is valid and holds nothing, as if nothing had happened.
            hint = nearest(tenant, await records.scribe.tenants())
            click.echo(f"There is no record of a tenant {visible(tenant)}.{hint}", err=True)
        await sign(records, keyring, tenant, time.time)
        lines = exported(records, tenant, since=begin)
        if form != "jsonl":
            lines = _projected(records, tenant, form, begin)
        async for one in lines:
            output.write(one)

    _at_the_trail(config, work)


async def _projected(records: Records, tenant: str, form: Form, since: int) -> AsyncIterator[bytes]:
    """The lines of the forms that others read."""
    after = 0
    while page := await records.of(tenant).trail.rows(after, PAGE):
        after = page[-1].number
        found = [read(row) for row in page if row.at >= since]
        if form == "otlp":
            for at in range(0, len(found), 100):
                yield as_otlp(tenant, found[at : at + 100], version())
        else:
            for one in found:
                yield f"{as_cef(tenant, one, version())}\n".encode()


@audit.command()
@config_option
def key(path: Path) -> None:
    """Print the public keys that checkpoints are verified with, one for each key of the ring."""
    click.echo(as_pem(public_keys(_ring(fit_for(path, SETTINGS)))), nl=False)


@audit.command()
@click.option("--tenant", help="Only this tenant; default: all of them.")
@config_option
def checkpoint(tenant: str | None, path: Path) -> None:
    """
    Sign now, and print each tenant's newest checkpoint, to be kept where nobody reaches it who
    reaches the database: with it, even a rollback of everything is found.
    """

    async def work(records: Records, keyring: KeyRing) -> list[Checkpoint]:
        found = []
        for one in [tenant] if tenant else await records.scribe.tenants():
            await sign(records, keyring, one, time.time)
            found += (await records.of(one).trail.checkpoints())[-1:]
        return found

    for one in _at_the_trail(fit_for(path, SETTINGS), work):
        click.echo(line(of_checkpoint(one)), nl=False)


def _in_database(config: Config, tenant: str | None, keys: PublicKeys, kept: Kept) -> list[Verdict]:
    async def work(records: Records, keyring: KeyRing) -> list[Verdict]:
        # Older public keys may be known only from the file.
        known = {**keys, **public_keys(keyring)}
        named = {*await records.scribe.tenants(), *(one for one, _ in kept)}
        found = []
        for one in sorted({tenant} if tenant else named):
            anchors = [checkpoint for name, checkpoint in kept if name == one]
            found.append(await verify(records, one, known, keyring, anchors))
        return found

    return _at_the_trail(config, work)


def _ring(config: Config) -> KeyRing:
    if not config.keys.ring:
        raise click.ClickException(
            "There is no key ring, so nothing that was signed can be checked: `gatepost keyring "
            'new`, then [keys] ring = "file:keyring.json".'
        )
    return KeyRing.load(config.keys.ring)


def _at_the_trail(config: Config, do: Callable[[Records, KeyRing], Awaitable[T]]) -> T:
    """What *do* answers, with the configured records open for it."""
    keyring = _ring(config)
    database = plain(config.storage.database)
    if database == MEMORY:
        raise click.ClickException(
            "`storage.database` is the memory of the server's process, where nobody else can look. "
            "Choose a file or PostgreSQL."
        )

    async def work() -> T:
        records = await open_records(database)
        async with aclosing(records):
            return await do(records, keyring)

    configure(level="warning", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None
    except Unproven as refused:
        raise click.ClickException(
            f"The end of the chain of {refused} is not proven by a key of the ring, so it is not "
            "signed: `gatepost audit verify` says what is wrong."
        ) from None
