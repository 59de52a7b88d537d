"""`gatepost scripts`: which scripts of a tenant may run, decided by whoever runs the server."""

import difflib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from gatepost.approvals.desk import Desk
from gatepost.approvals.request import Operator
from gatepost.commands.approvals import decided
from gatepost.commands.configuration import administrator, config_option, visible
from gatepost.packs.scripts.approvals import SUBJECT, Approvals, Rejection, Review
from gatepost.packs.scripts.script import Script
from gatepost.packs.scripts.shelf import Shelf
from gatepost.settings import Config
from gatepost.tools.api import ToolFailure
from gatepost.workspace import Workspaces

T = TypeVar("T")

tenant_option = click.option("--tenant", required=True, help="Whose scripts: a tenant's id.")


class Office(msgspec.Struct, frozen=True):
    """One tenant's scripts, what was decided about them, and the desk that decides."""

    config: Config
    approvals: Approvals
    shelf: Shelf
    tenant: str
    desk: Desk

    async def there(self, name: str) -> list[Script]:
        """What has that name: first what a call would run now, then what was tried before."""
        found: list[Script] = []
        try:
            file = await self.shelf.find(name)
        except ToolFailure as failure:
            raise click.ClickException(failure.failure.message) from None
        if file is not None:
            found.append(file)
        tried = [*reversed(await self.approvals.waiting())]
        tried += [one.review for one in await self.approvals.rejected()]
        return [*found, *(script_of(one) for one in tried if one.name == name)]


@click.group()
def scripts() -> None:
    """
    List, approve and revoke the scripts of tenants (the pack `scripts`).

    Decisions are kept in the database and count with the next call, at every running server.
    """


@scripts.command("list")
@tenant_option
@config_option
def list_(tenant: str, path: Path) -> None:
    """List what may run, waits for an administrator, was rejected, or was never called yet."""
    rows = at_the_office(path, tenant, rows_of)
    if not rows:
        click.echo(f"The tenant {tenant} has no scripts.")
        return
    lines = [("NAME", "STATE", "DIGEST", "BY", "WHEN"), *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(5)]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


@scripts.command()
@click.argument("name")
@click.option("--digest", help="What was reviewed, as shown without this option.")
@tenant_option
@config_option
def approve(name: str, digest: str | None, tenant: str, path: Path) -> None:
    """
    Let the script NAME run as it is.

    Without --digest it only shows the script, or what is different from the approved one. With it,
    the content of that digest is approved, and nothing else, also when it was rejected before.
    """
    name = name.removesuffix(".star")

    async def look(here: Office) -> tuple[Script | None, Review | None, Rejection | None]:
        found = next(iter(await here.there(name)), None)
        rejection = None if found is None else await here.approvals.rejection(found)
        return found, await here.approvals.approved(name), rejection

    async def decide(here: Office) -> Script | None:
        wanted = [one for one in await here.there(name) if one.digest == digest]
        if not wanted:
            return None
        await here.desk.scripts.allow(tenant, wanted[0], Operator(administrator()))
        return wanted[0]

    if digest is not None:
        approved = at_the_office(path, tenant, decide)
        if approved is None:
            raise click.ClickException(
                f"No script {name} of the tenant {tenant} has that digest (any more). Nothing was "
                "approved: look at it again, without --digest."
            )
        click.echo(f"{approved.file} of the tenant {tenant} may run, as it is now.")
        return
    found, before, rejection = at_the_office(path, tenant, look)
    if found is None:
        raise click.ClickException(f"The tenant {tenant} has no script {name}.")
    show(found, before, tenant)
    if rejection is not None:
        why = f"{rejection.by.shown} has rejected exactly this. {rejection.reason}"
        click.echo(visible(why.rstrip()))


@scripts.command()
@click.argument("name")
@tenant_option
@config_option
def revoke(name: str, tenant: str, path: Path) -> None:
    """Take the approval of the script NAME back, or drop it from what waits."""
    name = name.removesuffix(".star")

    async def take_back(here: Office) -> str | None:
        return await here.desk.scripts.revoke(tenant, name, Operator(administrator()))

    was = at_the_office(path, tenant, take_back)
    if was is None:
        raise click.ClickException(
            f"No script {name} of the tenant {tenant} is approved or waits; what the configuration "
            "allows, packs.scripts.allow takes back."
        )
    click.echo(f"{name}.star of the tenant {tenant} is not {was} any more.")


def show(script: Script, before: Review | None, tenant: str) -> None:
    """What is to be reviewed, and how to approve it."""
    text = script.text
    if text is None:
        raise click.ClickException(f"{script.file} is no UTF-8 text, so nobody can approve it.")
    if before is not None and before.digest == script.digest:
        click.echo(f"{script.file} is approved as it is now: {script.digest}")
        return
    # Only where the script's interpreter sees the end of a line: with any other, a comment that
    # holds one would look like a line that runs, and a check put behind such a sign like no change.
    lines = text.split("\n")
    if before is not None:
        old = before.content.split("\n")
        lines = list(difflib.unified_diff(old, lines, "approved", "now", lineterm=""))
    for line in lines:
        click.echo(visible(line))
    command = f"gatepost scripts approve --tenant {tenant} {script.name} --digest {script.digest}"
    click.echo(f"\nNothing is approved yet. To approve exactly this:\n{command}")


async def rows_of(here: Office) -> list[tuple[str, str, str, str, str]]:
    """One for each content that counts, by name."""
    settings = here.config.packs.scripts
    approved = {one.name: one for one in await here.approvals.all_approved()}
    waiting, rejected = await here.approvals.waiting(), await here.approvals.rejected()
    rows = [row("approved", one) for one in approved.values()]
    rows += [row("waits", one) for one in waiting]
    rows += [row("rejected", one.review, by=one.by.shown, at=one.at) for one in rejected]
    known = {one.digest for one in (*approved.values(), *waiting)}
    known |= {one.review.digest for one in rejected}
    for script in (await here.shelf.all()).scripts:
        if script.allowed_by(settings):
            rows.append((script.name, "allowed", script.digest, "packs.scripts.allow", ""))
        elif script.digest not in known:
            state = "changed" if script.name in approved else "not approved"
            rows.append((script.name, state, script.digest, "", ""))
    return sorted(rows)


def row(
    state: str, review: Review, *, by: str = "", at: float | None = None
) -> tuple[str, str, str, str, str]:
    """A decision or a question as a line of the list."""
    seconds = review.at if at is None else at
    when = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return (review.name, state, review.digest, visible(by or review.by), when)


def script_of(review: Review) -> Script:
    """What a review is about."""
    return Script(review.name, review.content.encode(), review.place)


def at_the_office(path: Path, tenant: str, do: Callable[[Office], Awaitable[T]]) -> T:
    """What *do* answers, with the configured stores and folders open for it."""

    async def work(desk: Desk, config: Config) -> T:
        workspaces = Workspaces(Path(config.workspace.root))
        try:
            approvals = Approvals(desk.records.of(tenant).entries(SUBJECT))
            shelf = Shelf(config.packs.scripts, workspaces.of(tenant))
            return await do(Office(config, approvals, shelf, tenant, desk))
        finally:
            workspaces.close()

    return decided(path, tenant, work)
