"""`gatepost dev`: run a development server that only this machine can reach."""

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from gatepost.check.pack_loading import load
from gatepost.check.problems import problems
from gatepost.cli.configuration import show
from gatepost.cli.serve import listening, running
from gatepost.cli.token import DEFAULT_STATE
from gatepost.config.settings import Config
from gatepost.dev.composition import (
    HOST,
    IssuerHabits,
    dev_config,
    dev_issuer,
    dev_ring,
    dev_secrets,
    forget_state,
    limits_of,
    locked,
    make_state_folder,
    write_settings,
    write_state,
)
from gatepost.dev.imitating import scopes_of
from gatepost.dev.upstreams import DevUpstreams, dev_upstreams
from gatepost.dev.welcome import lines
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.serve import ServerSetup
from gatepost_keys.imitation import DEVELOPMENT, IMITATIONS, Imitation, nearest
from gatepost_keys.issuer.locks import BANNER
from gatepost_keys.issuer.mount import routes
from gatepost_keys.issuer.settings import IssuerSettings


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
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="NAME=URL",
    help="MCP server to put behind the gate. Can be given several times.",
)
@click.option(
    "--upstreams",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="mcpServers file (JSON) whose MCP servers are put behind the gate.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Directory for workspaces, the database and the state for `gatepost token`.",
)
@click.option(
    "--as",
    "provider",
    default="",
    metavar="PROVIDER",
    help="Imitate an identity provider: claims, audiences, scopes, endpoints, errors. "
    f"One of {', '.join(IMITATIONS)}.",
)
@click.option("--opaque", is_flag=True, help="With --as: issue opaque access tokens.")
@click.option(
    "--rotate-keys-every",
    "rotation_s",
    type=click.IntRange(1, 86_400),
    metavar="SECONDS",
    help="Sign with a new key after so many seconds. Default: never.",
)
@click.option(
    "--auto-approve",
    is_flag=True,
    help="Sign in the first user without showing pages. For tests.",
)
def dev(port: int, files: tuple[str, ...], state: Path, **more: Any) -> None:
    """Run a complete development server: endpoint, sample tools, issuer and three users."""
    habits = IssuerHabits(
        imitation=imitation_of(more["provider"], opaque=more["opaque"]),
        opaque=more["opaque"],
        rotate_keys_every_s=more["rotation_s"] or 0,
        auto_approve=more["auto_approve"],
    )
    run(port, files, state, habits, dev_upstreams(more["upstreams"], more["file"]))


def imitation_of(provider: str, *, opaque: bool) -> Imitation:
    """Return the imitation of that name; a usage error if there is none, or it does not fit."""
    if provider and provider not in IMITATIONS:
        like = nearest(provider)
        hint = f"Did you mean {like}? " if like else ""
        raise click.BadParameter(
            f"no imitation is called {provider!r}. {hint}There are: {', '.join(IMITATIONS)}.",
            param_hint="--as",
        )
    imitation = IMITATIONS[provider] if provider else DEVELOPMENT
    if opaque and (not provider or imitation.opaque == "never"):
        able = ", ".join(name for name, one in IMITATIONS.items() if one.opaque != "never")
        raise click.BadParameter(
            f"name a provider by --as that issues opaque access tokens: {able}.",
            param_hint="--opaque",
        )
    return imitation


def run(
    port: int,
    files: tuple[str, ...],
    state: Path,
    habits: IssuerHabits,
    upstreams: DevUpstreams,
) -> None:
    """Run the development server with an issuer of these *habits*."""
    sock = listening(HOST, port, "--port")
    limits, mistakes = limits_of(os.environ)
    config = dev_config(
        sock.getsockname()[1],
        tools=files,
        state=state,
        limits=limits,
        habits=habits,
        upstreams=upstreams,
    )
    toolbox = load(config.tools, config.packs, config.network)
    scopes = toolbox.declared_scopes
    plan = dev_issuer(config, scopes, habits)
    if reasons := locked(config, plan, os.environ):
        raise click.ClickException("; ".join(reasons))
    config = msgspec.structs.replace(config, scopes=scopes_of(plan))
    secrets = prepared(state, habits.imitation)
    errors = [one for one in (*mistakes, *problems(config, toolbox)) if one.level == "error"]
    if errors:
        show(errors)
        raise click.exceptions.Exit(1)
    issuer = dev_issuer(config, scopes, habits, client_secrets=secrets)
    keyring, written = written_state(state, config, issuer)

    def announce() -> None:
        click.echo(BANNER)
        for line in lines(config, issuer, sorted(tool.name for tool in toolbox.tools), state):
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


def prepared(state: Path, imitation: Imitation) -> dict[str, str]:
    """Create the state folder and return the secrets of the clients in it."""
    try:
        make_state_folder(state)
        return dev_secrets(state, imitation)
    except OSError as error:
        raise unusable(state, error) from None


def written_state(state: Path, config: Config, issuer: IssuerSettings) -> tuple[KeyRing, Path]:
    """Write what commands read, and return the key ring and the file of `gatepost token`."""
    try:
        keyring = dev_ring(state)
        write_settings(state, config)
        return keyring, write_state(state, config, issuer)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise unusable(state, error) from None


def unusable(state: Path, error: OSError) -> click.ClickException:
    """Return the error for a state folder that cannot be used."""
    return click.ClickException(
        f"the state directory {state} cannot be used: {error.strerror}; choose one with --state"
    )
