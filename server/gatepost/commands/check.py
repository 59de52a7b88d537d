"""`gatepost check`: every problem of a configuration."""

from collections import Counter
from pathlib import Path

import click

from gatepost.commands.configuration import config_option, examine, show
from gatepost.config.toolbox import Toolbox
from gatepost.tools.api import WORDS


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
            f"{counted(toolbox)}."
        )


def counted(toolbox: Toolbox) -> str:
    """How many there are of each kind, as in `4 tools, 1 prompt`."""
    kinds = Counter(WORDS[offer.kind] for offer in toolbox.offers)
    shown = [f"{n} {word}{'s' if n != 1 else ''}" for word, n in kinds.items()]
    return ", ".join(shown) or "nothing"
