"""`gatepost approvals`: what waits for a person, decided by whoever runs the server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from gatepost.approvals.desk import Desk
from gatepost.approvals.request import Grant, Operator, Party, Request, Undecidable
from gatepost.audit.journal import Journal
from gatepost.commands.configuration import (
    administrator,
    check_tenant,
    config_option,
    settled,
    visible,
)
from gatepost.commands.stores import moment
from gatepost.commands.stores import table as in_columns
from gatepost.config.own import own_secrets
from gatepost.config.references import plain
from gatepost.config.stdio import BESIDE
from gatepost.config.toolbox import Toolbox
from gatepost.cutoffs.watch import CutOffs
from gatepost.dashboard.glyph import shown
from gatepost.outbound.client import Client
from gatepost.reviews import Reviews
from gatepost.secrets.shelf import Secrets
from gatepost.secrets.vault import Vault
from gatepost.services import keyring_of
from gatepost.settings import Config
from gatepost.stores.api import StoreRefused, StoreUnavailable
from gatepost.stores.backends import open_records, open_relay
from gatepost.telemetry.logs import configure
from gatepost.tools.redaction import Redaction
from gatepost_authz.fetch import Fetcher

T = TypeVar("T")

tenant_option = click.option("--tenant", required=True, help="Whose requests: a tenant's id.")
PAST = 20


@click.group()
def approvals() -> None:
    """
    List and decide about calls, and scripts, that wait for a person.

    Decisions are kept in the database and count at once, at every running server.
    """


@approvals.command("list")
@click.option("--past", is_flag=True, help="What was decided lately instead.")
@tenant_option
@config_option
def list_(past: bool, tenant: str, path: Path) -> None:
    """List what waits, the oldest first."""

    async def look(desk: Desk) -> list[Request]:
        return await desk.history(tenant, most=PAST) if past else await desk.waiting(tenant)

    found = at_the_desk(path, tenant, look)
    if not found:
        click.echo(f"Nothing {'was decided' if past else 'waits'} in the tenant {tenant}.")
        return
    rows = [(one.id, one.state, one.tool, who(one.caller), when(one.created_at)) for one in found]
    table(("ID", "STATE", "TOOL", "CALLER", "SINCE"), rows)


@approvals.command()
@click.argument("request_id", metavar="ID")
@tenant_option
@config_option
def show(request_id: str, tenant: str, path: Path) -> None:
    """Show one request with its arguments; secrets are left out of them."""
    request = at_the_desk(path, tenant, lambda desk: found(desk, tenant, request_id))
    tell(request)
    if request.state == "waiting":
        again = f"--tenant {tenant} {request.id}"
        click.echo("\nTo approve exactly this, or to reject it:")
        click.echo(f"gatepost approvals approve {again} --digest {request.digest}")
        click.echo(f"gatepost approvals reject {again} --reason WHY")
    elif request.state == "rejected" and request.kind == "script":
        click.echo("\nTo approve exactly this after all:")
        click.echo(
            f"gatepost approvals approve --tenant {tenant} {request.id} --digest {request.digest}"
        )


@approvals.command()
@click.argument("request_id", metavar="ID")
@click.option("--digest", help="What was looked at, as `show` says it.")
@tenant_option
@config_option
def approve(request_id: str, digest: str | None, tenant: str, path: Path) -> None:
    """
    Let the call ID be made, or the script run.

    Without --digest it only shows the request. With it, what has that digest is approved, and
    nothing else.
    """
    if digest is None:
        tell(at_the_desk(path, tenant, lambda desk: found(desk, tenant, request_id)))
        click.echo(
            "\nNothing is approved yet: say --digest, as `gatepost approvals show` tells it."
        )
        return
    request = at_the_desk(
        path,
        tenant,
        lambda desk: desk.approve(tenant, request_id, Operator(administrator()), seen=digest),
    )
    if request.state == "waiting":
        click.echo(f"Approved {request.given} of {request.needed} times; it waits for another.")
    else:
        click.echo(f"{request.id} is approved: {visible(request.tool)} may run.")


@approvals.command()
@click.argument("request_id", metavar="ID")
@click.option("--reason", default="", help="Why, for the agent to read.")
@tenant_option
@config_option
def reject(request_id: str, reason: str, tenant: str, path: Path) -> None:
    """Refuse the call ID, or the script."""
    by = Operator(administrator())
    request = at_the_desk(path, tenant, lambda desk: desk.reject(tenant, request_id, by, reason))
    click.echo(f"{request.id} is rejected.")


@approvals.command()
@tenant_option
@config_option
def grants(tenant: str, path: Path) -> None:
    """List what was approved beforehand."""
    found = at_the_desk(path, tenant, lambda desk: desk.grants(tenant))
    if not found:
        click.echo(f"Nothing is granted in the tenant {tenant}.")
        return
    table(("ID", "TOOL", "CALLER", "ARGUMENTS", "LEFT", "UNTIL"), [granted(one) for one in found])


@approvals.command("revoke-grant")
@click.argument("grant_id", metavar="ID")
@tenant_option
@config_option
def revoke_grant(grant_id: str, tenant: str, path: Path) -> None:
    """End the grant ID."""
    by = Operator(administrator())
    if not at_the_desk(path, tenant, lambda desk: desk.revoke_grant(tenant, grant_id, by)):
        raise click.ClickException(f"The tenant {tenant} has no grant of that id (any more).")
    click.echo(f"The grant {visible(grant_id)} is ended.")


async def found(desk: Desk, tenant: str, request_id: str) -> Request:
    """One request; a sentence where there is none."""
    request = await desk.get(tenant, request_id)
    if request is None:
        raise Undecidable("There is no such request (any more).")
    return request


def tell(request: Request) -> None:
    """All of a request, in which nothing moves the terminal's cursor."""
    rows = [
        ("request", request.id),
        ("state", request.state),
        ("tool", f"{request.tool}  {request.title}".strip()),
        ("caller", who(request.caller)),
        ("client", request.caller.client_id or ""),
        ("acting", request.caller.actor or ""),
        ("since", when(request.created_at)),
        ("until", when(request.until)),
        ("why", request.reason),
        ("approvals", f"{request.given} of {request.needed}"),
    ]
    for name, value in rows:
        if value:
            click.echo(f"{name:<10} {visible(value)}")
    for one in request.decisions:
        click.echo(visible(f"           {one.verdict} by {who(one.by)} {one.reason}".rstrip()))
    for name, arguments in (("arguments", request.arguments), ("edited", request.edited)):
        if arguments is not None and request.kind == "call":
            click.echo(f"{name}:")
            for line in readable(arguments):
                click.echo(f"  {visible(shown(line))}")
    # Nothing but a line feed ends a line of a script: another sign would forge lines here.
    for line in (request.content or "").removesuffix("\n").split("\n") if request.content else ():
        click.echo(f"  {visible(shown(line))}")


