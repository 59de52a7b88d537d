"""`gatepost approvals`: list and decide approval requests on the command line."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from gatepost.audit.writer import AuditWriter
from gatepost.check.pack_loading import LoadedPacks
from gatepost.check.stdio import NOT_FOR_STDIO
from gatepost.cli.configuration import (
    administrator,
    check_tenant,
    checked_configuration,
    config_argument,
    config_option,
    tenant_option,
    visible,
)
from gatepost.cli.output import moment
from gatepost.cli.output import table as in_columns
from gatepost.config.references import resolved_setting
from gatepost.config.server_secrets import own_secrets
from gatepost.config.settings import Config
from gatepost.dashboard.escaping import plain_text
from gatepost.outbound.http_client import OutboundClient
from gatepost.policy.approvals.approval_request import (
    ApprovalGrant,
    ApprovalRequest,
    DisplayedParty,
    Operator,
    Undecidable,
)
from gatepost.policy.approvals.request_lists import USES, WaitingPage, place_at
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.revocation.watch import Revocations
from gatepost.runtime.approvals import ApprovalServices
from gatepost.runtime.stores import keyring_of
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.store import SecretStore
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.telemetry.logs import configure
from gatepost.tools.calls.redaction import Redaction
from gatepost_authz.fetch import Fetcher

T = TypeVar("T")

DECIDED_SHOWN = 20


@click.group()
def approvals() -> None:
    """
    List and decide approval requests for calls and scripts.

    Decisions are stored in the database and take effect on every running server at once.
    """


@approvals.command("list")
@click.option("--past", is_flag=True, help="List recent decisions instead.")
@click.option("--after", metavar="CURSOR", help="Continue a list, as its last line says.")
@tenant_option
@config_option
def list_(past: bool, after: str | None, tenant: str, path: Path) -> None:
    """List waiting requests, oldest first, 50 at a time."""
    position = None if after is None else place_at(after)
    if after is not None and (past or position is None):
        raise click.UsageError(
            "--after takes what the last line of a list of waiting requests says."
        )

    async def read_page(service: ApprovalService) -> WaitingPage:
        if past:
            return WaitingPage(tuple(await service.history(tenant, max_requests=DECIDED_SHOWN)))
        return await service.waiting_page(tenant, position)

    page = with_approvals(path, tenant, read_page)
    if not page.requests:
        click.echo(f"Tenant {tenant} has no {'decided' if past else 'waiting'} requests.")
        return
    rows = [
        (
            request.id,
            request.state,
            request.tool,
            party_text(request.caller),
            time_text(request.created_at),
        )
        for request in page.requests
    ]
    table(("ID", "STATE", "TOOL", "CALLER", "SINCE"), rows)
    if page.later:
        click.echo(f"\nMore requests wait: add --after {visible(page.later)}")


@approvals.command()
@click.argument("request_id", metavar="ID")
@tenant_option
@config_option
def show(request_id: str, tenant: str, path: Path) -> None:
    """Show one request with its arguments. Secrets are redacted."""
    request = with_approvals(path, tenant, lambda service: request_of(service, tenant, request_id))
    print_request(request)
    selector = f"--tenant {tenant} {request.id}{config_argument(path)}"
    if request.state == "waiting":
        click.echo("\nTo approve or reject this request:")
        click.echo(f"gatepost approvals approve {selector} --digest {request.digest}")
        click.echo(f"gatepost approvals reject {selector} --reason WHY")
    elif request.state == "rejected" and request.kind == "script":
        click.echo("\nTo approve this script anyway:")
        click.echo(f"gatepost approvals approve {selector} --digest {request.digest}")


@approvals.command()
@click.argument("request_id", metavar="ID")
@click.option("--digest", help="Digest of the request, as printed by `show`.")
@click.option("--comment", default="", help="Comment on a call, shown to the agent.")
@tenant_option
@config_option
def approve(request_id: str, digest: str | None, comment: str, tenant: str, path: Path) -> None:
    """
    Approve the call or script ID.

    Without --digest, the command only shows the request. With --digest, it approves the request
    only if the digest still matches.
    """
    if digest is None:
        print_request(
            with_approvals(path, tenant, lambda service: request_of(service, tenant, request_id))
        )
        click.echo(
            "\nNothing was approved. To approve, add --digest from `gatepost approvals show`."
        )
        return
    request = with_approvals(
        path,
        tenant,
        lambda service: service.approve(
            tenant, request_id, Operator(administrator()), seen_digest=digest, reason=comment
        ),
    )
    if request.state == "waiting":
        click.echo(
            f"Approved {request.approvals_given} of {request.needed} times. "
            "Another person must approve too."
        )
    else:
        click.echo(f"{request.id} is approved: {visible(request.tool)} can run.")


@approvals.command()
@click.argument("request_id", metavar="ID")
@click.option("--reason", default="", help="Reason, shown to the agent.")
@tenant_option
@config_option
def reject(request_id: str, reason: str, tenant: str, path: Path) -> None:
    """Reject the call or script ID."""
    by = Operator(administrator())
    request = with_approvals(
        path, tenant, lambda service: service.reject(tenant, request_id, by, reason)
    )
    click.echo(f"{request.id} is rejected.")


@approvals.command()
@tenant_option
@config_option
def grants(tenant: str, path: Path) -> None:
    """List grants in force."""
    active_grants = with_approvals(path, tenant, lambda service: service.granting.all(tenant))
    if not active_grants:
        click.echo(f"Tenant {tenant} has no grants.")
        return
    table(
        ("ID", "TOOL", "CALLER", "ARGUMENTS", "LEFT", "UNTIL"),
        [granted(grant) for grant in active_grants],
    )


@approvals.command("revoke-grant")
@click.argument("grant_id", metavar="ID")
@tenant_option
@config_option
def revoke_grant(grant_id: str, tenant: str, path: Path) -> None:
    """Revoke the grant ID."""
    by = Operator(administrator())
    if not with_approvals(path, tenant, lambda service: service.revoke_grant(tenant, grant_id, by)):
        raise click.ClickException(f"Tenant {tenant} has no grant with this id.")
    click.echo(f"Grant {visible(grant_id)} is revoked.")


async def request_of(service: ApprovalService, tenant: str, request_id: str) -> ApprovalRequest:
    """Return one request; raises Undecidable if it does not exist."""
    request = await service.get(tenant, request_id)
    if request is None:
        raise Undecidable("There is no such request.")
    return request


def print_request(request: ApprovalRequest) -> None:
    """Print a request, with control characters escaped."""
    facts = request.facts
    rows = [
        ("request", request.id),
        ("state", request.state),
        ("call", USES.get(request.use, "")),
        ("tool", f"{request.tool}  {request.title}".strip()),
        ("upstream", f"{facts.upstream}  {facts.upstream_tool}".strip() if facts else ""),
        ("definition", facts.definition if facts else ""),
        ("caller", party_text(request.caller)),
        ("client", request.caller.client_id or ""),
        ("calls itself", request.caller.client_name),
        ("acting", request.caller.actor or ""),
        ("since", time_text(request.created_at)),
        ("until", time_text(request.until)),
        ("why", request.reason),
        ("approvals", f"{request.approvals_given} of {request.needed}"),
    ]
    for name, value in rows:
        if value:
            click.echo(f"{name:<10} {visible(value)}")
    for decision in request.decisions:
        text = f"           {decision.verdict} by {party_text(decision.by)} {decision.reason}"
        click.echo(visible(text.rstrip()))
    for name, arguments in (("arguments", request.arguments), ("edited", request.edited)):
        if arguments is not None and request.kind == "call":
            click.echo(f"{name}:")
            for line in readable(arguments):
                click.echo(f"  {visible(plain_text(line))}")
    # Split at line feeds only: other line separators could forge lines here.
    for line in (request.content or "").removesuffix("\n").split("\n") if request.content else ():
        click.echo(f"  {visible(plain_text(line))}")


def readable(arguments: bytes) -> list[str]:
    """Return JSON as lines; strings stay escaped."""
    return msgspec.json.format(arguments).decode().split("\n")


def granted(grant: ApprovalGrant) -> tuple[str, ...]:
    """Return a grant as a row of the list."""
    pattern = grant.when or " ".join(grant.arguments.decode().split())[:40]
    uses = "any" if grant.left is None else str(grant.left)
    return grant.id, grant.tool, party_text(grant.caller), pattern, uses, time_text(grant.until)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns, with control characters escaped."""
    click.echo(in_columns([head, *(tuple(map(visible, row)) for row in rows)]))


