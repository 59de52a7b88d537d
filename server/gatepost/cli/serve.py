"""`gatepost serve`: run the server."""

import socket
from collections.abc import Callable
from pathlib import Path

import click

from gatepost.check.pack_loading import Toolbox
from gatepost.cli.configuration import config_option, examine, settled, show
from gatepost.config.settings import Config
from gatepost.runtime.server import bind
from gatepost.runtime.services import keyring_of
from gatepost.secrets.keyring import KeyRingError
from gatepost.serve import ServerSetup, run
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.tools.lifespan import LifespanFailed


@click.command()
@config_option
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Number of server processes. Default: listen.workers.",
)
def serve(path: Path, workers: int | None) -> None:
    """Run the server until SIGTERM or Ctrl+C. Running calls finish first."""
    config, toolbox = settled(path, workers=workers)

    def fresh() -> tuple[Config, Toolbox] | None:
        again, tools, found = examine(path, workers=workers)
        show(found)
        broken = again is None or any(problem.level == "error" for problem in found)
        return None if broken or again is None else (again, tools)

    try:
        keyring = keyring_of(config)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    sock = listening(config.listen.host, config.listen.port, "listen.port")
    address = config.metrics_address
    metrics = listening(address.host, address.port, "listen.metrics") if address else None
    setup = ServerSetup(
        config=config, toolbox=toolbox, keyring=keyring, sock=sock, fresh=fresh, metrics=metrics
    )
    code = running(setup, lambda: click.echo(f"Gatepost is ready at {config.resource}"))
    raise click.exceptions.Exit(code)


def running(setup: ServerSetup, announce: Callable[[], object]) -> int:
    """Serve until a signal and return the exit code; store errors become messages."""
    try:
        return run(setup, announce)
    except (StoreRefused, StoreUnavailable, LifespanFailed) as error:
        raise click.ClickException(str(error)) from None


def listening(host: str, port: int, setting: str) -> socket.socket:
    """Return the listening socket; raises ClickException with the reason."""
    try:
        return bind(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port} ({setting}): {error.strerror}. "
            "Is another server running there?"
        ) from None
