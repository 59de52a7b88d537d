"""`gatepost revoke`: takes back the tokens of a tenant, a person or a client, at every server."""

import time
from pathlib import Path
from typing import NamedTuple

import click

from gatepost.approvals.grants import LONGEST_S as GRANTED_S
from gatepost.audit.record import Person
from gatepost.commands.configuration import administrator, config_option, visible
from gatepost.commands.stores import Stores, at_stores, check_known, configured, moment, table
from gatepost.cutoffs.order import revocation, seconds_of
from gatepost.cutoffs.watch import tell
from gatepost.mcp.legacy import LIFETIME_S
from gatepost.settings import Config
from gatepost.stores.cutoffs import FOR_EVER, CutOff


class Asked(NamedTuple):
    """Whose tokens, and how."""

    tenant: str
    issuer: str
    subject: str
    client: str
    reason: str
    leeway_s: float
    block_s: float


class Span(click.ParamType[float]):
    """A span of time: `90s`, `30m`, `2h`, `7d`, `ever`."""

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
@click.option("--tenant", default="", help="Whose: a tenant's id.")
@click.option("--subject", default="", help="Whose: the id of a person or program at its issuer.")
@click.option("--client", default="", help="Whose: a client's id.")
@click.option("--issuer", default="", help="Only tokens of this issuer.")
@click.option("--reason", default="", help="Why, for the list and the audit.")
@click.option(
    "--for", "block_s", type=Span(), default=0.0, help="Refuse new tokens too: 2h, 7d, ever."
)
@click.option(
    "--leeway",
    "leeway_s",
    type=click.FloatRange(0, 300),
    default=0.0,
    help="Seconds by which the issuer's clock may be ahead of this one.",
)
@click.option("--list", "wants_list", is_flag=True, help="Show what is taken back.")
@click.option("--undo", metavar="ID", default="", help="Let what this one refuses pass again.")
@config_option
def revoke(wants_list: bool, undo: str, path: Path, **given: object) -> None:
    """
    Refuse every token that was issued before now, at every server within a second.

    Of several of --tenant, --subject and --client, all must fit. Calls, streams, sessions, tasks,
    requests for approval and grants of these callers end, and so does what they approved and nobody
    has used yet; what a call has done stays done. New sign-ins work, unless --for refuses them too.
    """
    asked = Asked(**given)  # type: ignore[arg-type]  # click has made them of these types
    named = asked.tenant or asked.subject or asked.client
    if bool(named) + wants_list + bool(undo) != 1:
        raise click.UsageError(
            "Say whose tokens (--tenant, --subject, --client), or --list, or --undo ID."
        )
    config = configured(path)
    if wants_list:
        at_stores(config, shown)
    elif undo:
        at_stores(config, lambda stores: undone(undo, stores))
    else:
        at_stores(config, lambda stores: revoked(asked, config, stores))


async def revoked(asked: Asked, config: Config, stores: Stores) -> None:
    """Take back, and say what that means."""
    if asked.tenant:
        await check_known(asked.tenant, config, stores.records)
    now = time.time()
    reach = CutOff(
        id="",
        tenant=asked.tenant,
        issuer=asked.issuer,
        subject=asked.subject,
        client=asked.client,
        made_at=now,
        made_by=administrator(),
        reason=asked.reason,
    )
    cut = revocation(
        reach,
        now=now,
        leeway_s=asked.leeway_s,
        longest_s=longest_s(config, asked.issuer),
        kept_s=kept_s(config),
        block_s=asked.block_s,
    )
    await stores.records.cutoffs.put(cut)
    await tell(stores.relay)
    click.echo(
        f"Refused at every server within a second: {whose(cut)}, issued up to {moment(cut.before)}."
    )
    if cut.blocked_until >= FOR_EVER:
        click.echo("New ones are refused too, until this is undone.")
    elif cut.blocked_until:
        click.echo(f"New ones are refused too, until {moment(cut.blocked_until)}.")
    else:
        click.echo("New sign-ins work.")
    click.echo(f"Take it back with: gatepost revoke --undo {cut.id}")
    await on_record(stores, cut, "revoked")


async def undone(cut_id: str, stores: Stores) -> None:
    """Take one back."""
    every = await stores.records.cutoffs.all()
    cuts = [cut for cut in every if cut.id == cut_id and not cut.suspends]
    if not cuts:
        raise click.ClickException(
            f"There is no revocation {visible(cut_id)}: `gatepost revoke --list` shows them."
        )
    for cut in cuts:
        await stores.records.cutoffs.delete(cut.tenant, cut.id)
        await tell(stores.relay)
        click.echo(f"Not refused any more: {whose(cut)}, as far as their time is not over.")
        await on_record(stores, cut, "undone")


async def on_record(stores: Stores, cut: CutOff, outcome: str) -> None:
    """Who was shut out, or let in again; the person stands where details can be erased."""
    about = Person(cut.issuer, cut.subject) if cut.subject else None
    details = {"id": cut.id, "client": cut.client, "issuer": cut.issuer}
    if cut.blocked_until:
        details["until"] = moment(cut.blocked_until)
    told = {name: value for name, value in details.items() if value}
    reason = cut.reason if outcome == "revoked" else ""
    await stores.note(cut.tenant, "cutoff", outcome, about=about, reason=reason, details=told)


async def shown(stores: Stores) -> None:
    """List them, the oldest first."""
    now = time.time()
    cuts = [one for one in await stores.records.cutoffs.all() if not one.suspends]
    rows = [
        (one.id, whose(one), moment(one.before), block(one, now), visible(one.made_by), *why(one))
        for one in cuts
        if one.expires_at is None or one.expires_at > now
    ]
    if not rows:
        click.echo("Nothing is revoked.")
        return
    click.echo(table([("ID", "TOKENS", "ISSUED UP TO", "NEW ONES", "BY", "REASON"), *rows]))


def why(cut: CutOff) -> tuple[str]:
    """The reason as one column."""
    return (visible(cut.reason),)


def block(cut: CutOff, now: float) -> str:
    """Until when newer tokens are refused, in a word."""
    if cut.blocked_until <= now:
        return "accepted"
    if cut.blocked_until >= FOR_EVER:
        return "refused for ever"
    return f"refused until {moment(cut.blocked_until)}"


def whose(cut: CutOff) -> str:
    """Whose tokens, as people read it."""
    selectors = {
        "tenant": cut.tenant,
        "subject": cut.subject,
        "client": cut.client,
        "issuer": cut.issuer,
    }
    named = [f"{name} {visible(value)}" for name, value in selectors.items() if value]
    return "tokens of " + ", ".join(named)


def kept_s(config: Config) -> float:
    """How long what a token was good for may outlive it: sessions, visits, tasks and grants."""
    return max(float(LIFETIME_S), GRANTED_S, config.dashboard.session_s, config.tasks.ttl_s)


def longest_s(config: Config, issuer: str) -> float:
    """How long a token can live that these settings accept, its leeway included."""
    named = [one for one in config.issuers if not issuer or one.issuer == issuer]
    return float(max((one.max_lifetime_s + one.leeway_s for one in named), default=86_400))
