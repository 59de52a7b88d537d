"""`gatepost serve`: run the server."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gatepost.check.pack_loading import LoadedPacks
from gatepost.cli import TIMINGS
from gatepost.cli.configuration import checked_configuration, config_option, examine
from gatepost.config.settings import Config
from gatepost.runtime.http_server import bind
from gatepost.runtime.server_setup import START_ERRORS, ServerSetup, nothing
from gatepost.runtime.stores import keyring_of
from gatepost.serve import run
from gatepost_authz.config import Problem

if TYPE_CHECKING:
    from gatepost.cli.timings import StartTimings

_log = logging.getLogger(__name__)


@click.command()
@config_option
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Number of server processes. Default: listen.workers.",
)
@click.option(
    TIMINGS,
    is_flag=True,
    expose_value=False,
    help="Print how long each part of the start took, once the server is ready.",
)
@click.pass_obj
def serve(timings: "StartTimings | None", path: Path, workers: int | None) -> None:
    """Run the server until SIGTERM or Ctrl+C. Running calls finish first."""
    part_done = timings.part_done if timings is not None else nothing
    part_done("imports of the command")
    config, loaded_packs = checked_configuration(path, workers=workers)
    part_done("configuration, tools and their checks")

    def reread() -> tuple[Config, LoadedPacks] | None:
        config, tools, problems = examine(path, workers=workers)
        log_problems(problems)
        broken = config is None or any(problem.level == "error" for problem in problems)
        return None if broken or config is None else (config, tools)

    def announce() -> None:
        click.echo(f"Gatepost is ready at {config.resource}")
        if timings is not None:
            timings.part_done("ready")
            click.echo("\n".join(timings.table()))

    address = config.metrics_address
    try:
        keyring = keyring_of(config)
        # A start that fails would reset connections that the system has accepted. A proxy sends a
        # request that is refused to another replica, but none that was reset.
        sock = bind(config.listen.host, config.listen.port, listens=False)
        metrics = bind(address.host, address.port, "listen.metrics") if address else None
        part_done("key ring and sockets")
        setup = ServerSetup(
            config=config,
            loaded_packs=loaded_packs,
            keyring=keyring,
            sock=sock,
            reread=reread,
            metrics=metrics,
            part_done=part_done,
        )
        code = run(setup, announce)
    except START_ERRORS as error:
        raise click.ClickException(str(error)) from None
    raise click.exceptions.Exit(code)


def log_problems(problems: Iterable[Problem]) -> None:
    """Log each problem of a reload: lines of text would get lost where events are collected."""
    for problem in problems:
        members = {
            "id": problem.id,
            "setting": problem.setting,
            "problem": problem.message,
            "hint": problem.hint,
        }
        level = logging.ERROR if problem.level == "error" else logging.WARNING
        _log.log(level, "configuration_problem", extra=members)
