"""`gatepost upstream add`: register an MCP server, or import it from another program's file."""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from gatepost.cli.configuration import config_argument, config_option, tenant_option
from gatepost.cli.upstream_services import operator, with_upstreams
from gatepost.runtime.upstreams import UpstreamServices
from gatepost.upstreams.import_formats import (
    ImportedServer,
    ImportProblem,
    as_toml,
    is_server_document,
    read_document,
    servers_of,
    servers_of_registry,
)
from gatepost.upstreams.registration_changes import ServerChanges

MAX_SECRET = 8_192


@click.command()
@click.argument("name", default="")
@tenant_option
@click.option("--url", default="", help="The server's endpoint (Streamable HTTP).")
@click.option("--description", default="", help="What the server is for.")
@click.option("--api-key", is_flag=True, help="Prompt for an API key, or read it from stdin.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME",
    help="Prompt for the value of this header. Can be given several times.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    default=None,
    help="An mcpServers file (Claude Desktop, Cursor, VS Code), or a registry's server.json.",
)
@config_option
def add(  # noqa: PLR0913  # one for each option
    name: str,
    tenant: str,
    url: str,
    description: str,
    api_key: bool,
    headers: tuple[str, ...],
    source: Path | None,
    path: Path,
) -> None:
    """
    Add the MCP server NAME.

    With --from, the command adds each server in the file that has a URL, or only NAME. API keys and
    headers are stored encrypted. For servers that are programs, it prints the tables to put into
    the configuration, because only the configuration can name programs.
    """
    if bool(source) == bool(url):
        raise click.UsageError("Give either --url or --from.")
    if source is not None:
        _import(source, name, tenant, path)
        return
    if not name:
        raise click.UsageError("Missing argument 'NAME'.")
    changes = ServerChanges(
        name=name,
        url=url,
        description=description,
        api_key=secret("API key") if api_key else None,
        headers={header: secret(f"Header {header}") for header in headers},
    )
    _add(path, tenant, changes)


def _add(path: Path, tenant: str, changes: ServerChanges) -> None:
    async def execute(services: UpstreamServices) -> None:
        await services.administration.add(tenant, changes, operator())

    with_upstreams(path, tenant, execute)
    click.echo(
        f"The MCP server {changes.name} of tenant {tenant} is added. Test it: "
        f"gatepost upstream test {changes.name} --tenant {tenant}{config_argument(path)}"
    )


def _import(source: Path, name: str, tenant: str, path: Path) -> None:
    try:
        document = read_document(source)
        if is_server_document(document):
            # The first one is the server's own preference.
            servers = servers_of_registry(document)[:1]
        else:
            servers = servers_of(document)
    except ImportProblem as problem:
        raise click.ClickException(f"{problem}.") from None
    if name and not is_server_document(document):
        servers = tuple(server for server in servers if server.settings.name == name)
        if not servers:
            raise click.ClickException(f"{source} has no server {name!r}.")
    for server in servers:
        if server.settings.url:
            _add(path, tenant, imported(server, name))
        else:
            _print_table(server, tenant)


def imported(server: ImportedServer, name: str = "") -> ServerChanges:
    """Return the fields of a server of a file; fields that the file lacks are prompted for."""
    settings = server.settings
    key = resolved(settings.api_key, server) if settings.api_key else None
    return ServerChanges(
        name=name or settings.name,
        url=settings.url,
        description=settings.description,
        api_key=key,
        headers={header: resolved(value, server) for header, value in settings.headers.items()},
        status=settings.status,
    )


def resolved(reference: str, server: ImportedServer) -> str:
    """Return the value of a reference: from the file, the environment, or the prompt."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name, "")
        if not value:
            raise click.ClickException(f"The environment variable {name} is not set.")
        host = urlsplit(server.settings.url).netloc
        click.echo(f"The value of the environment variable {name} is stored, to be sent to {host}.")
        return value
    return server.values.get(name) or secret(f"Secret {name} of {server.settings.name}")


def secret(prompt: str) -> str:
    """Return a secret, prompted for without echo, or one line of standard input."""
    if sys.stdin.isatty():
        secret_value: str = click.prompt(prompt, hide_input=True)
        return secret_value
    return sys.stdin.readline(MAX_SECRET + 2).rstrip("\r\n")


def _print_table(server: ImportedServer, tenant: str) -> None:
    click.echo(
        f"# {server.settings.name} is a program, which only the configuration can name. Add:\n"
        f"{as_toml(server.settings, tenants=(tenant,))}\n"
    )
    for note in server.notes:
        click.echo(f"# {note.replace('TENANT', tenant)}")
