"""The command line: a table of commands, which are imported on use."""

import gc
import importlib
from typing import NamedTuple

import click

from gatepost.cli import TIMINGS

COLLECT_AFTER = 250_000
"""
Number of objects after which garbage collection runs.

No command creates as many before it starts its work. The server collects more often
(`gatepost.runtime.interpreter`).
"""


class CommandEntry(NamedTuple):
    """The location of a command, and its line in `gatepost --help`."""

    target: str
    summary: str


# Loaded by name, so that `serve` imports neither the doctor nor the development issuer, and
# `--help` imports nothing.
COMMANDS = {
    "dev": CommandEntry(
        "gatepost.dev.command:dev", "Run a complete development server on this machine."
    ),
    "token": CommandEntry(
        "gatepost.dev.token_command:token", "Print an access token from the running `gatepost dev`."
    ),
    "serve": CommandEntry("gatepost.cli.serve:serve", "Run the server."),
    "stdio": CommandEntry("gatepost.cli.stdio:stdio", "Serve one caller over stdin and stdout."),
    "check": CommandEntry(
        "gatepost.cli.check:check", "Check a configuration and print every problem."
    ),
    "tools": CommandEntry(
        "gatepost.cli.tools:tools",
        "List the tools, resources, prompts and skills of a configuration.",
    ),
    "doctor": CommandEntry(
        "gatepost.cli.doctor:command",
        "Diagnose why a client cannot connect or a token is refused.",
    ),
    "call": CommandEntry("gatepost.cli.remote:call", "Call a tool of any MCP server."),
    "list": CommandEntry("gatepost.cli.remote:list_tools", "List the tools of any MCP server."),
    "sign-out": CommandEntry(
        "gatepost.cli.remote:sign_out", "Forget the sign-in at an MCP server."
    ),
    "issuer": CommandEntry(
        "gatepost.cli.issuer:issuer", "Read an identity provider and print its settings."
    ),
    "migrate": CommandEntry(
        "gatepost.cli.migrate:migrate", "Migrate the database to the schema of this version."
    ),
    "backup": CommandEntry(
        "gatepost.cli.backup:backup", "Back up the SQLite database while servers run."
    ),
    "secrets": CommandEntry(
        "gatepost.cli.secrets:secrets", "Set, list and delete secrets of tenants."
    ),
    "audit": CommandEntry("gatepost.cli.audit:audit", "Verify and export the audit log."),
    "keyring": CommandEntry("gatepost.cli.keyring:keyring", "Create and rotate the key ring."),
    "approvals": CommandEntry(
        "gatepost.cli.approvals:approvals", "List, approve and reject approval requests."
    ),
    "tenant": CommandEntry("gatepost.cli.tenant:tenant", "List, suspend and erase tenants."),
    "revoke": CommandEntry("gatepost.cli.revoke:revoke", "Revoke tokens before they expire."),
    "upstream": CommandEntry(
        "gatepost.cli.upstream:upstream", "Manage the MCP servers behind this gate."
    ),
    "scripts": CommandEntry("gatepost.cli.scripts:scripts", "List, approve and revoke scripts."),
}


class LazyGroup(click.Group):
    """A group whose commands are the rows of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        if cmd_name == "serve":
            # Before its imports, so that `systemctl reload` does not end a server that starts.
            importlib.import_module("gatepost.runtime.signals").note_reloads()
        module, _, name = row.target.partition(":")
        # Objects made at the start live to the end: collecting them costs a tenth of the start.
        gc.set_threshold(COLLECT_AFTER, 10, 10)
        command = getattr(importlib.import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if TIMINGS in args:
            # Before the command is imported, because imports are most of a start.
            ctx.obj = importlib.import_module("gatepost.cli.timings").StartTimings()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.summary) for name, row in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        # Imported on use, because nothing else needs it.
        metadata = importlib.import_module("importlib.metadata")
        try:
            click.echo(f"gatepost {metadata.version('gatepost')}")
        except metadata.PackageNotFoundError:
            click.echo("gatepost (version unknown, not installed as a package)")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """
    Put tools behind an OAuth gate: a remote MCP server for many tenants.

    Start with `gatepost dev`. Exit codes: 0 success, 1 problems found, 2 usage error.
    """
