"""`gatepost migrate`: brings the database to what this version needs."""

import asyncio
import importlib
from pathlib import Path

import click

from gatepost.commands.configuration import config_option, examine, show
from gatepost.config.references import plain
from gatepost.stores.api import StoreRefused, StoreUnavailable
from gatepost.stores.backends import DATABASES, MEMORY, scheme_of


@click.command()
@config_option
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when something is to be done.")
def migrate(path: Path, check: bool) -> None:
    """Bring the database to the revision that this version needs, all of it or nothing."""
    url = database(path)
    if url == MEMORY:
        click.echo("There is nothing to migrate: `storage.database` is this process's memory.")
        return
    # By name: no other command needs the database's drivers before it is opened.
    sql = importlib.import_module(DATABASES[scheme_of(url)].place)
    try:
        if check:
            asyncio.run(sql.check(url))
            click.echo("The database is at the revision that this version needs.")
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
    """The configured database's address; what else is wrong with the configuration may wait."""
    config, _, found = examine(path)
    if config is not None:
        found = [one for one in found if one.setting == "storage.database"]
    show(found)
    if config is None or any(one.level == "error" for one in found):
        raise click.exceptions.Exit(1)
    return plain(config.storage.database)
