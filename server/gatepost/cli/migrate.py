"""`gatepost migrate`: migrate the database to the schema of this version."""

import asyncio
import importlib
from pathlib import Path

import click

from gatepost.cli.configuration import config_option, examine, show
from gatepost.config.references import resolved_setting
from gatepost.storage.backends import DATABASES, MEMORY, scheme_of
from gatepost.storage.errors import StoreRefused, StoreUnavailable


@click.command()
@config_option
@click.option("--check", is_flag=True, help="Change nothing. Exit 1 if a migration is needed.")
def migrate(path: Path, check: bool) -> None:
    """Migrate the database to the revision that this version needs, completely or not at all."""
    url = database(path)
    if url == MEMORY:
        click.echo("There is nothing to migrate, because `storage.database` is in memory.")
        return
    # Imported on use, because only this command needs the database drivers at this point.
    sql = importlib.import_module(DATABASES[scheme_of(url)].module)
    try:
        if check:
            asyncio.run(sql.check(url))
            click.echo("The database is up to date.")
            return
        move = asyncio.run(sql.migrate(url))
    except (StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None
    for step in move.steps:
        click.echo(step)
    if move.steps:
        click.echo(f"Migrated from revision {move.before or 'none'} to {move.after}.")
    else:
        click.echo(f"Nothing to do: the database is at revision {move.after}.")


def database(path: Path) -> str:
    """Return the configured database URL; problems of other settings are ignored."""
    config, _, problems = examine(path)
    if config is not None:
        problems = [problem for problem in problems if problem.setting == "storage.database"]
    show(problems)
    if config is None or any(problem.level == "error" for problem in problems):
        raise click.exceptions.Exit(1)
    return resolved_setting(config.storage.database)
