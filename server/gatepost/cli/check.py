"""`gatepost check`: print every problem of a configuration."""

import asyncio
from collections import Counter
from pathlib import Path

import click

from gatepost.check.online import check_issuers
from gatepost.check.pack_loading import Toolbox
from gatepost.cli.configuration import config_option, examine, show, visible
from gatepost.tools.api import WORDS


@click.command()
@config_option
@click.option("--online", is_flag=True, help="Ask each issuer for metadata, keys and our clients.")
def check(path: Path, online: bool) -> None:
    """
    Check a configuration and print every problem with an id and a hint; exit 1 on errors.

    With --online, the command also asks each issuer. It sends a random token to introspection and
    a random code to the token endpoint, so the issuer's log has one refused request for each.
    """
    config, toolbox, found = examine(path)
    answers: tuple[str, ...] = ()
    if online and config is not None and not any(one.level == "error" for one in found):
        scopes = {scope for offer in toolbox.offers for scope in offer.scopes}
        result = asyncio.run(check_issuers(config, scopes.union(config.scopes.baseline)))
        answers, found = result.lines, [*found, *result.problems]
    show(found)
    for line in answers:
        click.echo(visible(line))
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
