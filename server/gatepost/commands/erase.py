"""`gatepost tenant erase`: the end of a tenant, or of what is kept about one person of it."""

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

import click

from gatepost.approvals.erasure import forget
from gatepost.audit.erasure import Erasure as Record
from gatepost.callers import forget_person
from gatepost.commands.configuration import administrator, config_option
from gatepost.commands.stores import EVERY_TENANT, Stores, at_stores, configured, doubts
from gatepost.config.references import plain
from gatepost.cutoffs.order import revocation, suspension
from gatepost.cutoffs.watch import tell
from gatepost.erasure import Erasure, Found, Unfinished
from gatepost.mcp.keeper import owner_of
from gatepost.mcp.legacy import LIFETIME_S
from gatepost.settings import Config
from gatepost.stores.api import StoreUnavailable
from gatepost.stores.backends import scheme_of
from gatepost.stores.cutoffs import CutOff
from gatepost.stores.estate import Person
from gatepost.stores.sql.sqlite import let_go
from gatepost_authz.caller import SubjectKind, TenantContext

SETTLE_S = 2.0
"""When every server has shut a tenant whose database answers, twice as long as it takes."""
LONGEST_S = 86_400.0
STILL_THERE = (
    "What was removed can still be read from the file beside the database (-wal), because somebody "
    "reads the database at the moment. Do it again later."
)
NOT_YET = "Nothing is removed yet. To remove all of it, for good: --yes"


@click.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--subject", default="", help="Only what is kept about this person or program.")
@click.option("--issuer", default="", help="Whose id the subject is; needed with --subject.")
@click.option("--yes", is_flag=True, help="Do it. Without this, what would go is counted only.")
@click.option("--reason", default="", help="Why, for the record.")
@config_option
def erase(  # its options
    tenant_id: str, subject: str, issuer: str, yes: bool, reason: str, path: Path
) -> None:
    """
    Remove everything that TENANT keeps, for good; or what is kept about one person of it.

    It is suspended first and stays so; servers may run meanwhile. What was interrupted is finished
    by doing it again. Of the record of what happened the details go, and the record stays.
    """
    if bool(subject) != bool(issuer):
        raise click.UsageError("--subject and --issuer go together: an id is its issuer's own.")
    config = configured(path)

    async def do(stores: Stores) -> bool:
        doubt = await doubts(tenant_id, config, stores.records)
        # Its files may be all that is left of a tenant.
        if doubt and (subject or (await place_of(tenant_id, config, stores).found()).is_nothing):
            raise click.ClickException(f"{doubt} Nothing is erased, as there is nothing.")
        if subject:
            return await forgotten(Whom(tenant_id, issuer, subject), yes, reason, stores)
        return await erased(tenant_id, yes, reason, config, stores)

    try:
        done = at_stores(config, do)
    except Unfinished:
        raise click.ClickException(
            f"Something still writes for the tenant {tenant_id}. It is suspended; do it again when "
            "its calls have ended, or the server that runs them is stopped."
        ) from None
    except OSError as error:
        raise click.ClickException(f"A folder cannot be removed: {error.strerror}.") from None
    if not done:
        click.echo(NOT_YET, err=True)
        raise click.exceptions.Exit(1)
    overwrite(plain(config.storage.database))


def overwrite(database: str) -> None:
    """Leave nothing of it in what SQLite keeps beside its file."""
    if scheme_of(database) != "sqlite":
        return
    try:
        done = let_go(database)
    except (sqlite3.Error, StoreUnavailable):
        done = False
    if not done:
        click.echo(STILL_THERE, err=True)


async def erased(tenant_id: str, yes: bool, reason: str, config: Config, stores: Stores) -> bool:
    """Erase a tenant, saying what is done; False when that was not wanted yet."""
    records, relay = stores.records, stores.relay
    erasure = place_of(tenant_id, config, stores)
    tell_what_is_there(tenant_id, await erasure.found())
    if not yes:
        return False
    now, by = time.time(), administrator()
    shut = suspension(tenant_id, now=now, by=by, reason=reason or "being erased")
    if await records.cutoffs.put(shut):
        await stores.note(tenant_id, "tenant", "suspended", reason=shut.reason)
    await records.cutoffs.put(everything_before(tenant_id, now, by))
    await tell(relay)
    click.echo(f"The tenant {tenant_id} is suspended.")
    # Servers hear of it within a second, and end what they do.
    await asyncio.sleep(SETTLE_S)
    await erasure.run(click.echo)
    if stores.keyring is not None:
        gone = await Record(records, stores.keyring).erase_tenant(tenant_id)
        click.echo(f"erased the details of {gone} records of what happened")
        # Behind the others, so that who did it stays on record.
        await stores.note(tenant_id, "tenant", "erased", reason=reason)
    elif await records.of(tenant_id).trail.head() is not None:
        raise unproven()
    click.echo(
        f"The tenant {tenant_id} is erased. It stays suspended until "
        f"`gatepost tenant resume {tenant_id}`."
    )
    return True


