"""`gatepost tenant erase`: erase a tenant, or the data of one person."""

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

import click

from gatepost.audit.retention import DetailErasure
from gatepost.cli.configuration import administrator, config_option
from gatepost.cli.stores import OpenStores, configured_server, run_with_stores, why_unknown
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config
from gatepost.mcp.sessions.session import LIFETIME_S
from gatepost.policy.approvals.grants import revoke_given
from gatepost.policy.approvals.request_lists import erase_decider
from gatepost.policy.revocation.revocation_records import revocation, suspension
from gatepost.policy.script_reviews.store import SUBJECT as SCRIPTS
from gatepost.policy.script_reviews.store import ScriptApprovals
from gatepost.runtime.erasure import ErasureBlocked, TenantErasure, TenantInventory, counted_records
from gatepost.runtime.recent_callers import forget_person
from gatepost.storage.audit import EVERY_TENANT
from gatepost.storage.backends import scheme_of
from gatepost.storage.change_poller import notify
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.revocations import RevocationRecord
from gatepost.storage.sql.sqlite_audit_connection import empty_log
from gatepost.storage.tenant_data import ErasureSubject
from gatepost_authz.caller import SubjectKind, TenantContext

PROPAGATION_S = 2.0
"""Seconds until every server has applied a suspension, doubled."""
LONGEST_S = 86_400.0
NOT_TRUNCATED = (
    "Erased data can still be read from the -wal file beside the database, because another process "
    "is reading the database. Run the command again later."
)
NOTHING_REMOVED = "Nothing was removed. Add --yes to remove all of it permanently."


@click.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--subject", default="", help="Erase only the data of this person or program.")
@click.option("--issuer", default="", help="Issuer of the subject. Required with --subject.")
@click.option(
    "--yes", is_flag=True, help="Erase the data. Without --yes, the command only counts it."
)
@click.option("--reason", default="", help="Reason, for the audit log.")
@config_option
def erase(tenant_id: str, subject: str, issuer: str, yes: bool, reason: str, path: Path) -> None:
    """
    Erase all data of TENANT permanently, or all data of one person.

    The tenant is suspended first and stays suspended. Servers can keep running. If the command is
    interrupted, run it again to finish. Audit records stay, but their details are erased.
    """
    if bool(subject) != bool(issuer):
        raise click.UsageError(
            "--subject and --issuer must be given together: a subject belongs to its issuer."
        )
    config = configured_server(path)

    async def execute(stores: OpenStores) -> bool:
        unknown_reason = await why_unknown(tenant_id, config, stores.records)
        # An unknown tenant may still have files.
        if unknown_reason and (
            subject or (await tenant_data_of(tenant_id, config, stores).inventory()).is_nothing
        ):
            raise click.ClickException(f"{unknown_reason} There is nothing to erase.")
        if subject:
            return await forgotten(ErasedPerson(tenant_id, issuer, subject), yes, reason, stores)
        return await erased(tenant_id, yes, reason, config, stores)

    try:
        is_complete = run_with_stores(config, execute)
    except ErasureBlocked:
        raise click.ClickException(
            f"A call still writes data of tenant {tenant_id}. The tenant is suspended. Run the "
            "command again when its calls have ended or the server that runs them has stopped."
        ) from None
    except OSError as error:
        raise click.ClickException(f"A directory cannot be removed: {error.strerror}.") from None
    if not is_complete:
        click.echo(NOTHING_REMOVED, err=True)
        raise click.exceptions.Exit(1)
    overwrite(resolved_setting(config.storage.database))


def overwrite(database: str) -> None:
    """Remove erased data from the files that SQLite keeps beside the database."""
    if scheme_of(database) != "sqlite":
        return
    try:
        is_emptied = empty_log(database)
    except (sqlite3.Error, StoreUnavailable):
        is_emptied = False
    if not is_emptied:
        click.echo(NOT_TRUNCATED, err=True)


