"""`gatepost scripts`: list, approve and revoke the scripts of a tenant."""

import difflib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from gatepost.cli.approvals import decided
from gatepost.cli.configuration import (
    administrator,
    config_argument,
    config_option,
    tenant_option,
    visible,
)
from gatepost.cli.output import moment, table
from gatepost.config.pack_registration import object_at, registrations
from gatepost.config.settings import Config
from gatepost.execution.failure import ToolFailure
from gatepost.policy.approvals.approval_request import Operator
from gatepost.policy.script_reviews.script import (
    OpenScriptSource,
    Rejection,
    Script,
    ScriptReview,
    ScriptSource,
)
from gatepost.policy.script_reviews.service import ScriptReviews
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.runtime.approvals import ApprovalServices
from gatepost.tools.context.interfaces import Workspace
from gatepost.workspace import Workspaces

T = TypeVar("T")


class TenantScripts(msgspec.Struct, frozen=True):
    """One tenant's scripts, and how to decide about them."""

    approvals: ScriptApprovals
    sources: tuple[ScriptSource, ...]
    tenant: str
    reviews: ScriptReviews

    async def contents_of(self, name: str) -> list[Script]:
        """Return the contents of that name: first the current script, then earlier attempts."""
        try:
            files = [await source.find(name) for source in self.sources]
        except ToolFailure as failure:
            raise click.ClickException(failure.failure.message) from None
        scripts = [file for file in files if file is not None]
        tried = [*reversed(await self.approvals.waiting())]
        tried += [rejection.review for rejection in await self.approvals.rejected()]
        return [*scripts, *(review.script for review in tried if review.name == name)]


@click.group()
def scripts() -> None:
    """
    List, approve and revoke the scripts of tenants.

    Decisions are stored in the database and apply to the next call on every running server.
    """


@scripts.command("list")
@tenant_option
@config_option
def list_(tenant: str, path: Path) -> None:
    """List the scripts of a tenant and their approval state."""
    rows = with_scripts(path, tenant, rows_of)
    if not rows:
        click.echo(f"Tenant {tenant} has no scripts.")
        return
    click.echo(table([("NAME", "STATE", "DIGEST", "BY", "WHEN"), *rows]))


@scripts.command()
@click.argument("name")
@click.option("--digest", help="Digest of the reviewed content, as printed without this option.")
@tenant_option
@config_option
def approve(name: str, digest: str | None, tenant: str, path: Path) -> None:
    """
    Approve the current content of the script NAME.

    Without --digest, the command only shows the script, or the changes since the last approval.
    With --digest, it approves only the content with that digest, even if it was rejected before.
    """
    name = name.removesuffix(".star")

    async def read_script(
        tenant_scripts: TenantScripts,
    ) -> tuple[Script | None, ScriptReview | None, Rejection | None]:
        script = next(iter(await tenant_scripts.contents_of(name)), None)
        rejection = None if script is None else await tenant_scripts.approvals.rejection(script)
        return script, await tenant_scripts.approvals.approved(name), rejection

    async def decide(tenant_scripts: TenantScripts) -> Script | None:
        matching = [
            script for script in await tenant_scripts.contents_of(name) if script.digest == digest
        ]
        if not matching:
            return None
        await tenant_scripts.reviews.allow(tenant, matching[0], Operator(administrator()))
        return matching[0]

    if digest is not None:
        approved = with_scripts(path, tenant, decide)
        if approved is None:
            raise click.ClickException(
                f"No script {name} of tenant {tenant} has this digest. Nothing was approved. Run "
                "the command without --digest to review the current content."
            )
        click.echo(f"{approved.file} of tenant {tenant} is approved.")
        return
    script, before, rejection = with_scripts(path, tenant, read_script)
    if script is None:
        raise click.ClickException(f"Tenant {tenant} has no script {name}.")
    show(script, before, tenant, path)
    if rejection is not None:
        warning = f"{rejection.by.display_name} rejected this content. {rejection.reason}"
        click.echo(visible(warning.rstrip()))


