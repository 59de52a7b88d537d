"""`gatepost upstream`: manage the MCP servers behind this gate."""

from pathlib import Path

import click
import msgspec

from gatepost.cli.configuration import config_argument, config_option, tenant_option, visible
from gatepost.cli.output import moment, table
from gatepost.cli.upstream_add import add
from gatepost.cli.upstream_services import operator, with_upstreams
from gatepost.credentials.keyring_key import key_set
from gatepost.runtime.upstreams import UpstreamServices
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.definition_pins import diff as difference
from gatepost.upstreams.examination import ExaminedServer, examined
from gatepost.upstreams.registration_changes import ServerChanges
from gatepost.upstreams.upstream_server import Status, UpstreamServer

name_argument = click.argument("name")


@click.group()
def upstream() -> None:
    """
    Manage the MCP servers behind this gate.

    Running servers apply each change within seconds. You can also list and test MCP servers of the
    configuration here, but you change them in the configuration.
    """


upstream.add_command(add)


@upstream.command("list")
@tenant_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def list_(tenant: str, as_json: bool, path: Path) -> None:
    """List a tenant's MCP servers."""

    async def execute(services: UpstreamServices) -> list[tuple[UpstreamServer, Catalogue | None]]:
        servers = await services.administration.servers(tenant)
        return [(server, await services.administration.catalogue(server)) for server in servers]

    listed_servers = with_upstreams(path, tenant, execute)
    if as_json:
        click.echo(msgspec.json.encode([_row(*entry) for entry in listed_servers]))
    elif not listed_servers:
        click.echo(f"Tenant {tenant} has no MCP servers.")
    else:
        rows = [_row(*entry) for entry in listed_servers]
        lines = [tuple(str(value) for value in row.values()) for row in rows]
        click.echo(table([tuple(name.upper() for name in rows[0]), *lines]))


@upstream.command()
@name_argument
@tenant_option
@config_option
def test(name: str, tenant: str, path: Path) -> None:
    """Sign in at the MCP server NAME, list its tools, and report what is wrong."""

    async def execute(services: UpstreamServices) -> ExaminedServer:
        server = await services.administration.named(tenant, name)
        return await examined(server, services.connections.connection_to(server))

    report = with_upstreams(path, tenant, execute)
    for step in report.steps:
        click.echo(f"ok   {step}")
    click.echo(report.sentence)
    if not report.healthy:
        raise click.exceptions.Exit(1)


@upstream.command()
@name_argument
@tenant_option
@config_option
def refresh(name: str, tenant: str, path: Path) -> None:
    """Fetch what the MCP server NAME offers now."""

    async def execute(services: UpstreamServices) -> Catalogue:
        server = await services.administration.named(tenant, name)
        return await services.administration.refresh(server, operator())

    catalogue = with_upstreams(path, tenant, execute)
    count = _counted(catalogue)
    click.echo(f"{name} has {count} tool{'' if count == 1 else 's'}.")
    for offer in catalogue.left_out:
        click.echo(f"Left out: {visible(offer.key)}: {visible(offer.reason)}")
    if catalogue.changes:
        selector = f"{name} --tenant {tenant}{config_argument(path)}"
        click.echo(f"{len(catalogue.changes)} changes wait: gatepost upstream diff {selector}")


@upstream.command()
@name_argument
@tenant_option
@config_option
def diff(name: str, tenant: str, path: Path) -> None:
    """Show the waiting changes of the MCP server NAME. Exit code 1 means that changes wait."""

    async def execute(services: UpstreamServices) -> Catalogue | None:
        server = await services.administration.named(tenant, name)
        return await services.administration.catalogue(server)

    catalogue = with_upstreams(path, tenant, execute)
    if catalogue is None or not catalogue.changes:
        click.echo(f"No changes of {name} wait.")
        return
    for change in catalogue.changes:
        click.echo(f"{difference(change)}\ndigest {change.digest}\n")
    raise click.exceptions.Exit(1)


@upstream.command()
@name_argument
@tenant_option
@click.option("--digest", "digests", multiple=True, help="Accept only the change with this digest.")
@click.option("--all", "every", is_flag=True, help="Accept all changes that wait.")
@config_option
def accept(name: str, tenant: str, digests: tuple[str, ...], every: bool, path: Path) -> None:
    """Accept changes of the MCP server NAME that `gatepost upstream diff` shows."""
    if bool(digests) == every:
        raise click.UsageError("Give either --digest or --all.")

    async def execute(services: UpstreamServices) -> Catalogue | None:
        server = await services.administration.named(tenant, name)
        chosen = None if every else digests
        return await services.administration.accept(server, chosen, operator())

    catalogue = with_upstreams(path, tenant, execute)
    remaining = 0 if catalogue is None else len(catalogue.changes)
    click.echo(f"Accepted. {remaining} changes of {name} still wait.")


@upstream.command()
@name_argument
@tenant_option
@config_option
def enable(name: str, tenant: str, path: Path) -> None:
    """Enable the MCP server NAME."""
    _set_status(path, tenant, name, "active")
    click.echo(f"The MCP server {name} of tenant {tenant} is enabled.")


@upstream.command()
@name_argument
@tenant_option
@config_option
def disable(name: str, tenant: str, path: Path) -> None:
    """Disable the MCP server NAME: callers no longer see its tools."""
    _set_status(path, tenant, name, "disabled")
    click.echo(f"The MCP server {name} of tenant {tenant} is disabled.")


@upstream.command()
@name_argument
@tenant_option
@config_option
def remove(name: str, tenant: str, path: Path) -> None:
    """Remove the MCP server NAME with its API key, headers and accepted definitions."""

    async def execute(services: UpstreamServices) -> None:
        server = await services.administration.named(tenant, name)
        await services.administration.remove(server, operator())

    with_upstreams(path, tenant, execute)
    click.echo(f"The MCP server {name} of tenant {tenant} is removed.")


@upstream.command()
@config_option
def jwks(path: Path) -> None:
    """
    Print the public keys with which Gatepost signs in at authorization servers (private_key_jwt).

    Register them there, and again before `gatepost keyring rotate` takes effect.
    """

    async def execute(services: UpstreamServices) -> bytes:
        return msgspec.json.format(msgspec.json.encode(key_set(services.keyring)))

    click.echo(with_upstreams(path, None, execute))


def _set_status(path: Path, tenant: str, name: str, status: Status) -> None:
    async def execute(services: UpstreamServices) -> None:
        server = await services.administration.named(tenant, name)
        changes = ServerChanges(status=status)
        await services.administration.change(server, changes, operator())

    with_upstreams(path, tenant, execute)


def _row(server: UpstreamServer, catalogue: Catalogue | None) -> dict[str, str | int]:
    """Return what the list shows of a server."""
    state = server.status
    health = "not fetched yet"
    if catalogue is not None and catalogue.failing_since is not None:
        health = f"failing since {moment(catalogue.failing_since)}: {visible(catalogue.failure)}"
    elif catalogue is not None:
        health = f"fetched {moment(catalogue.fetched_at)}"
    return {
        "name": visible(server.name),
        "status": state,
        "source": server.source,
        "tools": 0 if catalogue is None else _counted(catalogue),
        "waiting": 0 if catalogue is None else len(catalogue.changes),
        "where": visible(server.url or (server.program.command if server.program else "")),
        "health": health,
    }


def _counted(catalogue: Catalogue) -> int:
    return sum(definition.section == "tools" for definition in catalogue.definitions)
