"""`gatepost check`: print every problem of a configuration."""

import asyncio
from collections import Counter
from pathlib import Path

import click

from gatepost.check.online import check_issuers
from gatepost.check.pack_loading import Toolbox
from gatepost.cli.configuration import config_option, examine, show, visible
from gatepost.config.settings import Config
from gatepost.tools.offers.offer import WORDS
from gatepost_authz.effective_rules import effective_rules


@click.command()
@config_option
@click.option(
    "--online",
    is_flag=True,
    help="Ask each issuer for its metadata, its keys and Gatepost's own clients.",
)
def check(path: Path, online: bool) -> None:
    """
    Check a configuration and print every problem with an id and a hint; exit 1 on errors.

    With --online, the command also asks each issuer. It sends a random token to introspection and
    a random code to the token endpoint, so the issuer's log has one refused request for each.
    """
    config, toolbox, problems = examine(path)
    answers: tuple[str, ...] = ()
    if online and config is not None and not any(problem.level == "error" for problem in problems):
        scopes = {scope for offer in toolbox.offers for scope in offer.scopes}
        result = asyncio.run(check_issuers(config, scopes.union(config.scopes.baseline)))
        answers, problems = result.lines, [*problems, *result.problems]
    show(problems)
    for line in answers:
        click.echo(visible(line))
    errors = sum(problem.level == "error" for problem in problems)
    if errors:
        click.echo(f"{errors} error{'s' if errors > 1 else ''} found.", err=True)
        raise click.exceptions.Exit(1)
    if config is not None:
        show_rules(config)
        issuers = len(config.issuers)
        click.echo(
            f"OK: {config.resource}, {issuers} issuer{'s' if issuers != 1 else ''}, "
            f"{counted(toolbox)}."
        )


def show_rules(config: Config) -> None:
    """Print which tokens of each issuer are accepted, and what decides it."""
    for issuer in config.issuers:
        suffix = "" if issuer.enabled else ", off"
        click.echo(f"Tokens of {visible(issuer.issuer)} (preset {issuer.preset}{suffix}):")
        for rule in effective_rules(issuer, config.resource):
            source = f"issuers.{rule.setting}" if rule.setting else "preset"
            click.echo(f"  {rule.name}: {visible(rule.text)} [{source}]")


def counted(toolbox: Toolbox) -> str:
    """Return the number of each kind: `4 tools, 1 prompt`."""
    kinds = Counter(WORDS[offer.kind] for offer in toolbox.offers)
    counts = [f"{n} {noun}{'s' if n != 1 else ''}" for noun, n in kinds.items()]
    return ", ".join(counts) or "nothing"
