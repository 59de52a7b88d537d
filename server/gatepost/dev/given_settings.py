"""
Read the settings that `gatepost dev` takes from a file and the environment, and refuse others.
"""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gatepost.config.environment import PREFIX, variables
from gatepost.config.reading import read
from gatepost.config.settings import Config
from gatepost.dev.composition import OWN_OF_LISTEN
from gatepost_authz.config import Problem

SET_BY_DEV: Mapping[str, str] = {
    "resource": "it is on 127.0.0.1; choose the port with --port",
    "mode": "it is always `development`",
    **{
        f"listen.{name}": "it listens on 127.0.0.1 with one process; choose the port with --port"
        for name in OWN_OF_LISTEN
    },
    "workspace.root": "its workspaces are in the folder of --state",
    "keys": "its key ring is in the folder of --state",
    "issuers": "it has an issuer of its own; choose its kind with --as",
    "tenancy": "its tenants are those of its users",
    "storage": "its database is in the folder of --state",
    "stdio": "it serves HTTP",
}
"""The tables and settings that `gatepost dev` sets itself, with the reasons."""


class GivenSettings(msgspec.Struct, frozen=True):
    """The settings of the file and the environment."""

    config: Config | None
    """None if problems prevent it; the members in `SET_BY_DEV` mean nothing."""
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    """The tables and settings of the file that `gatepost dev` replaces."""


def given_settings(path: Path | None, environ: Mapping[str, str], resource: str) -> GivenSettings:
    """
    Read the file (None: defaults) and the `GATEPOST_…` variables for a server at *resource*.

    A table of the file that `gatepost dev` has itself is ignored, because the same file serves in
    production. A variable that sets one is a problem, because it says something about this server.
    """
    refused = [*_refused(environ)]
    variables = {name: text for name, text in environ.items() if name not in refused}
    fixed = {f"{PREFIX}RESOURCE": resource, f"{PREFIX}MODE": "development"}
    reading = read(path, {**variables, **fixed})
    problems = [
        Problem(
            "config.E004",
            f"{name} has no effect on `gatepost dev`: {SET_BY_DEV[setting]}",
            "unset it for this command",
        )
        for name, setting in _refused(environ).items()
    ]
    ignored: tuple[str, ...] = ()
    if path is not None:
        with suppress(OSError, ValueError):  # `read` has reported it
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            ignored = tuple(name for name in SET_BY_DEV if name != "mode" and _is_in(tables, name))
    reported = [
        problem for problem in reading.problems if problem.setting.split(".")[0] not in SET_BY_DEV
    ]
    config = reading.config or (None if reported else reading.valid_values)
    return GivenSettings(config, (*problems, *reported), ignored)


def _refused(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for settings in `SET_BY_DEV`, with their names there."""
    refused: dict[str, str] = {}
    for variable in sorted(environ.keys() & {*variables()}):
        setting = variable[len(PREFIX) :].lower().replace("__", ".")
        for name in (setting, setting.partition(".")[0]):
            if name in SET_BY_DEV:
                refused[variable] = name
    return refused


def _is_in(tables: Mapping[str, Any], name: str) -> bool:
    table, _, member = name.partition(".")
    value = tables.get(table)
    return value is not None and (not member or (isinstance(value, dict) and member in value))
