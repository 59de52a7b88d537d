"""`gatepost tenant`: list, suspend, resume and erase tenants."""

import time
from pathlib import Path

import click
import msgspec

from gatepost.cli import erasure
from gatepost.cli.configuration import administrator, config_option, visible
from gatepost.cli.output import moment, table
from gatepost.cli.stores import OpenStores, check_known, configured_server, run_with_stores
from gatepost.config.settings import Config
from gatepost.policy.revocation.revocation_records import SUSPENDED, suspension
from gatepost.runtime.reload import known_tenants
from gatepost.storage.change_poller import notify
from gatepost.storage.records import Records
from gatepost_authz.config import TENANT_ID

tenant_argument = click.argument("tenant_id", metavar="TENANT")
reason_option = click.option("--reason", default="", help="Reason, for the list and the audit log.")


class TenantStatus(msgspec.Struct, frozen=True):
    """A tenant as a row of the list."""

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

    A suspension is stored in the database and takes effect at every server within a second.
    """


tenant.add_command(erasure.erase)


@tenant.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def list_(as_json: bool, path: Path) -> None:
    """List tenants that are configured or have stored data."""
    config = configured_server(path)
    rows = run_with_stores(config, lambda stores: rows_of(config, stores.records))
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    if not rows:
        click.echo("There are no tenants.")
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
    """Suspend TENANT: refuse its callers and end its calls, streams, tasks and requests."""
    config = configured_server(path)
    if run_with_stores(config, lambda stores: suspend_tenant(tenant_id, reason, config, stores)):
        click.echo(f"Tenant {tenant_id} is suspended at every server within a second.")
    else:
        click.echo(f"Tenant {tenant_id} is already suspended.")


@tenant.command()
@tenant_argument
@config_option
def resume(tenant_id: str, path: Path) -> None:
    """
    End the suspension of TENANT.

    Tokens and dashboard sessions that have not expired work again. Calls, streams, tasks and
    requests that the suspension ended do not resume.
    """
    config = configured_server(path)

    async def execute(stores: OpenStores) -> bool:
        was_suspended = await stores.records.revocations.delete(tenant_id, SUSPENDED)
        await notify(stores.shared_store)
        if was_suspended:
            await stores.note(tenant_id, "tenant", "resumed")
        return was_suspended

    was_suspended = run_with_stores(config, execute)
    if tenant_id in config.tenancy.suspended:
        raise click.ClickException(
            f"The configuration suspends tenant {tenant_id}. Remove it from `tenancy.suspended` "
            "and reload the servers (SIGHUP)."
        )
    if not was_suspended:
        raise click.ClickException(f"Tenant {visible(tenant_id)} is not suspended.")
    click.echo(f"Tenant {tenant_id} is resumed at every server within a second.")


async def suspend_tenant(tenant_id: str, reason: str, config: Config, stores: OpenStores) -> bool:
    """Suspend a tenant; return False if it is already suspended."""
    await check_known(tenant_id, config, stores.records)
    record = suspension(tenant_id, now=time.time(), by=administrator(), reason=reason)
    put = await stores.records.revocations.put(record)
    await notify(stores.shared_store)
    if put:
        await stores.note(tenant_id, "tenant", "suspended", reason=reason)
    return put


async def rows_of(config: Config, records: Records) -> list[TenantStatus]:
    """Return all known tenants by id."""
    configured = known_tenants(config) | {config.stdio.tenant} - {""}
    revocations = {
        record.tenant: record for record in await records.revocations.all() if record.suspends
    }
    stored = [
        tenant for tenant in await records.tenant_data.tenants() if TENANT_ID.fullmatch(tenant)
    ]
    suspended_in_configuration = set(config.tenancy.suspended)
    rows = []
    for name in sorted({*configured, *revocations, *stored, *suspended_in_configuration}):
        record = revocations.get(name)
        row = TenantStatus(
            tenant=name,
            state="suspended" if record or name in suspended_in_configuration else "open",
            known_by="configuration" if name in configured | suspended_in_configuration else "use",
        )
        if record is not None:
            row = msgspec.structs.replace(
                row,
                suspended_at=record.created_at,
                suspended_by=record.created_by,
                reason=record.reason,
            )
        elif name in suspended_in_configuration:
            row = msgspec.structs.replace(row, suspended_by="tenancy.suspended")
        rows.append(row)
    return rows
