"""Read a TOML file and the environment into a Config, collecting all problems."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from gatepost.config.environment import overlay
from gatepost.config.settings import Config
from gatepost_authz.config import Problem

INVALID = object()
"""Stands for a value that has a problem of its own."""


class ReadConfiguration(msgspec.Struct, frozen=True):
    """
    The result of reading a configuration.

    ``config`` is None if problems prevent it. ``valid_values`` is then the configuration without
    the invalid values, so that the rest can be checked at the same time.
    """

    config: Config | None
    problems: tuple[Problem, ...]
    valid_values: Config | None = None

    def explains(self, problem: Problem) -> bool:
        """
        Return whether a problem in ``valid_values`` only follows from a value that was left out.
        """
        return _section(problem.setting) in {
            _section(reported.setting) for reported in self.problems
        }


TYPE_HINTS = {
    "expected array, got str": 'write a list, such as ["one", "two"]',
    "expected array, got object": "write a list of tables: two brackets around its name",
    "expected str": "write the value in quotes",
    "expected int": "write a whole number without quotes",
    "expected float": "write a number without quotes",
    "expected bool": "write true or false without quotes",
    "expected object": "write a table: { name = value }",
}
"""What to write in TOML, by how the sentence about a value of another type starts."""


def read(path: Path | None, environment: Mapping[str, str]) -> ReadConfiguration:
    """Read the file (None: defaults only) and the environment."""
    problems: list[Problem] = []
    tree = {} if path is None else _parse(path, problems)
    overlay(tree, environment, problems)
    valid_values = _struct(tree, Config, "", problems)
    try:
        config = msgspec.convert(valid_values, Config, strict=True)
    except msgspec.ValidationError:
        config = None
    if any(problem.level == "error" for problem in problems):
        return ReadConfiguration(None, tuple(problems), config)
    return ReadConfiguration(config, tuple(problems), config)


def _section(setting: str) -> str:
    """Return the table that a setting is in; a misspelt table counts as the intended one."""
    name = re.split(r"[.\[]", setting)[0]
    similar = difflib.get_close_matches(name, Config.__struct_fields__, n=1, cutoff=0.5)
    return similar[0] if similar else name


def _parse(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message, hint = f"{path} does not exist", "name the file with --config"
    except IsADirectoryError:
        message, hint = f"{path} is a folder", "name the file inside it"
    except OSError as error:
        message, hint = f"{path} cannot be read: {error.strerror}", ""
    except UnicodeDecodeError:
        message, hint = f"{path} is not UTF-8 text", "save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        message, hint = f"{path} is not valid TOML: {error}", "see https://toml.io for the syntax"
    problems.append(Problem("config.E003", message, hint))
    return {}


def _struct(
    tree: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str, problems: list[Problem]
) -> dict[str, Any]:
    """Return the members of *tree* that fit *kind*, each checked separately."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    types = get_type_hints(kind)
    valid_values: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in fields:
            problems.append(_unknown(name, prefix, fields))
        else:
            checked_value = _value(value, types[name], f"{prefix}{name}", problems)
            if checked_value is not INVALID:
                valid_values[name] = checked_value
    for name, field in fields.items():
        if field.required and name not in tree and not _unreadable(problems):
            problems.append(
                Problem("config.E002", f"`{prefix}{name}` is missing", _meaning(name), setting=name)
            )
    return valid_values


def _value(value: Any, kind: Any, setting: str, problems: list[Problem]) -> Any:
    inner = _struct_type(kind)
    if inner is not None and isinstance(value, Mapping):
        return _struct(value, inner, f"{setting}.", problems)
    item = _item_type(kind)
    if item is not None and isinstance(value, list):
        items = [
            _value(element, item, f"{setting}[{at}]", problems) for at, element in enumerate(value)
        ]
        return [item for item in items if item is not INVALID]
    entry = _entry_type(kind)
    if entry is not None and isinstance(value, Mapping):
        return {
            key: _value(element, entry, f"{setting}.{key}", problems)
            for key, element in value.items()
        }
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        # The value is not shown, because it may be a secret in the wrong place.
        sentence = _sentence(error)
        hint = next((hint for start, hint in TYPE_HINTS.items() if sentence.startswith(start)), "")
        problems.append(Problem("config.E002", f"`{setting}`: {sentence}", hint, setting=setting))
        return INVALID
    return value


def _unknown(name: str, prefix: str, settings: Mapping[str, object]) -> Problem:
    similar = difflib.get_close_matches(name, settings, n=1, cutoff=0.5)
    hint = (
        f"did you mean `{prefix}{similar[0]}`?"
        if similar
        else f"known settings: {', '.join(settings)}"
    )
    return Problem(
        "config.E001", f"`{prefix}{name}` is not a setting", hint, setting=f"{prefix}{name}"
    )


def _unreadable(problems: list[Problem]) -> bool:
    return any(problem.id == "config.E003" for problem in problems)


def _sentence(error: msgspec.ValidationError) -> str:
    return str(error).replace("`", "").partition(" - at ")[0].lower()


def _meaning(name: str) -> str:
    if name == "resource":
        return 'for example resource = "https://mcp.example.com/mcp"'
    return ""


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _struct_type(kind: Any) -> type[msgspec.Struct] | None:
    for alternative in _alternatives(kind):
        if isinstance(alternative, type) and issubclass(alternative, msgspec.Struct):
            return alternative
    return None


def _item_type(kind: Any) -> type[msgspec.Struct] | None:
    if get_origin(kind) is tuple:
        return _struct_type(get_args(kind)[0])
    return None


def _entry_type(kind: Any) -> type[msgspec.Struct] | None:
    if get_origin(kind) is dict:
        return _struct_type(get_args(kind)[1])
    return None
