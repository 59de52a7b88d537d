"""The command line: a table of commands, each loaded when it runs."""

import gc
import importlib
from typing import NamedTuple

import click

COLLECT_AFTER = 250_000
"""
Objects that may gather before the collector looks for cycles among them: more than any command
makes until it begins its work. What serves looks more often (`gatepost.collector`).
"""


class Row(NamedTuple):
    """Where a command is, and the line that `gatepost --help` shows for it."""

    place: str
    summary: str


# Loaded by name, so that `serve` imports neither the doctor nor the development issuer, and
# `--help` imports nothing.
COMMANDS = {
    "dev": Row("gatepost.dev.command:dev", "Run everything on this machine, with sample tools."),
    "token": Row("gatepost.commands.token:token", "Print a token of the running `gatepost dev`."),
    "serve": Row("gatepost.commands.serve:serve", "Run the server."),
    "stdio": Row("gatepost.commands.stdio:stdio", "Serve one caller over stdin and stdout."),
    "check": Row("gatepost.commands.check:check", "Print every problem of a configuration."),
    "tools": Row("gatepost.commands.tools:tools", "List what a configuration enables."),
    "doctor": Row("gatepost.commands.doctor:command", "Walk a client's way to a server's tools."),
    "migrate": Row(
        "gatepost.commands.migrate:migrate", "Bring the database to what this version needs."
    ),
    "backup": Row("gatepost.commands.backup:backup", "Copy the SQLite database while servers run."),
    "secrets": Row("gatepost.commands.secrets:secrets", "Set, list and delete tenants' secrets."),
    "audit": Row("gatepost.commands.audit:audit", "Verify, export and anchor the record."),
    "keyring": Row("gatepost.commands.keyring:keyring", "Make and rotate the key ring."),
    "approvals": Row("gatepost.commands.approvals:approvals", "Decide about calls that wait."),
    "tenant": Row("gatepost.commands.tenant:tenant", "List, suspend and erase tenants."),
    "revoke": Row("gatepost.commands.revoke:revoke", "Refuse tokens before they expire."),
    "scripts": Row("gatepost.commands.scripts:scripts", "List, approve and revoke scripts."),
}


class LazyGroup(click.Group):
    """A group whose commands are the rows of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        module, _, name = row.place.partition(":")
        # What a start makes stays to the end: to look for garbage among it is a tenth of the start.
        gc.set_threshold(COLLECT_AFTER, 10, 10)
        command = getattr(importlib.import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.summary) for name, row in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        # By name: no other use of this program waits for it.
        metadata = importlib.import_module("importlib.metadata")
        try:
            click.echo(f"gatepost {metadata.version('gatepost')}")
        except metadata.PackageNotFoundError:
            click.echo("gatepost, run from its source")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and end.",
)
def main() -> None:
    """
    Put tools behind an OAuth gate: a remote MCP server for many tenants.

    Start with `gatepost dev`. Exit codes: 0 fine, 1 found problems, 2 wrong use.
    """
