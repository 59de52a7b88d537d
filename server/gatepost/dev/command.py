"""`gatepost dev`: everything on one laptop, reachable from this machine only."""

import os
from pathlib import Path

import click

from gatepost.commands.configuration import show
from gatepost.commands.serve import listening, running
from gatepost.commands.token import DEFAULT_STATE
from gatepost.config.judgement import problems
from gatepost.config.toolbox import load
from gatepost.dev.composition import (
    HOST,
    dev_config,
    dev_issuer,
    dev_ring,
    dev_secret,
    forget_state,
    locked,
    make_state_folder,
    write_settings,
    write_state,
)
from gatepost.dev.welcome import lines
from gatepost.keyring import KeyRingError
from gatepost.serve import Job
from gatepost_keys.issuer.locks import BANNER
from gatepost_keys.issuer.mount import routes


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="The port on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--tools",
    "files",
    multiple=True,
    metavar="FILE.py",
    help="A file with tools of your own; may be given several times.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Where workspaces and the state for `gatepost token` are kept.",
)
@click.option(
    "--auto-approve",
    is_flag=True,
    help="Sign the first user in without showing pages, for tests.",
)
def dev(port: int, files: tuple[str, ...], state: Path, auto_approve: bool) -> None:
    """Run everything on this machine: the endpoint, sample tools, an issuer, three users."""
    sock = listening(HOST, port, "--port")
    config = dev_config(sock.getsockname()[1], tools=files, state=state)
    toolbox = load(config.tools, config.packs, config.network)
    scopes = toolbox.declared_scopes
    if reasons := locked(config, dev_issuer(config, scopes, auto_approve=auto_approve), os.environ):
        raise click.ClickException("; ".join(reasons))
    secret = prepared(state)
    errors = [one for one in problems(config, toolbox) if one.level == "error"]
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

    job = Job(
        config=config,
        toolbox=toolbox,
        keyring=keyring,
        sock=sock,
        development_issuer=routes(issuer),
    )
    try:
        code = running(job, announce)
    finally:
        forget_state(written, issuer)
    raise click.exceptions.Exit(code)


def prepared(state: Path) -> str:
    """Make the state folder, and answer the secret of the dashboard's client that it holds."""
    try:
        make_state_folder(state)
        return dev_secret(state)
    except OSError as error:
        raise unusable(state, error) from None


def unusable(state: Path, error: OSError) -> click.ClickException:
    """What is told of a state folder that cannot be used."""
    return click.ClickException(
        f"the state directory {state} cannot be used: {error.strerror}; choose one with --state"
    )
