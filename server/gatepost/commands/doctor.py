"""`gatepost doctor URL`: what stands between a client and an MCP server."""

import asyncio
import sys

import click

from gatepost.doctor import Credentials, examine


@click.command("doctor", short_help="Walk a client's way to an MCP server and say what is wrong.")
@click.argument("url")
@click.option("--token", envvar="GATEPOST_DOCTOR_TOKEN", default="", help="An access token to try.")
@click.option("--client-id", default="", help="A client that may have a token of its own.")
@click.option(
    "--client-secret",
    envvar="GATEPOST_DOCTOR_CLIENT_SECRET",
    default="",
    help="Its secret; better given as GATEPOST_DOCTOR_CLIENT_SECRET.",
)
@click.option("--scopes", default="", help="What to ask for, space-delimited.")
def command(url: str, token: str, client_id: str, client_secret: str, scopes: str) -> None:
    """
    Walk the way of an MCP client to URL, which may be anybody's server.

    Prints every step, and in one sentence what is wrong, where, and what to change there. Exit
    code 1: some step stops every client.
    """
    if not (token.isascii() and token.isprintable()):
        raise click.BadParameter("an access token is printable ASCII", param_hint="--token")
    credentials = Credentials(
        token=token, client_id=client_id, client_secret=client_secret, scopes=scopes
    )
    report = asyncio.run(examine(url, credentials=credentials))
    for step in report.steps:
        click.echo(f"{step.level:<5}{step.name}: {step.detail}")
    click.echo(report.sentence)
    sys.exit(0 if report.healthy else 1)