@scripts.command()
@click.argument("name")
@tenant_option
@config_option
def revoke(name: str, tenant: str, path: Path) -> None:
    """Revoke the approval of the script NAME, or remove its waiting request."""
    name = name.removesuffix(".star")

    async def take_back(tenant_scripts: TenantScripts) -> str | None:
        return await tenant_scripts.reviews.revoke(tenant, name, Operator(administrator()))

    state = with_scripts(path, tenant, take_back)
    if state is None:
        raise click.ClickException(
            f"Tenant {tenant} has no script {name} that is approved or waiting. To revoke a script "
            "that the configuration allows, change the setting that `gatepost scripts list` shows."
        )
    click.echo(f"{name}.star of tenant {tenant} is no longer {state}.")


def show(script: Script, before: ScriptReview | None, tenant: str, path: Path) -> None:
    """Print the script to review, and the command that approves it."""
    text = script.text
    if text is None:
        raise click.ClickException(f"{script.file} is not UTF-8 text, so it cannot be approved.")
    if before is not None and before.digest == script.digest:
        click.echo(f"{script.file} is already approved: {script.digest}")
        return
    # Split lines as the script's interpreter does. With other line separators, a comment could look
    # like a line that runs, and a changed check could look unchanged.
    lines = text.split("\n")
    if before is not None:
        old_lines = before.content.split("\n")
        lines = list(difflib.unified_diff(old_lines, lines, "approved", "now", lineterm=""))
    for line in lines:
        click.echo(visible(line))
    selector = f"--tenant {tenant} {script.name}{config_argument(path)}"
    click.echo("\nNothing was approved. To approve this content:")
    click.echo(f"gatepost scripts approve {selector} --digest {script.digest}")


async def rows_of(tenant_scripts: TenantScripts) -> list[tuple[str, str, str, str, str]]:
    """Return one row for each content, by name."""
    approved = {
        approval.name: approval for approval in await tenant_scripts.approvals.all_approved()
    }
    waiting, rejected = (
        await tenant_scripts.approvals.waiting(),
        await tenant_scripts.approvals.rejected(),
    )
    rows = [
        row("approved", approval, approval.approver.display_name if approval.approver else "")
        for approval in approved.values()
    ]
    rows += [row("waits", review, review.caller.subject) for review in waiting]
    rows += [
        row("rejected", rejection.review, rejection.by.display_name, at=rejection.at)
        for rejection in rejected
    ]
    digests = {review.digest for review in (*approved.values(), *waiting)}
    digests |= {rejection.review.digest for rejection in rejected}
    for source in tenant_scripts.sources:
        for script in (await source.all()).scripts:
            if (setting := source.allowed_by(script)) is not None:
                rows.append((script.name, "allowed", script.digest, setting, ""))
            elif script.digest not in digests:
                state = "changed" if script.name in approved else "not approved"
                rows.append((script.name, state, script.digest, "", ""))
    return sorted(rows)


def row(
    state: str, review: ScriptReview, by: str, *, at: float | None = None
) -> tuple[str, str, str, str, str]:
    """Return a decision or a waiting script as a row of the list."""
    decided_at = review.at if at is None else at
    return (review.name, state, review.digest, visible(by), moment(decided_at))


def with_scripts(path: Path, tenant: str, do: Callable[[TenantScripts], Awaitable[T]]) -> T:
    """Run *do* with the configured stores and folders open, and return its result."""

    async def work(services: ApprovalServices, config: Config) -> T:
        workspaces = Workspaces(Path(config.workspace.root))
        try:
            approvals = ScriptApprovals(
                services.service.records.for_tenant(tenant).entries(SUBJECT)
            )
            sources = tuple(sources_of(config, workspaces.for_tenant(tenant)))
            return await do(TenantScripts(approvals, sources, tenant, services.scripts))
        finally:
            workspaces.close()

    return decided(path, tenant, work)


def sources_of(config: Config, workspace: Workspace) -> Iterator[ScriptSource]:
    """Yield what finds a tenant's scripts, for each pack that registers it."""
    for name, pack in registrations().packs.items():
        if pack.registration.scripts:
            opened: OpenScriptSource = object_at(pack.registration.scripts)
            yield opened(getattr(config.packs, name, None), workspace)
