"""`python -m gatepost_keys new · rotate · publish · mint · serve`."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click
import uvicorn
from joserfc.jwk import Key

from gatepost_keys.generate import GenerationRefused, forget_old, new_key, read_keys, write_key
from gatepost_keys.issuer import IssuerSettings, app, production_check
from gatepost_keys.issuer.settings import DEFAULT_USERS, TENANT, on_loopback
from gatepost_keys.mint import MAX_LIFETIME_S, AccessTokenClaims, sign
from gatepost_keys.public_keys import ALGORITHMS, public_set
from gatepost_keys.subject import TokenSubject

P = ParamSpec("P")

folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".gatepost/keys"),
    show_default=True,
    help="Where the keys are; never a folder that git tracks.",
)
algorithm_option = click.option(
    "--algorithm", type=click.Choice(list(ALGORITHMS)), default="RS256", show_default=True
)
resource_option = click.option(
    "--resource",
    default="http://127.0.0.1:8000/mcp",
    show_default=True,
    help="The URL of the protected resource: the only audience.",
)


def in_sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Return *command* with refusals printed as a sentence and exit code 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except GenerationRefused as refusal:
            raise click.ClickException(str(refusal)) from None
        except OSError as failure:
            where = f" {failure.filename}" if failure.filename else ""
            raise click.ClickException(f"cannot use{where}: {failure.strerror}") from None

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """
    Create development keys and tokens, and run an issuer on one machine. Never for production.
    """


@main.command()
@folder_option
@algorithm_option
@in_sentences
def new(folder: Path, algorithm: str) -> None:
    """Make a key pair, and print its id."""
    key = new_key(algorithm)
    write_key(key, folder)
    click.echo(key.kid)


@main.command()
@folder_option
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, help="Keys to keep.")
@in_sentences
def rotate(folder: Path, keep: int) -> None:
    """Make the next key, which signs from now on, and delete all but the newest."""
    key = new_key(str(read_keys(folder)[-1].alg))
    write_key(key, folder)
    deleted = forget_old(folder, keep)
    click.echo(key.kid)
    click.echo(f"{len(deleted)} older keys deleted", err=True)


@main.command()
@folder_option
@in_sentences
def publish(folder: Path) -> None:
    """Print the public key set (JWKS) of the folder."""
    click.echo(json.dumps(public_set(reversed(read_keys(folder))), indent=2))


@main.command()
@folder_option
@resource_option
@click.option("--issuer", default="http://127.0.0.1:8000/dev-as", show_default=True)
@click.option("--tenant", required=True, help="The tenant the token belongs to.")
@click.option("--subject", default="dev", show_default=True)
@click.option("--scopes", default="", help="Space-delimited.")
@click.option("--client", default="gatepost-keys", show_default=True)
@click.option("--lifetime", default=MAX_LIFETIME_S, show_default=True, help="Seconds, at most 600.")
@in_sentences
def mint(folder: Path, **values: str) -> None:
    """Print a token that the folder's newest key signed, and nothing else."""
    click.echo(_token(read_keys(folder)[-1], values))


def _token(key: Key, values: dict[str, str]) -> str:
    if not TENANT.fullmatch(values["tenant"]):
        raise GenerationRefused("--tenant is lower-case letters, digits, - and _, at most 63")
    for option in ("issuer", "resource"):
        if not on_loopback(values[option]):
            raise GenerationRefused(
                f"--{option} {values[option]} is not on this machine: development tokens are for "
                "http://127.0.0.1 and http://localhost only"
            )
    tenant_users = [user for user in DEFAULT_USERS if user.tenant == values["tenant"]]
    matching = [user for user in tenant_users if user.username == values["subject"]]
    grant = AccessTokenClaims(
        issuer=values["issuer"],
        person=matching[0]
        if matching
        else TokenSubject(username=values["subject"], tenant=values["tenant"]),
        client_id=values["client"],
        resource=values["resource"],
        scopes=" ".join(values["scopes"].split()),
    )
    return sign(grant.claims(now=time.time(), lifetime_s=int(values["lifetime"])), key)


@main.command()
@resource_option
@algorithm_option
@click.option("--development", is_flag=True, help="Yes, this is for development.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65_535), default=8001, show_default=True)
@click.option("--scopes", default="files:read files:write", show_default=True)
@in_sentences
def serve(development: bool, host: str, port: int, **values: str) -> None:
    """Run the development issuer alone, without Gatepost."""
    if not development:
        raise GenerationRefused("the development issuer starts only with --development")
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/dev-as"
    startup_problems = production_check.problems(
        url,
        values["resource"],
        host,
        production=False,
        tls=False,
        trusted_proxies=(),
        other_issuers=(),
        environ=os.environ,
    )
    if startup_problems:
        raise GenerationRefused(
            "the development issuer does not start:\n" + "\n".join(startup_problems)
        )
    secret = secrets.token_urlsafe(24)
    settings = IssuerSettings(
        issuer=url,
        resources=(values["resource"],),
        scopes=tuple(values["scopes"].split()),
        algorithm=values["algorithm"],
        cli_secret=secret,
    )
    click.echo(production_check.BANNER, err=True)
    click.echo(f"client gatepost-cli, secret {secret}", err=True)
    click.echo(f"The development issuer is {url}")
    uvicorn.run(app(settings), host=host, port=port, access_log=False, log_level="warning")


if __name__ == "__main__":
    sys.exit(main())
