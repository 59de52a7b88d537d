"""`gatepost audit`: verify, export and checkpoint the audit log."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import click

from gatepost.audit.batches import RingLinker
from gatepost.audit.checkpoints import CheckpointSigner, PublicKeys, Unproven, public_keys
from gatepost.audit.export import (
    ExportUnreadable,
    as_pem,
    checkpoints_in,
    exported,
    from_pem,
    line,
    of_checkpoint,
    verify_lines,
)
from gatepost.audit.verify import VerificationResult, verify
from gatepost.cli.configuration import (
    check_database,
    config_option,
    fit_for,
    nearest,
    tenant_option,
    visible,
)
from gatepost.cli.siem import in_format
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditStore, Checkpoint, record_id
from gatepost.storage.backends import MEMORY, open_records
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.telemetry.logs import configure

T = TypeVar("T")
ExportFormat = Literal["jsonl", "cef", "otlp"]
NamedCheckpoints = list[tuple[str, Checkpoint]]
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SETTINGS = ("storage.database", "keys.ring")
"""The settings that these commands need; problems of other settings are ignored."""


@click.group()
def audit() -> None:
    """
    Verify and export the audit log, and sign checkpoints.

    The records of each tenant form hash chains, one for each writer, with signed checkpoints. See
    docs/audit.md.
    """


@audit.command("verify")
@click.argument("files", nargs=-1, type=FILE)
@click.option("--tenant", help="Verify only this tenant. Default: all tenants.")
@click.option("--key", type=FILE, help="File with the public keys printed by `gatepost audit key`.")
@click.option(
    "--checkpoint",
    "anchors",
    multiple=True,
    type=FILE,
    help="File or log with checkpoints stored elsewhere. Can be given several times.",
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
    Check that audit records are unchanged, and print the first bad record.

    Checks the configured database, or exported FILES. With --key, FILES need no configuration.
    """
    try:
        checkpoints = [
            checkpoint
            for anchor in anchors
            for checkpoint in checkpoints_in(anchor.read_bytes().splitlines())
        ]
        keys = from_pem(key.read_text()) if key is not None else {}
        if files:
            keys = keys or public_keys(_ring(fit_for(path, SETTINGS)))
            results = [
                verify_lines(file.read_bytes().splitlines(), keys, checkpoints) for file in files
            ]
        else:
            results = _in_database(fit_for(path, SETTINGS), tenant, keys, checkpoints)
    except (ExportUnreadable, ValueError) as problem:
        raise click.ClickException(f"{problem}.") from None
    if not results:
        click.echo("There are no records.")
    for result in results:
        click.echo(verdict_text(result))
    if any(result.bad_number is not None for result in results):
        raise click.exceptions.Exit(1)


def verdict_text(result: VerificationResult) -> str:
    """Return a verdict as text."""
    if result.bad_number is not None:
        record = record_id(result.writer, result.bad_number)
        return f"{result.tenant}: record {record} is bad: {result.problem}."
    are_valid = "record is valid" if result.records == 1 else "records are valid"
    text = f"{result.tenant}: {result.records} {are_valid}"
    for chain in result.chains:
        first, last, proven = (
            record_id(chain.writer, number) for number in (chain.first, chain.last, chain.proven)
        )
        text += ", " if chain is result.chains[0] else f". Writer {chain.writer}: "
        text += f"{first} to {last}; signed checkpoints cover records up to {proven}"
    if result.erased:
        text += (
            f". The details of {result.erased} records were erased, and the erasures are recorded"
        )
    return f"{text}."


