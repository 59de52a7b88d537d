"""`gatepost dev`: run a development server that only this machine can reach."""

import os
from pathlib import Path

import click

from gatepost.check.pack_loading import load
from gatepost.check.problems import problems
from gatepost.cli.configuration import show
from gatepost.cli.serve import listening, running
from gatepost.cli.token import DEFAULT_STATE
from gatepost.dev.composition import (
    HOST,
    dev_config,
    dev_issuer,
    dev_ring,
    dev_secret,
    forget_state,
    limits_of,
    locked,
    make_state_folder,
    write_settings,
    write_state,
)
from gatepost.dev.welcome import lines
from gatepost.secrets.keyring import KeyRingError
from gatepost.serve import ServerSetup
from gatepost_keys.issuer.locks import BANNER
from gatepost_keys.issuer.mount import routes


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port on 127.0.0.1. 0 picks a free port.",
)
@click.option(
    "--tools",
    "files",
    multiple=True,
    metavar="FILE.py",
    help="Python file with your own tools. Can be given several times.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Directory for workspaces, the database and the state for `gatepost token`.",
)
@click.option(
    "--auto-approve",
    is_flag=True,
    help="Sign in the first user without showing pages. For tests.",
)
def dev(port: int, files: tuple[str, ...], state: Path, auto_approve: bool) -> None:
    """Run a complete development server: endpoint, sample tools, issuer and three users."""
    sock = listening(HOST, port, "--port")
    limits, mistakes = limits_of(os.environ)
    config = dev_config(sock.getsockname()[1], tools=files, state=state, limits=limits)
    toolbox = load(config.tools, config.packs, config.network)
    scopes = toolbox.declared_scopes
    if reasons := locked(config, dev_issuer(config, scopes, auto_approve=auto_approve), os.environ):
        raise click.ClickException("; ".join(reasons))
    secret = prepared(state)
    errors = [one for one in (*mistakes, *problems(config, toolbox)) if one.level == "error"]
    if errors:
        show(errors)
        raise click.exceptions.Exit(1)
    issuer = dev_issuer(config, scopes, auto_approve=auto_approve, dashboard_secret=secret)
    try:
        keyring = dev_ring(state)
        write_settings(state, config)
        written = write_state(state, config, issuer)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise unusable(state, error) from None

    def announce() -> None:
        click.echo(BANNER)
        names = sorted(tool.name for tool in toolbox.tools)
        for line in lines(config.resource, names, state):
            click.echo(line)
        click.echo(f"Gatepost is ready at {config.resource}")

    setup = ServerSetup(
        config=config,
        toolbox=toolbox,
        keyring=keyring,
        sock=sock,
        development_issuer=routes(issuer),
    )
    try:
        code = running(setup, announce)
    finally:
        forget_state(written, issuer)
    raise click.exceptions.Exit(code)


def prepared(state: Path) -> str:
    """Create the state folder and return the dashboard's client secret in it."""
    try:
        make_state_folder(state)
        return dev_secret(state)
    except OSError as error:
        raise unusable(state, error) from None


def unusable(state: Path, error: OSError) -> click.ClickException:
    """Return the error for a state folder that cannot be used."""
    return click.ClickException(
        f"the state directory {state} cannot be used: {error.strerror}; choose one with --state"
    )
