"""`gatepost serve`: the server."""

import socket
from collections.abc import Callable
from pathlib import Path

import click

from gatepost.commands.configuration import config_option, examine, settled, show
from gatepost.config.toolbox import Toolbox
from gatepost.keyring import KeyRingError
from gatepost.listen import bind
from gatepost.serve import Job, run
from gatepost.services import keyring_of
from gatepost.settings import Config
from gatepost.stores.api import StoreRefused, StoreUnavailable


@click.command()
@config_option
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="How many processes serve (default: listen.workers).",
)
def serve(path: Path, workers: int | None) -> None:
    """Run the server until SIGTERM or Ctrl+C; running calls are finished first."""
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
    job = Job(
        config=config, toolbox=toolbox, keyring=keyring, sock=sock, fresh=fresh, metrics=metrics
    )
    code = running(job, lambda: click.echo(f"Gatepost is ready at {config.resource}"))
    raise click.exceptions.Exit(code)


def running(job: Job, announce: Callable[[], object]) -> int:
    """Serve until a signal, and answer the exit code; stores that cannot be used are a sentence."""
    try:
        return run(job, announce)
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def listening(host: str, port: int, setting: str) -> socket.socket:
    """The socket, or a sentence saying why there is none."""
    try:
        return bind(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port} ({setting}): {error.strerror}. "
            "Is another server running there?"
        ) from None