def place_of(tenant_id: str, config: Config, stores: Stores) -> Erasure:
    """All that the tenant keeps, to be counted or removed."""
    return Erasure(tenant_id, stores.records, stores.relay, Path(config.workspace.root))


class Whom(NamedTuple):
    """One person of a tenant."""

    tenant: str
    issuer: str
    subject: str


async def forgotten(whom: Whom, yes: bool, reason: str, stores: Stores) -> bool:
    """Erase what is kept about one person; False when that was not wanted yet."""
    tenant_id, issuer, subject = whom
    records, mine = stores.records, owned(tenant_id, issuer, subject)
    counted = await records.estate.count_of(tenant_id, mine)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(counted.items())) or "nothing"
    click.echo(f"The tenant {tenant_id} keeps of this person: {told}, and what is on record.")
    if not yes:
        return False
    cut = everything_before(tenant_id, time.time(), administrator(), issuer=issuer, subject=subject)
    await records.cutoffs.put(cut)
    await tell(stores.relay)
    await asyncio.sleep(SETTLE_S)
    gone = 0
    while some := await records.estate.clear_of(tenant_id, mine):
        gone += some
    gone += await forget(records.of(tenant_id), issuer, subject)
    click.echo(f"removed {gone} records")
    if await forget_person(records.of(tenant_id), issuer, subject):
        click.echo("forgot that this person has called lately")
    click.echo("Files in the tenant's workspace are no one person's, and stay.")
    if stores.keyring is not None:
        record = Record(records, stores.keyring)
        # Also where that stands which concerns no tenant alone, as a revocation by subject.
        both = (tenant_id, EVERY_TENANT)
        details = sum([await record.erase_subject(one, issuer, subject) for one in both])
        click.echo(f"erased the details of {details} records of what happened")
        await stores.note(tenant_id, "tenant", "person erased", reason=reason)
    elif await records.of(tenant_id).trail.head() is not None:
        raise unproven()
    return True


def unproven() -> click.ClickException:
    """Why the details of records stay."""
    return click.ClickException(
        "All but the details in the record of what happened is gone: without the key ring "
        "(`keys.ring`) they cannot be erased in a way that can be proved."
    )


def owned(tenant_id: str, issuer: str, subject: str) -> Person:
    """Whose records go; a machine of the same id is told apart everywhere else, and goes too."""
    kinds: tuple[SubjectKind, ...] = ("user", "client")
    callers = [
        TenantContext(
            tenant_id=tenant_id,
            issuer=issuer,
            subject=subject,
            subject_kind=kind,
            resource="",
            expires_at=0,
        )
        for kind in kinds
    ]
    return Person(issuer, subject, tuple(owner_of(caller) for caller in callers))


def everything_before(
    tenant_id: str, now: float, by: str, *, issuer: str = "", subject: str = ""
) -> CutOff:
    """Tokens and sessions from before the erasure; whoever comes after it begins anew."""
    reach = CutOff(
        id="",
        tenant=tenant_id,
        issuer=issuer,
        subject=subject,
        made_at=now,
        made_by=by,
        reason="erased",
    )
    return revocation(
        reach, now=now, leeway_s=0.0, longest_s=LONGEST_S, kept_s=float(LIFETIME_S), block_s=0.0
    )


def tell_what_is_there(tenant_id: str, found: Found) -> None:
    """What would go, or goes."""
    if found.is_nothing:
        click.echo(f"The tenant {tenant_id} keeps nothing but the record of what happened.")
        return
    click.echo(f"The tenant {tenant_id} keeps:")
    for line in found.lines():
        click.echo(f"  {line}")
