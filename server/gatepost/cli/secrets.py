"""`gatepost secrets`: manage the secrets of tenants."""

import asyncio
import difflib
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import click

from gatepost.audit.writer import AuditWriter
from gatepost.cli.configuration import config_option, fit_for, tenant_option
from gatepost.cli.output import moment
from gatepost.cli.output import table as in_columns
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config
from gatepost.runtime.reload import known_tenants
from gatepost.secrets.hosts import checked_hosts
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.names import MAX_BYTES, SecretRefused, checked_name, checked_value
from gatepost.secrets.store import SecretDescription, SecretStore, SecretUnreadable
from gatepost.storage.backends import MEMORY, open_records
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.telemetry.logs import configure
from gatepost.tools.calls.redaction import Redaction
from gatepost_authz.config import TENANT_ID

T = TypeVar("T")
SETTINGS = ("storage.database", "keys.ring")
"""The settings that these commands need; problems of other settings are ignored."""

host_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Host that can receive the secret: host (https) or host:port. Can be given several times.",
)


@click.group()
def secrets() -> None:
    """
    Set, bind, list and delete the secrets of tenants.

    Tools use secrets, agents refer to them by name (secret:NAME), and results never contain them.
    Secrets are stored in the database, encrypted with the key ring. Running servers use a changed
    secret within seconds.
    """


@secrets.command("set")
@click.argument("name")
@click.argument("value", nargs=-1, metavar="")
@tenant_option
@host_option
@click.option(
    "--username",
    is_flag=True,
    help="The value is a user name: it can be short, and results can contain it.",
)
@config_option
def set_(
    name: str,
    value: tuple[str, ...],
    tenant: str,
    hosts: tuple[str, ...],
    username: bool,
    path: Path,
) -> None:
    """
    Set the secret NAME. The value is prompted for, or read from standard input.

    The secret is sent only to the hosts that it is bound to. Without --host, an existing secret
    keeps its hosts. A new secret without --host is bound to no host, and is sent only where the
    configuration names the host.

    A user name that belongs to a password is not secret. Add --username each time you set it.
    """
    if value:
        raise click.UsageError(
            "Do not give the value as an argument: it stays in the shell history and other users "
            "can see it. Enter it at the prompt or on standard input. If this value is real, "
            "change it."
        )
    try:
        checked_name(name)
        bound_hosts = checked_hosts(hosts) if hosts else None
        config = configured(path, tenant)
        entered = checked_value(read(name), username=username)
        bound = with_secret_store(
            config, lambda vault: vault.put(tenant, name, entered, bound_hosts, username=username)
        )
    except SecretRefused as refusal:
        raise click.ClickException(f"{refusal}.") from None
    on_record(config, tenant, name, "set")
    click.echo(f"Secret {name} of tenant {tenant} is set, bound to {hosts_text(bound)}.")
    if username:
        click.echo("It is a user name, so results can contain it.")


@secrets.command()
@click.argument("name")
@tenant_option
@host_option
@config_option
def bind(name: str, tenant: str, hosts: tuple[str, ...], path: Path) -> None:
    """Bind the secret NAME to the given hosts only, or to none. The value does not change."""

    async def execute(vault: SecretStore) -> list[str] | None:
        return None if await vault.bind(tenant, name, bound_hosts) else await vault.names(tenant)

    try:
        checked_name(name)
        bound_hosts = checked_hosts(hosts)
        config = configured(path, tenant)
        names = with_secret_store(config, execute)
    except SecretRefused as refusal:
        raise click.ClickException(f"{refusal}.") from None
    except SecretUnreadable as failure:
        raise click.ClickException(f"The secret was not bound: {failure}. Set it again.") from None
    if names is not None:
        raise unknown(name, tenant, names)
    on_record(config, tenant, name, "bound")
    click.echo(f"Secret {name} of tenant {tenant} is bound to {hosts_text(bound_hosts)}.")


@secrets.command("list")
@tenant_option
@config_option
def list_(tenant: str, path: Path) -> None:
    """
    List a tenant's secrets: name, time set, encryption key and bound hosts. Values are not shown.
    """
    rows = with_secret_store(configured(path, tenant), lambda vault: vault.rows(tenant))
    if not rows:
        click.echo(f"Tenant {tenant} has no secrets.")
        return
    click.echo(table(rows))


@secrets.command()
@click.argument("name")
@tenant_option
@config_option
def delete(name: str, tenant: str, path: Path) -> None:
    """Delete the secret NAME."""

    async def remove(vault: SecretStore) -> list[str] | None:
        return None if await vault.delete(tenant, name) else await vault.names(tenant)

    try:
        checked_name(name)
    except SecretRefused as refusal:
        raise click.ClickException(f"{refusal}.") from None
    config = configured(path, tenant)
    names = with_secret_store(config, remove)
    if names is not None:
        raise unknown(name, tenant, names)
    on_record(config, tenant, name, "deleted")
    click.echo(f"Secret {name} of tenant {tenant} is deleted.")


