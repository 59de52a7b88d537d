"""`gatepost dev`: run a development server that only this machine can reach."""

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from gatepost.check.pack_loading import LoadedPacks, load
from gatepost.check.problems import lines_about, problems
from gatepost.config.settings import Config
from gatepost.dev.composition import (
    HOST,
    IssuerOptions,
    dev_config,
    dev_issuer,
    dev_ring,
    dev_secrets,
    forget_state,
    locked,
    make_state_folder,
    resource_at,
    write_settings,
    write_state,
)
from gatepost.dev.given_settings import given_settings
from gatepost.dev.imitating import scopes_of
from gatepost.dev.source_watch import SourceWatch
from gatepost.dev.token_command import DEFAULT_STATE
from gatepost.dev.upstreams import DevUpstreams, dev_upstreams, upstream_scopes
from gatepost.dev.welcome import lines
from gatepost.runtime.http_server import bind
from gatepost.runtime.server_setup import START_ERRORS, ServerSetup
from gatepost.runtime.signals import exiting_at, note_reloads
from gatepost.secrets.keyring import KeyRing
from gatepost.serve import run as serve
from gatepost.telemetry.logs import configure
from gatepost_authz.config import Problem
from gatepost_keys.imitation import DEVELOPMENT, IMITATIONS, Imitation, nearest
from gatepost_keys.issuer.mount import routes
from gatepost_keys.issuer.production_check import BANNER
from gatepost_keys.issuer.settings import IssuerSettings

RELOAD_SIGNAL = signal.SIGUSR1
"""The signal of the source watch. SIGHUP ends the server, because its terminal has closed."""


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
    "--config",
    "settings",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Configuration whose packs, approvals, limits and other settings apply here, too.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="Load the tools and the configuration again whenever a file of yours changes.",
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
    help="Sign with a new key every SECONDS seconds. Default: never.",
)
@click.option(
    "--auto-approve",
    is_flag=True,
    help="Sign in the first user without showing pages. For tests.",
)
def dev(port: int, files: tuple[str, ...], state: Path, **options: Any) -> None:
    """Run a complete development server: endpoint, sample tools, issuer and three users."""
    issuer_options = IssuerOptions(
        imitation=imitation_of(options["provider"], opaque=options["opaque"]),
        opaque=options["opaque"],
        rotate_keys_every_s=options["rotation_s"] or 0,
        auto_approve=options["auto_approve"],
        any_scope=options["reload"],
    )
    served = dev_upstreams(options["upstreams"], options["file"])
    dev_options = DevOptions(
        port, files, state, issuer_options, served, options["settings"], options["reload"]
    )
    try:
        code = run(dev_options)
    except START_ERRORS as error:
        raise click.ClickException(str(error)) from None
    raise click.exceptions.Exit(code)


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
        able = ", ".join(
            name for name, imitation in IMITATIONS.items() if imitation.opaque != "never"
        )
        raise click.BadParameter(
            f"name a provider by --as that issues opaque access tokens: {able}.",
            param_hint="--opaque",
        )
    return imitation


class DevOptions(msgspec.Struct, frozen=True):
    """The options of the command line."""

    port: int
    files: tuple[str, ...]
    state: Path
    issuer_options: IssuerOptions
    upstreams: DevUpstreams
    settings: Path | None = None
    reload: bool = False

    def configuration(self, port: int) -> tuple[Config, LoadedPacks, list[Problem]]:
        """Read everything (again) for a server at *port*; the errors keep it from serving."""
        reading = given_settings(self.settings, os.environ, resource_at(port))
        config = dev_config(
            port,
            tools=self.files,
            state=self.state,
            issuer_options=self.issuer_options,
            upstreams=self.upstreams,
            user_config=reading.config,
        )
        loaded_packs = load(config.tools, config.packs, config.network)
        translated = scopes_of(
            dev_issuer(config, loaded_packs.declared_scopes, self.issuer_options)
        )
        scopes = config.scopes
        if translated.baseline or translated.implied:
            scopes = translated  # they translate the scopes of the imitated provider
        elif translated.admin and not scopes.admin:
            scopes = msgspec.structs.replace(scopes, admin=translated.admin)
        return msgspec.structs.replace(config, scopes=scopes), loaded_packs, [*reading.problems]

    def reloaded(self, port: int, watch: SourceWatch) -> tuple[Config, LoadedPacks] | None:
        """Read everything again after a change; None if there are errors, which are printed."""
        watch.forget_modules()
        config, loaded_packs, problems_found = self.configuration(port)
        broken = has_errors([*problems_found, *problems(config, loaded_packs)])
        return None if broken else (config, loaded_packs)

    def watch(self, config: Config) -> SourceWatch:
        """Return the watch over the author's files and the configuration."""
        sources = [Path(name) for name in config.tools.load if name.endswith(".py")]
        if self.settings is not None:
            sources.append(self.settings)
        return SourceWatch(sources, lambda: os.kill(os.getpid(), RELOAD_SIGNAL))


