"""`gatepost issuer`: show an identity provider's tokens as settings."""

import asyncio
import sys

import click

from gatepost.cli.configuration import visible
from gatepost.cli.doctor import read_token
from gatepost.doctor.issuer_probe import ProbeRequest, probe_issuer
from gatepost_authz.fetch import FetchError


@click.group(short_help="Read an identity provider and print its settings.")
def issuer() -> None:
    """Read an identity provider and print its settings."""


@issuer.command()
@click.argument("url")
@click.option("--resource", default=ProbeRequest(url="").resource, help="The resource of Gatepost.")
@click.option(
    "--token",
    envvar="GATEPOST_PROBE_TOKEN",
    default="",
    help="Access token of the issuer. `-` reads it from standard input.",
)
@click.option("--client-id", default="", help="Client id for the introspection of opaque tokens.")
@click.option(
    "--client-secret",
    envvar="GATEPOST_PROBE_CLIENT_SECRET",
    default="",
    help="Client secret. Better set GATEPOST_PROBE_CLIENT_SECRET instead.",
)
@click.option("--ca-bundle", default="", help="A file with CA certificates (PEM), if needed.")
def probe(
    url: str, resource: str, token: str, client_id: str, client_secret: str, ca_bundle: str
) -> None:
    """
    Read the metadata of the issuer at URL and print an [[issuers]] table that fits.

    A comment on each line gives the reason. With --token, the command changes the table until
    Gatepost accepts the token. The checks of issuer, audience, signature and expiry are never
    changed. The table is printed on standard output and everything else on standard error. Exit
    code 1 means that the token is refused or that the table needs a change.
    """
    probe_request = ProbeRequest(
        url=url,
        resource=resource,
        token=read_token(token),
        client_id=client_id,
        client_secret=client_secret,
        ca_bundle=ca_bundle,
    )
    try:
        result = asyncio.run(probe_issuer(probe_request))
    except FetchError as error:
        raise click.ClickException(f"{visible(url)} cannot be read: {error}.") from error
    click.echo(result.table)
    for finding in result.findings:
        click.echo(finding, err=True)
    sys.exit(0 if result.works else 1)
