"""`gatepost revoke`: revoke the tokens of a tenant, a person or a client at every server."""

import time
from pathlib import Path
from typing import NamedTuple

import click

from gatepost.audit.record import RecordedPerson
from gatepost.cli.configuration import administrator, config_argument, config_option, visible
from gatepost.cli.output import moment, table
from gatepost.cli.stores import OpenStores, check_known, configured_server, run_with_stores
from gatepost.config.settings import Config
from gatepost.mcp.sessions.session import LIFETIME_S
from gatepost.policy.approvals.grants import LONGEST_S as GRANTED_S
from gatepost.policy.revocation.revocation_records import revocation, seconds_of
from gatepost.runtime.recent_callers import RecentCallers
from gatepost.storage.change_poller import notify
from gatepost.storage.revocations import NEVER_EXPIRES, RevocationRecord

CALLERS_SEARCHED = 12_000
"""The recent callers that are compared with `--subject`: 60 of each of 200 tenants."""
SIMILAR_SHOWN = 3


class RevocationTarget(NamedTuple):
    """The selected tokens and the options."""

    tenant: str
    issuer: str
    subject: str
    client: str
    reason: str
    leeway_s: float
    block_s: float


class Duration(click.ParamType[float]):
    """A time span: `90s`, `30m`, `2h`, `7d`, `forever`."""

    name = "span"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return seconds_of(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


@click.command()
@click.option("--tenant", default="", help="Revoke tokens of this tenant.")
@click.option(
    "--subject",
    default="",
    help="Revoke tokens of this person or program: the id in the token, such as `sub`.",
)
@click.option("--client", default="", help="Revoke tokens of this client id.")
@click.option("--issuer", default="", help="Revoke only tokens of this issuer.")
@click.option("--reason", default="", help="Reason, for --list and the audit log.")
@click.option(
    "--for",
    "block_s",
    type=Duration(),
    default=0.0,
    help="Also refuse new tokens for this time: 2h, 7d, or forever.",
)
@click.option(
    "--leeway",
    "leeway_s",
    type=click.FloatRange(0, 300),
    default=0.0,
    help="Seconds that the issuer's clock can be ahead of this machine's clock.",
)
@click.option("--list", "wants_list", is_flag=True, help="List revocations and holds.")
@click.option("--undo", metavar="ID", default="", help="Undo a revocation or hold.")
@config_option
def revoke(wants_list: bool, undo: str, path: Path, **options: object) -> None:
    """
    Revoke all tokens issued before now, at every server within a second.

    If you give several of --tenant, --subject and --client, a token must match all of them. The
    callers' calls, streams, sessions, tasks, approval requests and grants end, and the approvals
    that they gave are withdrawn unless they were used. Completed calls are not undone. New
    sign-ins work, unless you add --for.
    """
    target = RevocationTarget(**options)  # type: ignore[arg-type]  # click has made them of these types
    selects = target.tenant or target.subject or target.client
    if bool(selects) + wants_list + bool(undo) != 1:
        raise click.UsageError("Give --tenant, --subject or --client, or --list, or --undo ID.")
    config = configured_server(path)
    if wants_list:
        run_with_stores(config, print_revocations)
    elif undo:
        run_with_stores(config, lambda stores: undone(undo, stores))
    else:
        undo_options = config_argument(path)
        run_with_stores(config, lambda stores: revoked(target, config, stores, undo_options))


async def revoked(
    target: RevocationTarget, config: Config, stores: OpenStores, undo_options: str
) -> None:
    """Revoke the selected tokens; print the effect, and the command that undoes it."""
    if target.tenant:
        await check_known(target.tenant, config, stores.records)
    if target.subject:
        await check_subject(target, stores)
    now = time.time()
    selectors = RevocationRecord(
        id="",
        tenant=target.tenant,
        issuer=target.issuer,
        subject=target.subject,
        client=target.client,
        created_at=now,
        created_by=administrator(),
        reason=target.reason,
    )
    record = revocation(
        selectors,
        now=now,
        leeway_s=target.leeway_s,
        longest_s=longest_s(config, target.issuer),
        kept_s=kept_s(config),
        block_s=target.block_s,
    )
    await stores.records.revocations.put(record)
    await notify(stores.shared_store)
    click.echo(
        f"Revoked at every server within a second: {tokens_text(record)}, "
        f"issued up to {moment(record.before)}."
    )
    if record.blocked_until >= NEVER_EXPIRES:
        click.echo("New tokens are also refused, until you undo this.")
    elif record.blocked_until:
        click.echo(f"New tokens are also refused until {moment(record.blocked_until)}.")
    else:
        click.echo("New sign-ins work.")
    click.echo(f"To undo: gatepost revoke --undo {record.id}{undo_options}")
    await on_record(stores, record, "revoked")


async def check_subject(target: RevocationTarget, stores: OpenStores) -> None:
    """
    Warn if no recent caller has the subject, and name the callers that may be meant.

    Operators know people by name. A revocation of `alice` would leave the tokens of an Alice whose
    subject is a UUID valid.
    """
    if any(record.subject == target.subject for record in await stores.records.revocations.all()):
        return  # Revoked callers are removed from the recent ones.
    recent_callers = RecentCallers(
        stores.records, is_refused=lambda _: False, is_out=lambda _: False
    )
    callers = [
        caller
        for tenant, caller in await recent_callers.everywhere(CALLERS_SEARCHED)
        if target.tenant in {"", tenant}
    ]
    if any(target.subject in {caller.subject, caller.actor} for caller in callers):
        return
    similar = {
        f"{caller.subject} ({caller.name})"
        for caller in callers
        if target.subject.casefold() in caller.name.casefold()
    }
    hint = f" Did you mean {' or '.join(sorted(similar)[:SIMILAR_SHOWN])}?" if similar else ""
    click.echo(
        visible(
            f"Warning: No recent caller has the subject {target.subject}. A subject is the id in "
            f"the token (`sub`, Entra `oid`, Okta `uid`), not a user name.{hint}"
        ),
        err=True,
    )


async def undone(revocation_id: str, stores: OpenStores) -> None:
    """Undo a revocation or hold."""
    every = await stores.records.revocations.all()
    revocations = [record for record in every if record.id == revocation_id and not record.suspends]
    if not revocations:
        raise click.ClickException(
            f"There is no revocation {visible(revocation_id)}. Run `gatepost revoke --list`."
        )
    for record in revocations:
        await stores.records.revocations.delete(record.tenant, record.id)
        await notify(stores.shared_store)
        message = "Hold ended for calls with" if record.is_hold else "Revocation undone for"
        click.echo(f"{message} {tokens_text(record)}. Expired tokens are still refused.")
        await on_record(stores, record, "undone")


async def on_record(stores: OpenStores, record: RevocationRecord, outcome: str) -> None:
    """Record the revocation; the person is in a field that can be erased."""
    person = RecordedPerson(record.issuer, record.subject) if record.subject else None
    details = {"id": record.id, "client": record.client, "issuer": record.issuer}
    if record.blocked_until:
        details["until"] = moment(record.blocked_until)
    filled = {name: value for name, value in details.items() if value}
    reason = record.reason if outcome == "revoked" else ""
    await stores.note(
        record.tenant, "revocation", outcome, person=person, reason=reason, details=filled
    )


async def print_revocations(stores: OpenStores) -> None:
    """Print all revocations and holds, oldest first."""
    now = time.time()
    revocations = [
        record for record in await stores.records.revocations.all() if not record.suspends
    ]
    rows = [
        (
            record.id,
            tokens_text(record),
            *effect(record, now),
            visible(record.created_by),
            *reason_column(record),
        )
        for record in revocations
        if record.expires_at is None or record.expires_at > now
    ]
    if not rows:
        click.echo("There are no revocations.")
        return
    click.echo(table([("ID", "TOKENS", "ISSUED UP TO", "NEW TOKENS", "BY", "REASON"), *rows]))


def reason_column(record: RevocationRecord) -> tuple[str]:
    """Return the reason as one column."""
    return (visible(record.reason),)


def effect(record: RevocationRecord, now: float) -> tuple[str, str]:
    """Return which tokens are refused, and whether newer tokens are, as two columns."""
    if record.is_hold:
        return "none", f"calls held until {moment(record.expires_at or now)}"
    return moment(record.before), block(record, now)


def block(record: RevocationRecord, now: float) -> str:
    """Return until when newer tokens are refused."""
    if record.blocked_until <= now:
        return "accepted"
    if record.blocked_until >= NEVER_EXPIRES:
        return "refused permanently"
    return f"refused until {moment(record.blocked_until)}"


def tokens_text(record: RevocationRecord) -> str:
    """Return the selectors as text."""
    selectors = {
        "tenant": record.tenant,
        "subject": record.subject,
        "client": record.client,
        "issuer": record.issuer,
    }
    texts = [f"{name} {visible(value)}" for name, value in selectors.items() if value]
    return "tokens of " + ", ".join(texts)


def kept_s(config: Config) -> float:
    """Return how long sessions, tasks and grants can outlive their token."""
    return max(float(LIFETIME_S), GRANTED_S, config.dashboard.session_s, config.tasks.ttl_s)


def longest_s(config: Config, issuer: str) -> float:
    """Return the longest lifetime of a token that these settings accept, with leeway."""
    issuers = [
        issuer_settings
        for issuer_settings in config.issuers
        if not issuer or issuer_settings.issuer == issuer
    ]
    return float(
        max((settings.max_lifetime_s + settings.leeway_s for settings in issuers), default=86_400)
    )
