"""`gatepost tenant`: which tenants there are, shut and open, and the end of one."""

import time
from pathlib import Path

import click
import msgspec

from gatepost.commands import erase
from gatepost.commands.configuration import administrator, config_option, visible
from gatepost.commands.stores import Stores, at_stores, check_known, configured, moment, table
from gatepost.cutoffs.order import SUSPENDED, suspension
from gatepost.cutoffs.watch import tell
from gatepost.renewal import known_tenants
from gatepost.settings import Config
from gatepost.stores.api import Records
from gatepost_authz.config import TENANT_ID

tenant_argument = click.argument("tenant_id", metavar="TENANT")
reason_option = click.option("--reason", default="", help="Why, for the list and the record.")


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


tenant.add_command(erase.erase)


@tenant.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@config_option
def list_(as_json: bool, path: Path) -> None:
    """List the tenants that the configuration names, and those that keep anything."""
    config = configured(path)
    rows = at_stores(config, lambda stores: rows_of(config, stores.records))
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
    if at_stores(config, lambda stores: shut(tenant_id, reason, config, stores)):
        click.echo(f"The tenant {tenant_id} is suspended, at every server within a second.")
    else:
        click.echo(f"The tenant {tenant_id} is suspended already.")


@tenant.command()
@tenant_argument
@config_option
def resume(tenant_id: str, path: Path) -> None:
    """
    Open TENANT again.

    Tokens and visits to the dashboard that have not expired are good again; calls, streams, tasks
    and requests that were ended stay so.
    """
    config = configured(path)

    async def do(stores: Stores) -> bool:
        there = await stores.records.cutoffs.delete(tenant_id, SUSPENDED)
        await tell(stores.relay)
        if there:
            await stores.note(tenant_id, "tenant", "resumed")
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


async def shut(tenant_id: str, reason: str, config: Config, stores: Stores) -> bool:
    """Suspend a tenant; False when it is suspended already."""
    await check_known(tenant_id, config, stores.records)
    cut = suspension(tenant_id, now=time.time(), by=administrator(), reason=reason)
    put = await stores.records.cutoffs.put(cut)
    await tell(stores.relay)
    if put:
        await stores.note(tenant_id, "tenant", "suspended", reason=reason)
    return put


async def rows_of(config: Config, records: Records) -> list[Row]:
    """Every tenant that anything knows of, by its id."""
    named = known_tenants(config) | {config.stdio.tenant} - {""}
    cuts = {one.tenant: one for one in await records.cutoffs.all() if one.suspends}
    kept = [one for one in await records.estate.tenants() if TENANT_ID.fullmatch(one)]
    shut_here = set(config.tenancy.suspended)
    rows = []
    for name in sorted({*named, *cuts, *kept, *shut_here}):
        cut = cuts.get(name)
        row = Row(
            tenant=name,
            state="suspended" if cut or name in shut_here else "open",
            known_by="configuration" if name in named | shut_here else "use",
        )
        if cut is not None:
            row = msgspec.structs.replace(
                row, suspended_at=cut.made_at, suspended_by=cut.made_by, reason=cut.reason
            )
        elif name in shut_here:
            row = msgspec.structs.replace(row, suspended_by="tenancy.suspended")
        rows.append(row)
    return rows
