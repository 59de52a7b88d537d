"""`gatepost check`: print every problem of a configuration."""

from collections import Counter
from pathlib import Path

import click

from gatepost.check.pack_loading import Toolbox
from gatepost.cli.configuration import config_option, examine, show
from gatepost.tools.api import WORDS


@click.command()
@config_option
def check(path: Path) -> None:
    """Check a configuration and print every problem with an id and a hint; exit 1 on errors."""
    config, toolbox, found = examine(path)
    show(found)
    errors = sum(problem.level == "error" for problem in found)
    if errors:
        click.echo(f"{errors} error{'s' if errors > 1 else ''} found.", err=True)
        raise click.exceptions.Exit(1)
    if config is not None:
        issuers = len(config.issuers)
        click.echo(
            f"OK: {config.resource}, {issuers} issuer{'s' if issuers != 1 else ''}, "
            f"{counted(toolbox)}."
        )


def counted(toolbox: Toolbox) -> str:
    """Return the number of each kind: `4 tools, 1 prompt`."""
    kinds = Counter(WORDS[offer.kind] for offer in toolbox.offers)
    shown = [f"{n} {word}{'s' if n != 1 else ''}" for word, n in kinds.items()]
    return ", ".join(shown) or "nothing"
