"""`gatepost tenant`: which tenants there are, shut and open, and the end of one."""

import asyncio
import time
from pathlib import Path

import click
import msgspec

from gatepost.commands.configuration import config_option
from gatepost.commands.stores import (
    administrator,
    at_stores,
    checked,
    configured,
    moment,
    table,
    visible,
)
from gatepost.cutoffs.order import SUSPENDED, revocation, suspension
from gatepost.cutoffs.watch import tell
from gatepost.erasure import Erasure, Found, Unfinished
from gatepost.mcp.legacy import LIFETIME_S
from gatepost.renewal import known_tenants
from gatepost.settings import Config
from gatepost.stores.api import Records, Relay
from gatepost.stores.cutoffs import CutOff

SETTLE_S = 2.0
"""When every server has shut a tenant whose database answers, twice as long as it takes."""
ERASED = "erased"
LONGEST_S = 86_400.0

reason_option = click.option("--reason", default="", help="Why, for the list and the audit.")
tenant_argument = click.argument("tenant_id", metavar="TENANT")


class Row(msgspec.Struct, frozen=True):
    """What may be said of a tenant."""

    tenant: str
    state: str
    known_by: str
    suspended_at: float | None = None
    suspended_by: str = ""
    reason: str = ""


@click.group()
def tenant() -> None:
    """
    List, suspend, resume and erase tenants.

    A suspension is kept in the database and holds at every running server within a second.
    """


@tenant.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@config_option
def list_(as_json: bool, path: Path) -> None:
    """List the tenants that the configuration names, and those that keep anything."""
    config = configured(path)
    rows = at_stores(config, lambda records, _: rows_of(config, records))
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    if not rows:
        click.echo("There are no tenants yet.")
        return
    lines = [
        (
            row.tenant,
            row.state,
            row.known_by,
            "" if row.suspended_at is None else moment(row.suspended_at),
            visible(row.suspended_by),
            visible(row.reason),
        )
        for row in rows
    ]
    click.echo(table([("TENANT", "STATE", "KNOWN BY", "SINCE", "BY", "REASON"), *lines]))


@tenant.command()
@tenant_argument
@reason_option
@config_option
def suspend(tenant_id: str, reason: str, path: Path) -> None:
    """Shut TENANT: its callers are refused, and everything of theirs that runs or waits ends."""
    config = configured(path)
    if not at_stores(
        config, lambda records, relay: shut(tenant_id, reason, config, records, relay)
    ):
        click.echo(f"The tenant {tenant_id} is suspended already.")
        return
    click.echo(f"The tenant {tenant_id} is suspended, at every server within a second.")


@tenant.command()
@tenant_argument
@config_option
def resume(tenant_id: str, path: Path) -> None:
    """Open TENANT again; what was ended stays ended."""
    config = configured(path)

    async def do(records: Records, relay: Relay) -> bool:
        there = await records.cutoffs.delete(tenant_id, SUSPENDED)
        await tell(relay)
        return there

    there = at_stores(config, do)
    if tenant_id in config.tenancy.suspended:
        raise click.ClickException(
            f"The configuration suspends {tenant_id} (`tenancy.suspended`): take it out there, and "
            "reload the servers (SIGHUP)."
        )
    if not there:
        raise click.ClickException(f"No tenant {visible(tenant_id)} is suspended.")
    click.echo(f"The tenant {tenant_id} is open again, at every server within a second.")


@tenant.command()
@tenant_argument
@click.option("--yes", is_flag=True, help="Do it. Without this, what would go is counted only.")
@reason_option
@config_option
def erase(tenant_id: str, yes: bool, reason: str, path: Path) -> None:
    """
    Remove everything that TENANT keeps, for good.

    It is suspended first and stays so; servers may run meanwhile. What was interrupted is finished
    by doing it again.
    """
    config = configured(path)
    try:
        done = at_stores(
            config, lambda records, relay: erased(tenant_id, yes, reason, config, records, relay)
        )
    except Unfinished:
        raise click.ClickException(
            f"Something still writes for the tenant {tenant_id}. It is suspended; do it again when "
            "`[listen] drain_s` is over, or the server that runs it is stopped."
        ) from None
    except OSError as error:
        raise click.ClickException(f"A folder cannot be removed: {error.strerror}.") from None
    if not done:
        raise click.exceptions.Exit(1)


async def shut(tenant_id: str, reason: str, config: Config, records: Records, relay: Relay) -> bool:
    """Suspend a tenant; False when it is suspended already."""
    checked(tenant_id, config, await records.estate.tenants())
    cut = suspension(tenant_id, now=time.time(), by=administrator(), reason=reason)
    put = await records.cutoffs.put(cut)
    await tell(relay)
    return put


async def erased(
    tenant_id: str, yes: bool, reason: str, config: Config, records: Records, relay: Relay
) -> bool:
    """Erase a tenant, saying what is done; False when that was not wanted yet."""
    checked(tenant_id, config, await records.estate.tenants())
    erasure = Erasure(tenant_id, records, relay, Path(config.workspace.root))
    before = await erasure.found()
    tell_what_is_there(tenant_id, before)
    if not yes:
        click.echo("Nothing is removed yet. To remove all of it, for good: --yes", err=True)
        return False
    await shut(tenant_id, reason or "being erased", config, records, relay)
    await records.cutoffs.put(everything_before(tenant_id))
    await tell(relay)
    click.echo(f"The tenant {tenant_id} is suspended.")
    # Servers hear of it within a second, and end what they do.
    await asyncio.sleep(SETTLE_S)
    await erasure.run(click.echo)
    click.echo(
        f"The tenant {tenant_id} is erased. It stays suspended until "
        f"`gatepost tenant resume {tenant_id}`."
    )
    return True


def tell_what_is_there(tenant_id: str, found: Found) -> None:
    """What would go, or goes."""
    if found.is_nothing:
        click.echo(f"The tenant {tenant_id} keeps nothing.")
        return
    click.echo(f"The tenant {tenant_id} keeps:")
    for line in found.lines():
        click.echo(f"  {line}")


def everything_before(tenant_id: str) -> CutOff:
    """Tokens and sessions from before the erasure; whoever comes after it begins anew."""
    now = time.time()
    reach = CutOff(id="", tenant=tenant_id, made_at=now, made_by=administrator(), reason=ERASED)
    return revocation(
        reach, now=now, leeway_s=0.0, longest_s=LONGEST_S, kept_s=float(LIFETIME_S), block_s=0.0
    )


async def rows_of(config: Config, records: Records) -> list[Row]:
    """Every tenant that anything knows of, by its id."""
    configured_ones = known_tenants(config) | {config.stdio.tenant} - {""}
    cuts = {one.tenant: one for one in await records.cutoffs.all() if one.suspends}
    kept = await records.estate.tenants()
    shut_here = set(config.tenancy.suspended)
    rows = []
    for name in sorted({*configured_ones, *cuts, *kept, *shut_here}):
        cut = cuts.get(name)
        rows.append(
            Row(
                name,
                "suspended" if cut or name in shut_here else "open",
                "configuration" if name in configured_ones | shut_here else "use",
                None if cut is None else cut.made_at,
                cut.made_by if cut else "tenancy.suspended" if name in shut_here else "",
                cut.reason if cut else "",
            )
        )
    return rows
