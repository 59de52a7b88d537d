"""How commands get their configuration: read, judged, or refused with every problem it has."""

import difflib
import getpass
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gatepost.config.judgement import problems
from gatepost.config.reading import read
from gatepost.config.references import plain
from gatepost.config.toolbox import Toolbox, load
from gatepost.renewal import known_tenants
from gatepost.settings import Config
from gatepost.stores.backends import MEMORY
from gatepost_authz.config import TENANT_ID, Problem

DEFAULT_FILE = Path("gatepost.toml")
Command = TypeVar("Command", bound=Callable[..., Any])


def config_option(command: Command) -> Command:
    """`--config`, as every command has it."""
    return click.option(
        "--config",
        "path",
        type=click.Path(path_type=Path),
        default=DEFAULT_FILE,
        show_default=True,
        help="The configuration file. GATEPOST_... variables override what it says.",
    )(command)


def examine(
    path: Path, *, workers: int | None = None
) -> tuple[Config | None, Toolbox, list[Problem]]:
    """
    Read and judge the configuration; a missing default file leaves the environment alone.

    *workers* stands in the place of ``listen.workers``, and is judged like it.
    """
    missing = path == DEFAULT_FILE and not path.exists() and "GATEPOST_RESOURCE" in os.environ
    reading = read(None if missing else path, os.environ)
    if reading.fitting is None:
        return None, Toolbox((), ()), list(reading.problems)
    fitting = with_workers(reading.fitting, workers)
    toolbox = load(fitting.tools, fitting.packs, fitting.network)
    judged = problems(fitting, toolbox)
    if reading.config is None:
        judged = (one for one in judged if not reading.settles(one))
    config = None if reading.config is None else fitting
    return config, toolbox, [*reading.problems, *judged]


def check_tenant(config: Config, tenant: str) -> None:
    """Refuse a tenant that the configuration does not know, and a store of another process."""
    known = known_tenants(config) | {config.stdio.tenant}
    if not TENANT_ID.fullmatch(tenant) or not (config.creates_tenants or tenant in known):
        raise click.ClickException(f"The configuration knows no tenant {visible(tenant)}.")
    check_store(config)


def check_store(config: Config) -> None:
    """Refuse a store of another process."""
    if plain(config.storage.database) == MEMORY:
        raise click.ClickException(
            "`storage.database` is the memory of the server's process, which no other one can "
            "change. Choose a file or PostgreSQL."
        )


def fit_for(path: Path, needs: tuple[str, ...]) -> Config:
    """The configuration, if the settings *needs* are as they should be; else exit 1."""
    config, _, found = examine(path)
    if config is not None:
        found = [one for one in found if one.setting in needs and one.level == "error"]
    show(found)
    if config is None or found:
        raise click.exceptions.Exit(1)
    return config


def administrator() -> str:
    """Who runs the command, as the machine knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container runs as numbers without names.
        return f"uid {os.getuid()}"


def visible(line: str) -> str:
    """A line with what a terminal would act on, or would reorder, as escapes."""
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode()
        for one in line
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name that *word* comes near, as a question to append; else nothing."""
    near = difflib.get_close_matches(word, [*known], n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def with_workers(config: Config, workers: int | None) -> Config:
    """The configuration with another number of processes, if there is one."""
    if workers is None:
        return config
    listen = msgspec.structs.replace(config.listen, workers=workers)
    return msgspec.structs.replace(config, listen=listen)


def settled(
    path: Path,
    *,
    workers: int | None = None,
    beside: frozenset[str] = frozenset(),
    also: Callable[[Config], Iterable[Problem]] | None = None,
) -> tuple[Config, Toolbox]:
    """
    The configuration, if nothing in it keeps it from serving; else exit 1, saying all.

    Problems *beside* the command's concerns do not count, and what is *also* wrong does.
    """
    config, toolbox, found = examine(path, workers=workers)
    found = [problem for problem in found if problem.id not in beside]
    if config is not None and also is not None:
        found += [problem for problem in also(config) if problem not in found]
    show(found)
    if config is None or any(problem.level == "error" for problem in found):
        raise click.exceptions.Exit(1)
    return config, toolbox


def show(found: Iterable[Problem]) -> None:
    """One problem a paragraph, on standard error, errors first."""
    for problem in sorted(found, key=lambda problem: problem.level != "error"):
        where = f" [{problem.setting}]" if problem.setting else ""
        click.echo(f"{problem.level} {problem.id}{where}: {problem.message}", err=True)
        if problem.hint:
            click.echo(f"    {problem.hint}", err=True)
