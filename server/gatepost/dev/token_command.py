"""`gatepost token`: print a token of the development server on this machine."""

from pathlib import Path

import click
import httpx2
import msgspec

DEFAULT_STATE = Path(".gatepost")
STATE_FILE = "dev.json"
GRANT = "urn:gatepost:params:oauth:grant-type:development-token"


class DevState(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state that `gatepost dev` leaves for `gatepost token`, in a file that only its owner can
    read.
    """

    resource: str
    token_endpoint: str
    client_id: str
    client_secret: str


@click.command()
@click.option("--tenant", required=True, help="Tenant of the caller: acme or globex.")
@click.option("--subject", default="", help="User name. Default: the tenant's first user.")
@click.option("--scopes", default="", help='Scopes, for example "files:read files:write".')
@click.option("--resource", default="", help="Audience. Default: the running endpoint.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="State directory of `gatepost dev`.",
)
def token(tenant: str, subject: str, scopes: str, resource: str, state: Path) -> None:
    """Print an access token from the running `gatepost dev`."""
    issuer_state = _state(state)
    form = {
        "grant_type": GRANT,
        "tenant": tenant,
        "subject": subject,
        "scope": scopes,
        "resource": resource or issuer_state.resource,
    }
    try:
        with httpx2.Client(trust_env=False, timeout=10) as client:
            answer = client.post(
                issuer_state.token_endpoint,
                data={name: value for name, value in form.items() if value},
                auth=(issuer_state.client_id, issuer_state.client_secret),
            )
            body = msgspec.json.decode(answer.content, type=dict[str, object])
    except (httpx2.TransportError, msgspec.DecodeError):
        raise _not_running(state) from None
    if answer.status_code != 200 or "access_token" not in body:
        reason = body.get("error_description") or body.get("error") or "no reason given"
        raise click.ClickException(f"the development issuer refused: {reason}")
    click.echo(body["access_token"])


def _state(folder: Path) -> DevState:
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=DevState)
    except (OSError, msgspec.DecodeError):
        raise _not_running(folder) from None


def _not_running(folder: Path) -> click.ClickException:
    return click.ClickException(
        f"no development server is running with the state directory {folder}. "
        "Start `gatepost dev`, or give its directory with --state"
    )
