"""`gatepost check`: every problem of a configuration."""

from pathlib import Path

import click

from gatepost.commands.configuration import config_option, examine, show


@click.command()
@config_option
def check(path: Path) -> None:
    """Print every problem of a configuration, with an id and a hint; exit 1 on any error."""
    config, toolbox, found = examine(path)
    show(found)
    errors = sum(problem.level == "error" for problem in found)
    if errors:
        click.echo(f"{errors} problem{'s' if errors > 1 else ''} to solve.", err=True)
        raise click.exceptions.Exit(1)
    if config is not None:
        issuers = len(config.issuers)
        click.echo(
            f"Fine: {config.resource}, {issuers} issuer{'s' if issuers != 1 else ''}, "
            f"{len(toolbox.tools)} tools."
        )