@audit.command()
@tenant_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "cef", "otlp"]),
    default="jsonl",
    show_default=True,
    help="JSON lines (can be verified), CEF, or OpenTelemetry logs as OTLP JSON.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Export records from this time (UTC). JSON lines start after the previous checkpoint.",
)
@click.option(
    "--output", type=click.File("wb"), default="-", help="Output file. Default: standard output."
)
@config_option
def export(
    tenant: str, form: ExportFormat, since: datetime | None, output: BinaryIO, path: Path
) -> None:
    """Sign a checkpoint of a tenant's last record and export the records."""
    config = fit_for(path, SETTINGS)
    begin = int(since.replace(tzinfo=UTC).timestamp() * 1000) if since is not None else 0

    async def work(audit_store: AuditStore, keyring: KeyRing) -> None:
        if not await audit_store.tenant_log(tenant).heads():
            # The export is then valid but empty, which could be mistaken for a complete one.
            hint = nearest(tenant, await audit_store.tenants())
            click.echo(f"There are no audit records of tenant {visible(tenant)}.{hint}", err=True)
        await CheckpointSigner(audit_store, keyring).sign_tenant(tenant)
        lines = exported(audit_store, tenant, since=begin)
        if form != "jsonl":
            lines = in_format(audit_store, tenant, form, begin)
        async for text in lines:
            output.write(text)

    _with_audit_log(config, work)


@audit.command()
@config_option
def key(path: Path) -> None:
    """Print the public keys that verify checkpoints, one for each key of the key ring."""
    click.echo(as_pem(public_keys(_ring(fit_for(path, SETTINGS)))), nl=False)


@audit.command()
@click.option("--tenant", help="Only this tenant. Default: all tenants.")
@config_option
def checkpoint(tenant: str | None, path: Path) -> None:
    """
    Sign and print the newest checkpoint of each tenant.

    Store the output where database administrators cannot change it. With it, `gatepost audit
    verify` detects even a rollback of the whole database.
    """

    async def work(audit_store: AuditStore, keyring: KeyRing) -> list[Checkpoint]:
        newest = []
        for name in [tenant] if tenant else await audit_store.tenants():
            await CheckpointSigner(audit_store, keyring).sign_tenant(name)
            newest += (await audit_store.tenant_log(name).checkpoints())[-1:]
        return newest

    for signed in _with_audit_log(fit_for(path, SETTINGS), work):
        click.echo(line(of_checkpoint(signed)), nl=False)


def _in_database(
    config: Config, tenant: str | None, keys: PublicKeys, checkpoints: NamedCheckpoints
) -> list[VerificationResult]:
    async def work(audit_store: AuditStore, keyring: KeyRing) -> list[VerificationResult]:
        # Older public keys may be only in the file.
        all_keys = {**keys, **public_keys(keyring)}
        tenants = {*await audit_store.tenants(), *(name for name, _ in checkpoints)}
        results = []
        for audited in sorted({tenant} if tenant else tenants):
            anchors = [checkpoint for name, checkpoint in checkpoints if name == audited]
            results.append(await verify(audit_store, audited, all_keys, keyring, anchors))
        return results

    return _with_audit_log(config, work)


def _ring(config: Config) -> KeyRing:
    if not config.keys.ring:
        raise click.ClickException(
            "There is no key ring, so signatures cannot be checked. Run `gatepost keyring new` and "
            'set [keys] ring = "file:keyring.json".'
        )
    return KeyRing.load(config.keys.ring, group_read=config.keys.group_read)


def _with_audit_log(config: Config, do: Callable[[AuditStore, KeyRing], Awaitable[T]]) -> T:
    """Run *do* with the configured audit log open, and return its result."""
    keyring = _ring(config)
    database = resolved_setting(config.storage.database)
    if database == MEMORY:
        raise click.ClickException(
            "`storage.database` is in the server's memory, which other processes cannot read. "
            "Set it to a SQLite file or PostgreSQL."
        )
    check_database(config)

    async def work() -> T:
        async with aclosing(await open_records(database)) as records:
            return await do(records.open_audit(RingLinker(keyring)), keyring)

    configure(level="warning", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None
    except Unproven as refused:
        raise click.ClickException(
            f"The last record of tenant {refused} cannot be proven with a key of the key ring, so "
            "it is not signed. Run `gatepost audit verify` to find the problem."
        ) from None