def readable(arguments: bytes) -> list[str]:
    """JSON as lines; what is in its strings stays escaped."""
    return msgspec.json.format(arguments).decode().split("\n")


def granted(grant: Grant) -> tuple[str, ...]:
    """A grant as a line of the list."""
    pattern = grant.when or " ".join(grant.arguments.decode().split())[:40]
    left = "any" if grant.left is None else str(grant.left)
    return grant.id, grant.tool, who(grant.caller), pattern, left, when(grant.until)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Rows with a head, in columns; nothing in them moves the terminal's cursor."""
    click.echo(in_columns([head, *(tuple(map(visible, row)) for row in rows)]))


def who(party: Party) -> str:
    """Somebody by name and id."""
    return f"{party.name} ({party.subject})" if party.name else party.subject


def when(seconds: float) -> str:
    """A time in UTC; empty for what has no end."""
    return "" if seconds == float("inf") else moment(seconds)


def at_the_desk(path: Path, tenant: str, do: Callable[[Desk], Awaitable[T]]) -> T:
    """What *do* answers, with the configured stores open for it."""
    return decided(path, tenant, lambda desk, _: do(desk))


def decided(path: Path, tenant: str, do: Callable[[Desk, Config], Awaitable[T]]) -> T:
    """The same for what asks the configuration too."""
    # A server on pipes is decided about here alone: what only HTTP needs may be missing.
    config, toolbox = settled(path, beside=BESIDE)
    check_tenant(config, tenant)

    async def work() -> T:
        async with opened(config, toolbox, tenant) as desk:
            return await do(desk, config)

    configure(level="warning", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable, Undecidable) as error:
        raise click.ClickException(str(error)) from None


@asynccontextmanager
async def opened(config: Config, toolbox: Toolbox, tenant: str) -> AsyncIterator[Desk]:
    """A desk of this command's own, with the servers' record; the webhook's messages they send."""
    keyring = keyring_of(config)
    records = await open_records(plain(config.storage.database))
    relay = await open_relay(plain(config.storage.shared))
    outbound = Client(
        config.network,
        tls=Fetcher(development=config.development, network=config.network).tls,
    )
    async with aclosing(records), aclosing(relay), aclosing(outbound):
        secrets = Secrets(Vault(records, keyring))
        secrets.keep_own(own_secrets(config))
        redaction = Redaction(secrets)
        await redaction.ready(tenant)
        async with aclosing(Journal(records, keyring, redaction, config.audit)) as journal:
            reviews = Reviews(records, relay, keyring, redaction, journal, outbound)
            reviews.apply(config, toolbox.tools)
            # Here too nobody decides about calls of whoever is shut out.
            cutoffs = CutOffs(records, relay, ended=lambda new: None)
            cutoffs.configure(config.tenancy.suspended)
            await cutoffs.look()
            reviews.desk.is_cut = cutoffs.is_cut
            yield reviews.desk
