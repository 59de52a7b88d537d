"""`gatepost secrets`: what tenants keep from their own agents, set by whoever runs the server."""

import asyncio
import difflib
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from gatepost.audit.journal import Journal
from gatepost.commands.configuration import config_option, fit_for
from gatepost.config.references import plain
from gatepost.keyring import KeyRing
from gatepost.renewal import known_tenants
from gatepost.secrets.binding import checked_hosts
from gatepost.secrets.grammar import MOST_BYTES, SecretRefused, checked_name, checked_value
from gatepost.secrets.vault import Row, Unreadable, Vault
from gatepost.settings import Config
from gatepost.stores.api import StoreRefused, StoreUnavailable
from gatepost.stores.backends import MEMORY, open_records
from gatepost.telemetry.logs import configure
from gatepost.tools.redaction import Redaction
from gatepost_authz.config import TENANT_ID

T = TypeVar("T")
SETTINGS = ("storage.database", "keys.ring")
"""What else is wrong with a configuration may wait."""

tenant_option = click.option("--tenant", required=True, help="Whose secret it is: a tenant's id.")
host_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Where it may be sent: host (https) or host:port. May be given several times.",
)


@click.group()
def secrets() -> None:
    """
    Set, bind, list and delete the secrets of tenants.

    Tools use them, agents only name them (secret:NAME), and no answer holds them. They are kept in
    the database, sealed by the key ring; running servers take a change up within seconds.
    """


@secrets.command("set")
@click.argument("name")
@click.argument("value", nargs=-1, metavar="")
@tenant_option
@host_option
@config_option
def set_(
    name: str, value: tuple[str, ...], tenant: str, hosts: tuple[str, ...], path: Path
) -> None:
    """
    Set the secret NAME; its value is asked for, or read from standard input.

    It is sent to the hosts that it is bound to and no others. Without --host it stays bound to
    those that it is bound to; a new one is bound to none, and goes only where the configuration
    says which host.
    """
    if value:
        raise click.UsageError(
            "The value is not given here, where the shell's history and the machine's other users "
            "find it: it is asked for, or read from standard input. If this one is real, change it."
        )
    try:
        checked_name(name)
        wanted = checked_hosts(hosts) if hosts else None
        config = configured(path, tenant)
        given = checked_value(read(name))
        bound = at_the_vault(config, lambda vault: vault.put(tenant, name, given, wanted))
    except SecretRefused as refusal:
        raise click.ClickException(f"{refusal}.") from None
    on_record(config, tenant, name, "set")
    click.echo(f"The secret {name} of the tenant {tenant} is set, bound to {listed(bound)}.")


@secrets.command()
@click.argument("name")
@tenant_option
@host_option
@config_option
def bind(name: str, tenant: str, hosts: tuple[str, ...], path: Path) -> None:
    """Bind the secret NAME to these hosts and no others, or to none; its value stays as it is."""

    async def do(vault: Vault) -> list[str] | None:
        return None if await vault.bind(tenant, name, wanted) else await vault.names(tenant)

    try:
        checked_name(name)
        wanted = checked_hosts(hosts)
        config = configured(path, tenant)
        others = at_the_vault(config, do)
    except SecretRefused as refusal:
        raise click.ClickException(f"{refusal}.") from None
    except Unreadable as failure:
        raise click.ClickException(f"It is not bound: {failure}; set it again.") from None
    if others is not None:
        raise unknown(name, tenant, others)
    on_record(config, tenant, name, "bound")
    click.echo(f"The secret {name} of the tenant {tenant} is bound to {listed(wanted)}.")


@secrets.command("list")
@tenant_option
@config_option
def list_(tenant: str, path: Path) -> None:
    """
    List a tenant's secrets: name, when it was set, the key that seals it, the hosts that it is
    bound to; never a value.
    """
    rows = at_the_vault(configured(path, tenant), lambda vault: vault.rows(tenant))
    if not rows:
        click.echo(f"The tenant {tenant} has no secrets.")
        return
    click.echo(table(rows))


@secrets.command()
@click.argument("name")
@tenant_option
@config_option
def delete(name: str, tenant: str, path: Path) -> None:
    """Delete the secret NAME."""

    async def remove(vault: Vault) -> list[str] | None:
        return None if await vault.delete(tenant, name) else await vault.names(tenant)

    try:
        checked_name(name)
    except SecretRefused as refusal:
        raise click.ClickException(f"{refusal}.") from None
    config = configured(path, tenant)
    others = at_the_vault(config, remove)
    if others is not None:
        raise unknown(name, tenant, others)
    on_record(config, tenant, name, "deleted")
    click.echo(f"The secret {name} of the tenant {tenant} is deleted.")