async def erased(
    tenant_id: str, yes: bool, reason: str, config: Config, stores: OpenStores
) -> bool:
    """Erase a tenant and print the progress; return False without --yes."""
    records, shared_store = stores.records, stores.shared_store
    erasure = tenant_data_of(tenant_id, config, stores)
    print_inventory(tenant_id, await erasure.inventory())
    if not yes:
        return False
    now, by = time.time(), administrator()
    suspended = suspension(tenant_id, now=now, by=by, reason=reason or "being erased")
    if await records.revocations.put(suspended):
        await stores.note(tenant_id, "tenant", "suspended", reason=suspended.reason)
    await records.revocations.put(everything_before(tenant_id, now, by))
    await notify(shared_store)
    click.echo(f"Tenant {tenant_id} is suspended.")
    # Servers apply the suspension within a second and end the tenant's calls.
    await asyncio.sleep(PROPAGATION_S)
    await erasure.run(click.echo)
    if stores.keyring is not None:
        erased_count = await DetailErasure(stores.audit_store, stores.keyring).erase_tenant(
            tenant_id
        )
        click.echo(f"erased the details of {erased_count} audit records")
        # Written after the erasure, so that the record of who did it stays.
        await stores.note(tenant_id, "tenant", "erased", reason=reason)
    elif await stores.audit_store.tenant_log(tenant_id).heads():
        raise unproven()
    click.echo(
        f"Tenant {tenant_id} is erased. It stays suspended until you run "
        f"`gatepost tenant resume {tenant_id}`."
    )
    return True


def tenant_data_of(tenant_id: str, config: Config, stores: OpenStores) -> TenantErasure:
    """Return all data of the tenant, to be counted or removed."""
    return TenantErasure(
        tenant_id, stores.records, stores.shared_store, Path(config.workspace.root)
    )


class ErasedPerson(NamedTuple):
    """One person of a tenant."""

    tenant: str
    issuer: str
    subject: str


async def forgotten(person: ErasedPerson, yes: bool, reason: str, stores: OpenStores) -> bool:
    """Erase the data of one person; return False without --yes."""
    tenant_id, issuer, subject = person
    records, ownership = stores.records, owned(tenant_id, issuer, subject)
    counted = await records.tenant_data.count_of(tenant_id, ownership)
    summary = ", ".join(counted_records(counted)) or "nothing"
    click.echo(
        f"Tenant {tenant_id} stores about this person: {summary}, and details of audit records."
    )
    if not yes:
        return False
    await records.revocations.put(
        everything_before(tenant_id, time.time(), administrator(), issuer=issuer, subject=subject)
    )
    await notify(stores.shared_store)
    await asyncio.sleep(PROPAGATION_S)
    removed_count = 0
    while removed := await records.tenant_data.clear_of(tenant_id, ownership):
        removed_count += removed
    tenant = records.for_tenant(tenant_id)
    removed_count += await ScriptApprovals(tenant.entries(SCRIPTS)).erase(issuer, subject)
    removed_count += await erase_decider(tenant.approvals, issuer, subject)
    removed_count += await revoke_given(tenant.grants, issuer, subject)
    click.echo(f"removed {removed_count} records")
    if await forget_person(records.for_tenant(tenant_id), issuer, subject):
        click.echo("removed this person from the recent callers")
    click.echo("Files in the tenant's workspace stay, because they do not belong to one person.")
    if stores.keyring is not None:
        erasure = DetailErasure(stores.audit_store, stores.keyring)
        # The audit log of all tenants is included, because it has revocations by subject.
        both = (tenant_id, EVERY_TENANT)
        details = sum([await erasure.erase_subject(chain, issuer, subject) for chain in both])
        click.echo(f"erased the details of {details} audit records")
        await stores.note(tenant_id, "tenant", "person erased", reason=reason)
    elif await stores.audit_store.tenant_log(tenant_id).heads():
        raise unproven()
    return True


def unproven() -> click.ClickException:
    """Return the error that the details of audit records were not erased."""
    return click.ClickException(
        "Everything is erased except the details of audit records. Their erasure must be signed, "
        "and there is no key ring (`keys.ring`)."
    )


def owned(tenant_id: str, issuer: str, subject: str) -> ErasureSubject:
    """Return the owner of the records to erase: a person or a machine with this id."""
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
    return ErasureSubject(issuer, subject, tuple(caller.principal_digest for caller in callers))


def everything_before(
    tenant_id: str, now: float, by: str, *, issuer: str = "", subject: str = ""
) -> RevocationRecord:
    """Return a revocation of all tokens and sessions from before the erasure."""
    selectors = RevocationRecord(
        id="",
        tenant=tenant_id,
        issuer=issuer,
        subject=subject,
        created_at=now,
        created_by=by,
        reason="erased",
    )
    return revocation(
        selectors, now=now, leeway_s=0.0, longest_s=LONGEST_S, kept_s=float(LIFETIME_S), block_s=0.0
    )


def print_inventory(tenant_id: str, inventory: TenantInventory) -> None:
    """Print what the tenant has stored."""
    if inventory.is_nothing:
        click.echo(f"Tenant {tenant_id} has no data except audit records.")
        return
    click.echo(f"Data of tenant {tenant_id}:")
    for line in inventory.lines():
        click.echo(f"  {line}")