@secrets.command()
@config_option
def rotate(path: Path) -> None:
    """
    Encrypt all secrets of all tenants with the newest key of the key ring.

    Run this after `gatepost keyring rotate`, before an older key is dropped.
    """
    result = with_secret_store(configured(path), lambda vault: vault.reseal())
    click.echo(f"Encrypted again: {result.sealed}. Already up to date: {result.current}.")
    for tenant, reason in result.unreadable:
        click.echo(f"Tenant {tenant}: {reason}. Set it again.", err=True)
    if result.unreadable:
        raise click.exceptions.Exit(1)


def unknown(name: str, tenant: str, names: list[str]) -> click.ClickException:
    """Return the error for an unknown secret name."""
    similar = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    return click.ClickException(f"Tenant {tenant} has no secret {name}.{hint}")


def hosts_text(hosts: tuple[str, ...]) -> str:
    """Return the hosts as text."""
    return ", ".join(hosts) or "no host"


def configured(path: Path, tenant: str | None = None) -> Config:
    """Return the configuration if it can store secrets and has the given tenant."""
    config = fit_for(path, SETTINGS)
    if resolved_setting(config.storage.database) == MEMORY:
        raise click.ClickException(
            "`storage.database` is in the server's memory, so other processes cannot set secrets "
            "there. Set it to a SQLite file or PostgreSQL."
        )
    if not config.keys.ring:
        raise click.ClickException(
            "There is no key ring to encrypt secrets with. Run `gatepost keyring new` and set "
            '[keys] ring = "file:keyring.json".'
        )
    if tenant is not None:
        _check_tenant(config, tenant)
    return config


def _check_tenant(config: Config, tenant: str) -> None:
    """Refuse a tenant that cannot exist, whose secret would never be found."""
    if not TENANT_ID.fullmatch(tenant):
        raise click.ClickException("A tenant id has 1 to 63 characters of a-z, 0-9, _ and -.")
    tenants = known_tenants(config) | {config.stdio.tenant}
    if config.creates_tenants or tenant in tenants:
        return
    similar = difflib.get_close_matches(tenant, tenants - {""}, n=1)
    hint = f" Did you mean {similar[0]}?" if similar else " `tenancy.tenants` lists the tenants."
    raise click.ClickException(f"The configuration has no tenant {tenant}.{hint}")


def with_secret_store(config: Config, do: Callable[[SecretStore], Awaitable[T]]) -> T:
    """Run *do* with the configured stores open, and return its result."""

    async def work() -> T:
        records = await open_records(resolved_setting(config.storage.database))
        async with aclosing(records):
            return await do(
                SecretStore(
                    records, KeyRing.load(config.keys.ring, group_read=config.keys.group_read)
                )
            )

    configure(level="warning", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def on_record(config: Config, tenant: str, name: str, outcome: str) -> None:
    """Record in the tenant's audit log what was done to a secret."""

    async def work() -> None:
        records = await open_records(resolved_setting(config.storage.database))
        keyring = KeyRing.load(config.keys.ring, group_read=config.keys.group_read)
        async with (
            aclosing(records),
            aclosing(AuditWriter(records, keyring, Redaction(), config.audit)) as audit_writer,
        ):
            await audit_writer.events.note(
                tenant, "secret", outcome=outcome, details={"secret": name}
            )

    try:
        asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(
            f"The secret is {outcome}, but this was not recorded in the audit log: {error}."
        ) from None


def read(name: str) -> str:
    """Return the value, prompted for twice without echo, or read from standard input."""
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True)
        return value
    # Leave room for the line end. A longer value is refused, not truncated.
    data = sys.stdin.buffer.read(MAX_BYTES + 3)
    if len(data) == MAX_BYTES + 3:
        raise SecretRefused(f"the value has more than {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SecretRefused("the value is not UTF-8 text") from None
    # `echo` and editors add one line end; remove only that one.
    return text.removesuffix("\n").removesuffix("\r")


def table(rows: list[SecretDescription]) -> str:
    """Return the secrets as a table."""
    lines = [("NAME", "SET", "KEY", "HOSTS")]
    for row in rows:
        note = f"cannot be decrypted: {row.unreadable}" if row.unreadable else " ".join(row.hosts)
        if row.username:
            note = f"{note} (user name)".strip()
        lines.append((row.name, moment(row.changed_at), row.key_id, note))
    return in_columns(lines)