@secrets.command()
@config_option
def rotate(path: Path) -> None:
    """
    Seal all secrets of all tenants with the newest key of the ring.

    After `gatepost keyring rotate`: only then may an older key go.
    """
    done = at_the_vault(configured(path), lambda vault: vault.reseal())
    click.echo(f"Sealed anew: {done.sealed}. By the newest key already: {done.current}.")
    for tenant, reason in done.unreadable:
        click.echo(f"Tenant {tenant}: {reason}; set it again.", err=True)
    if done.unreadable:
        raise click.exceptions.Exit(1)


def unknown(name: str, tenant: str, others: list[str]) -> click.ClickException:
    """What is said of a name that no secret has."""
    near = difflib.get_close_matches(name, others, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return click.ClickException(f"The tenant {tenant} has no secret {name}.{hint}")


def listed(hosts: tuple[str, ...]) -> str:
    """The hosts in a sentence."""
    return ", ".join(hosts) or "no host"


def configured(path: Path, tenant: str | None = None) -> Config:
    """The configuration, if it has a place for secrets and, if one is named, that tenant."""
    config = fit_for(path, SETTINGS)
    if plain(config.storage.database) == MEMORY:
        raise click.ClickException(
            "`storage.database` is the memory of the server's process: no other one can set "
            "secrets there, and none would outlive it. Choose a file or PostgreSQL."
        )
    if not config.keys.ring:
        raise click.ClickException(
            "There is no key ring to seal secrets with, and what the server's own one of this run "
            "seals is lost with it: `gatepost keyring new`, then [keys] ring = "
            '"file:keyring.json".'
        )
    if tenant is not None:
        _known(config, tenant)
    return config


def _known(config: Config, tenant: str) -> None:
    """Refuse a tenant that cannot be: a secret set for it would never be found."""
    if not TENANT_ID.fullmatch(tenant):
        raise click.ClickException("A tenant's id is 1 to 63 of a-z, 0-9, _ and -.")
    known = known_tenants(config) | {config.stdio.tenant}
    if config.creates_tenants or tenant in known:
        return
    near = difflib.get_close_matches(tenant, known - {""}, n=1)
    hint = f" Did you mean {near[0]}?" if near else " `tenancy.tenants` names those that exist."
    raise click.ClickException(f"The configuration knows no tenant {tenant}.{hint}")


def at_the_vault(config: Config, do: Callable[[Vault], Awaitable[T]]) -> T:
    """What *do* answers, with the configured stores open for it."""

    async def work() -> T:
        records = await open_records(plain(config.storage.database))
        async with aclosing(records):
            return await do(Vault(records, KeyRing.load(config.keys.ring)))

    configure(level="warning", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def on_record(config: Config, tenant: str, name: str, what: str) -> None:
    """Say in the tenant's record what was done to a secret."""

    async def work() -> None:
        records = await open_records(plain(config.storage.database))
        keyring = KeyRing.load(config.keys.ring)
        async with (
            aclosing(records),
            aclosing(Journal(records, keyring, Redaction(), config.audit)) as journal,
        ):
            await journal.note(tenant, "secret", outcome=what, details={"secret": name})

    try:
        asyncio.run(work())
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(f"It is {what}, and that is not on record: {error}.") from None


def read(name: str) -> str:
    """The value: asked for twice at a terminal and not shown, else all of the standard input."""
    if sys.stdin.isatty():
        given: str = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True)
        return given
    # With room for the end of the line; more is told, and not cut.
    data = sys.stdin.buffer.read(MOST_BYTES + 3)
    if len(data) == MOST_BYTES + 3:
        raise SecretRefused(f"the value has more than {MOST_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SecretRefused("the value is no text in UTF-8") from None
    # `echo` and editors end a line; no more than that one is theirs.
    return text.removesuffix("\n").removesuffix("\r")


def table(rows: list[Row]) -> str:
    """One line each."""
    lines = [("NAME", "SET", "KEY", "HOSTS")]
    for row in rows:
        when = datetime.fromtimestamp(row.changed_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        note = f"cannot be opened: {row.unreadable}" if row.unreadable else " ".join(row.hosts)
        lines.append((row.name, when, row.key_id, note))
    widths = [max(len(line[at]) for line in lines) for at in range(3)]
    texts = ("  ".join([*map(str.ljust, line[:3], widths), line[3]]) for line in lines)
    return "\n".join(text.rstrip() for text in texts)