def party_text(party: DisplayedParty) -> str:
    """Return a person's name and id."""
    return f"{party.name} ({party.subject})" if party.name else party.subject


def time_text(seconds: float) -> str:
    """Return a time in UTC; empty if there is none."""
    return "" if seconds == float("inf") else moment(seconds)


def with_approvals(path: Path, tenant: str, do: Callable[[ApprovalService], Awaitable[T]]) -> T:
    """Run *do* with the configured stores open, and return its result."""
    return decided(path, tenant, lambda services, _: do(services.service))


def decided(path: Path, tenant: str, do: Callable[[ApprovalServices, Config], Awaitable[T]]) -> T:
    """Run *do*, which also needs the configuration, with the stores open."""
    # For `gatepost stdio` this is the only way to decide, so HTTP settings can be missing.
    config, loaded_packs = checked_configuration(path, ignored=NOT_FOR_STDIO)
    check_tenant(config, tenant)

    async def work() -> T:
        async with opened(config, loaded_packs, tenant) as services:
            return await do(services, config)

    configure(level="warning", form="console")
    try:
        return asyncio.run(work())
    except (StoreRefused, StoreUnavailable, Undecidable) as error:
        raise click.ClickException(str(error)) from None


@asynccontextmanager
async def opened(
    config: Config, loaded_packs: LoadedPacks, tenant: str
) -> AsyncIterator[ApprovalServices]:
    """Open the approval services with the servers' records; servers send its webhook messages."""
    keyring = keyring_of(config)
    records = await open_records(resolved_setting(config.storage.database))
    shared_store = await open_shared_store(resolved_setting(config.storage.shared))
    outbound = OutboundClient(
        config.network,
        tls=Fetcher(development=config.development, network=config.network).tls,
    )
    async with aclosing(records), aclosing(shared_store), aclosing(outbound):
        secrets = SecretCache(SecretStore(records, keyring))
        secrets.keep_own(own_secrets(config))
        redaction = Redaction(secrets)
        await redaction.prepare(tenant)
        async with aclosing(AuditWriter(records, keyring, redaction, config.audit)) as writer:
            revocations = Revocations(records, on_revoked=lambda new: None)
            revocations.configure(config.tenancy.suspended)
            await revocations.read_changes()
            services = ApprovalServices(
                records,
                shared_store,
                keyring,
                redaction=redaction,
                writer=writer,
                outbound=outbound,
                # Requests of revoked callers cannot be approved here either.
                is_revoked=revocations.is_refused,
            )
            services.apply(config, loaded_packs.tools)
            yield services
