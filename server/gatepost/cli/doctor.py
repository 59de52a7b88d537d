"""`gatepost doctor`: diagnose why a client cannot connect or a token is refused."""

import asyncio
import importlib
import ssl
import sys
from pathlib import Path

import click
import httpx2

from gatepost.cli.configuration import examine as read_configuration
from gatepost.cli.configuration import show, visible
from gatepost.doctor import DoctorCredentials, Report, examine

STDIN = "-"
LONGEST_TOKEN = 65_536


@click.command("doctor", short_help="Diagnose why a client cannot connect or a token is refused.")
@click.argument("url", default="")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    default=None,
    help="Check the token against this configuration, on this machine.",
)
@click.option(
    "--token",
    envvar="GATEPOST_DOCTOR_TOKEN",
    default="",
    help="Access token. `-` reads it from standard input. Or set GATEPOST_DOCTOR_TOKEN.",
)
@click.option("--client-id", default="", help="Client id for the client credentials grant.")
@click.option(
    "--client-secret",
    envvar="GATEPOST_DOCTOR_CLIENT_SECRET",
    default="",
    help="Client secret. Better set GATEPOST_DOCTOR_CLIENT_SECRET instead.",
)
@click.option("--scopes", default="", help="Scopes to request, separated by spaces.")
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path),
    default=None,
    help="File with CA certificates (PEM) to trust in addition to the system's.",
)
def command(url: str, path: Path | None, ca_bundle: Path | None, **options: str) -> None:
    """
    Connect to the MCP server at URL as a client would, and diagnose problems.

    URL can be any MCP server. The command prints each step, then one sentence that says what is
    wrong, where, and how to fix it. Exit code 1 means that no client can connect.

    With --config, the command checks --token against that configuration instead. It prints the rule
    that refuses the token and the setting that changes the rule. If each tenant has its own
    resource, URL is the one that the client calls. Exit code 1 means that the token is refused.
    """
    credentials = DoctorCredentials(**options | {"token": read_token(options["token"])})
    token = credentials.token
    if path is not None:
        _judge(path, token, url)
    if not url:
        raise click.UsageError("Missing argument 'URL'.")
    if not (token.isascii() and token.isprintable()):
        raise click.BadParameter("an access token is printable ASCII", param_hint="--token")
    report = asyncio.run(_examined(url, credentials, tls_context(ca_bundle)))
    for step in report.steps:
        click.echo(f"{step.level:<5}{step.name}: {step.detail}")
    click.echo(report.sentence)
    sys.exit(0 if report.healthy else 1)


def read_token(value: str) -> str:
    """Return the token of an option; ``-`` reads it from standard input."""
    return sys.stdin.read(LONGEST_TOKEN).strip() if value == STDIN else value


async def _examined(url: str, credentials: DoctorCredentials, tls: ssl.SSLContext) -> Report:
    async with httpx2.AsyncClient(verify=tls) as client:
        return await examine(url, credentials=credentials, client=client)


def tls_context(ca_bundle: Path | None) -> ssl.SSLContext:
    """Return the system's CAs and those of *ca_bundle*; a usage error if it has none."""
    tls = httpx2.create_ssl_context()
    if ca_bundle is not None:
        try:
            tls.load_verify_locations(cafile=ca_bundle)
        except OSError as error:
            message = f"{visible(str(ca_bundle))} has no certificates that can be read: {error}"
            raise click.BadParameter(message, param_hint="--ca-bundle") from error
    return tls


def _judge(path: Path, token: str, url: str) -> None:
    """Check the token against the configuration, print the result, and exit."""
    if not token:
        raise click.UsageError("--config needs a token to check. Add --token.")
    config, tools, problems = read_configuration(path)
    if config is None:
        show(problems)
        sys.exit(1)
    # Imported on use, because examining a URL does not need it.
    judging = importlib.import_module("gatepost.cli.token_verdict")
    judgement = asyncio.run(judging.judge(config, token, url, tools.declared_scopes))
    for line in judgement.lines:
        click.echo(line)
    sys.exit(0 if judgement.accepted else 1)