def has_errors(problems: Sequence[Problem]) -> bool:
    """Print the errors among these problems; return whether there are any."""
    errors = [problem for problem in problems if problem.level == "error"]
    for line in lines_about(errors):
        click.echo(line, err=True)
    return bool(errors)


def run(options: DevOptions) -> int:
    """Run the development server until a signal and return its exit code."""
    state, issuer_options = options.state, options.issuer_options
    sock = bind(HOST, options.port, "--port")
    port = sock.getsockname()[1]
    config, loaded_packs, problems_found = options.configuration(port)
    scopes = loaded_packs.declared_scopes | upstream_scopes(config)
    if issuer_options.imitation == DEVELOPMENT:
        scopes |= {*config.scopes.named, *config.scopes.implied}
    plan = dev_issuer(config, scopes, issuer_options)
    if reasons := locked(config, plan, os.environ):
        raise click.ClickException("; ".join(reasons))
    secrets = prepared(state, issuer_options.imitation)
    if has_errors([*problems_found, *problems(config, loaded_packs)]):
        return 1
    issuer = dev_issuer(config, scopes, issuer_options, client_secrets=secrets)
    watch, address = options.watch(config), config.metrics_address
    metrics = bind(address.host, address.port, "listen.metrics") if address else None

    def announce() -> None:
        click.echo(BANNER)
        for line in (*ignored(options), *welcome(config, issuer, loaded_packs, state)):
            click.echo(line)
        click.echo(f"Gatepost is ready at {config.resource}")

    # From here on, an end during the start must remove the file of `gatepost token` as well.
    with exiting_at(signal.SIGTERM, signal.SIGHUP):
        keyring, written = written_state(state, config, issuer)
        try:
            setup = ServerSetup(
                config=config,
                loaded_packs=loaded_packs,
                keyring=keyring,
                sock=sock,
                reread=partial(options.reloaded, port, watch) if options.reload else None,
                reload_signal=RELOAD_SIGNAL,
                metrics=metrics,
                development_issuer=routes(issuer),
            )
            if options.reload:
                note_reloads(RELOAD_SIGNAL)
                watch.start()
            return serve(setup, announce)
        finally:
            watch.stop()
            forget_state(written, issuer)


def welcome(
    config: Config, issuer: IssuerSettings, loaded_packs: LoadedPacks, state: Path
) -> list[str]:
    """Return the lines about the server."""
    return lines(config, issuer, sorted(tool.name for tool in loaded_packs.tools), state)


def ignored(options: DevOptions) -> list[str]:
    """Return a line about the tables of the file that this server replaces by its own."""
    names = given_settings(options.settings, os.environ, resource_at(options.port)).ignored
    if not names:
        return []
    tables = ", ".join(f"`{name}`" for name in names)
    return [f"Not used of {options.settings}: {tables}. The development server has its own."]


def prepared(state: Path, imitation: Imitation) -> dict[str, str]:
    """Create the state folder and return the secrets of the clients in it."""
    # Without a format, the line about a file that was open to others would not name the file.
    configure(level="warning", form="console")
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
    except OSError as error:
        raise unusable(state, error) from None


def unusable(state: Path, error: OSError) -> click.ClickException:
    """Return the error for a state folder that cannot be used."""
    return click.ClickException(
        f"the state directory {state} cannot be used: {error.strerror}; choose one with --state"
    )
