"""`gatepost tools`: what a configuration serves."""

from pathlib import Path
from typing import Any

import click
import msgspec

from gatepost.commands.configuration import config_option, settled
from gatepost.tools.api import Tool


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="A JSON array, schemas included.")
def tools(path: Path, as_json: bool) -> None:
    """List the tools that a configuration enables, with their scopes and annotations."""
    _, toolbox = settled(path)
    listed = sorted(toolbox.tools, key=lambda tool: tool.name)
    if as_json:
        rows = [described(tool) for tool in listed]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
    else:
        click.echo(table(listed))


def described(tool: Tool) -> dict[str, Any]:
    """The tool as data."""
    return {
        "name": tool.name,
        "pack": tool.pack,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
        "scopes": sorted(tool.scopes),
    }


def table(listed: list[Tool]) -> str:
    """One line per tool: name, pack, scopes, hints, and the first line of its description."""
    rows = [("TOOL", "PACK", "SCOPES", "HINTS", "DOES")]
    for tool in listed:
        scopes = " ".join(sorted(tool.scopes)) or "-"
        does = tool.description.partition("\n")[0]
        rows.append((tool.name, tool.pack, scopes, hints(tool), does))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = ("  ".join([*map(str.ljust, row[:4], widths), row[4]]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def hints(tool: Tool) -> str:
    """What the annotations say, in words."""
    told = {
        "read-only": tool.annotations.read_only_hint,
        "destructive": tool.annotations.destructive_hint,
        "idempotent": tool.annotations.idempotent_hint,
        "open-world": tool.annotations.open_world_hint,
    }
    return ",".join(word for word, said in told.items() if said) or "-"
