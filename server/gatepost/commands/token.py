"""`gatepost token`: a token of the development server that runs on this machine."""

from pathlib import Path

import click
import httpx2
import msgspec

DEFAULT_STATE = Path(".gatepost")
STATE_FILE = "dev.json"
GRANT = "urn:gatepost:params:oauth:grant-type:development-token"


class DevState(msgspec.Struct, frozen=True, kw_only=True):
    """What `gatepost dev` leaves for `gatepost token`, in a file for its owner only."""

    resource: str
    token_endpoint: str
    client_id: str
    client_secret: str


@click.command()
@click.option("--tenant", required=True, help="The tenant to speak for: acme or globex.")
@click.option("--subject", default="", help="Who calls (default: the tenant's first user).")
@click.option("--scopes", default="", help='Scopes to grant, as in "files:read files:write".')
@click.option("--resource", default="", help="The audience (default: the running endpoint).")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="The state directory that `gatepost dev` uses.",
)
def token(tenant: str, subject: str, scopes: str, resource: str, state: Path) -> None:
    """Print an access token from the running `gatepost dev`, and nothing else."""
    known = _state(state)
    form = {
        "grant_type": GRANT,
        "tenant": tenant,
        "subject": subject,
        "scope": scopes,
        "resource": resource or known.resource,
    }
    try:
        with httpx2.Client(trust_env=False, timeout=10) as client:
            answer = client.post(
                known.token_endpoint,
                data={name: value for name, value in form.items() if value},
                auth=(known.client_id, known.client_secret),
            )
            body = msgspec.json.decode(answer.content, type=dict[str, object])
    except (httpx2.TransportError, msgspec.DecodeError):
        raise _not_running(state) from None
    if answer.status_code != 200 or "access_token" not in body:
        why = body.get("error_description") or body.get("error") or "it did not say why"
        raise click.ClickException(f"the development issuer refused: {why}")
    click.echo(body["access_token"])


def _state(folder: Path) -> DevState:
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=DevState)
    except (OSError, msgspec.DecodeError):
        raise _not_running(folder) from None


def _not_running(folder: Path) -> click.ClickException:
    return click.ClickException(
        f"no development server runs with the state directory {folder}; "
        "start one with `gatepost dev`, or name its directory with --state"
    )
