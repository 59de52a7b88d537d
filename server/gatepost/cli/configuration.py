"""Load and check the configuration for commands."""

import difflib
import getpass
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gatepost.check import file_permissions
from gatepost.check.pack_loading import LoadedPacks, load
from gatepost.check.problems import lines_about, problems
from gatepost.config.reading import read
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config
from gatepost.runtime.reload import known_tenants
from gatepost.storage.backends import MEMORY
from gatepost.storage.sqlite_file import SCHEME, exists, given_path
from gatepost_authz.config import TENANT_ID, Problem

DEFAULT_FILE = Path("gatepost.toml")
Command = TypeVar("Command", bound=Callable[..., Any])

tenant_option = click.option("--tenant", required=True, help="Tenant id.")


def config_option(command: Command) -> Command:
    """Add the option `--config` to a command."""
    return click.option(
        "--config",
        "path",
        type=click.Path(path_type=Path),
        default=DEFAULT_FILE,
        show_default=True,
        help="Configuration file. GATEPOST_... environment variables override its settings.",
    )(command)


def config_argument(path: Path) -> str:
    """Return the option `--config` as a printed command needs it; empty for the default file."""
    return "" if path == DEFAULT_FILE else f" --config {shlex.quote(str(path))}"


def examine(
    path: Path, *, workers: int | None = None
) -> tuple[Config | None, LoadedPacks, list[Problem]]:
    """
    Read and check the configuration.

    If the default file is missing, only the environment is used. *workers* overrides
    ``listen.workers``.
    """
    missing = path == DEFAULT_FILE and not path.exists() and "GATEPOST_RESOURCE" in os.environ
    reading = read(None if missing else path, os.environ)
    if reading.valid_values is None:
        return None, LoadedPacks((), ()), list(reading.problems)
    fitting = with_workers(reading.valid_values, workers)
    loaded_packs = load(fitting.tools, fitting.packs, fitting.network)
    judged = [*problems(fitting, loaded_packs)]
    if not (missing or fitting.development):
        judged += file_permissions.of_configuration(path)
    if reading.config is None:
        judged = [problem for problem in judged if not reading.explains(problem)]
    config = None if reading.config is None else fitting
    return config, loaded_packs, [*reading.problems, *judged]


def check_tenant(config: Config, tenant: str) -> None:
    """Refuse a tenant that is not configured, and a store in another process's memory."""
    tenants = known_tenants(config) | {config.stdio.tenant}
    if not TENANT_ID.fullmatch(tenant) or not (config.creates_tenants or tenant in tenants):
        raise click.ClickException(f"The configuration has no tenant {visible(tenant)}.")
    check_store(config)


def check_store(config: Config) -> None:
    """Refuse a store in another process's memory."""
    if resolved_setting(config.storage.database) == MEMORY:
        raise click.ClickException(
            "`storage.database` is in the server's memory, which other processes cannot change. "
            "Set it to a SQLite file or PostgreSQL."
        )


def check_database(config: Config) -> None:
    """
    Refuse a SQLite file that does not exist.

    A command that created it would revoke, suspend or verify in an empty database, and report
    success.
    """
    url = resolved_setting(config.storage.database)
    if url.startswith(SCHEME) and not exists(url):
        raise click.ClickException(
            f"There is no database {os.path.abspath(given_path(url))} (storage.database). "
            "A relative path starts at the folder of the command: run it in the server's folder. "
            "The server creates the database at its first start."
        )


def fit_for(path: Path, settings: tuple[str, ...]) -> Config:
    """Return the configuration if these *settings* have no errors; else exit 1."""
    config, _, problems = examine(path)
    if config is not None:
        problems = [
            problem
            for problem in problems
            if problem.setting in settings and problem.level == "error"
        ]
    show(problems)
    if config is None or problems:
        raise click.exceptions.Exit(1)
    return config


def administrator() -> str:
    """Return the operating system user who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container the uid may have no name.
        return f"uid {os.getuid()}"


def visible(line: str) -> str:
    """Return a line with control and reordering characters escaped."""
    return "".join(
        character
        if character.isprintable() or character == "\t"
        else character.encode("unicode_escape").decode()
        for character in line
    )


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a known name similar to *name* as a question to append; else an empty string."""
    similar = difflib.get_close_matches(name, [*names], n=1, cutoff=0.5)
    return f" Did you mean {similar[0]}?" if similar else ""


def with_workers(config: Config, workers: int | None) -> Config:
    """Return the configuration with another number of workers, if one is given."""
    if workers is None:
        return config
    listen = msgspec.structs.replace(config.listen, workers=workers)
    return msgspec.structs.replace(config, listen=listen)


def checked_configuration(
    path: Path,
    *,
    workers: int | None = None,
    ignored: frozenset[str] = frozenset(),
    also: Callable[[Config], Iterable[Problem]] | None = None,
) -> tuple[Config, LoadedPacks]:
    """
    Return the configuration if it has no errors; else print all problems and exit 1.

    Problems with an id in *ignored* are ignored, and problems that *also* finds are added.
    """
    config, loaded_packs, problems = examine(path, workers=workers)
    problems = [problem for problem in problems if problem.id not in ignored]
    if config is not None and also is not None:
        problems += [problem for problem in also(config) if problem not in problems]
    show(problems)
    if config is None or any(problem.level == "error" for problem in problems):
        raise click.exceptions.Exit(1)
    return config, loaded_packs


def show(problems: Iterable[Problem]) -> None:
    """Print one problem per paragraph on standard error, errors first."""
    for line in lines_about(problems):
        click.echo(line, err=True)
