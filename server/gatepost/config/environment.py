"""Settings from environment variables: `GATEPOST_LISTEN__PORT=9000` is `port` of `[listen]`."""

import difflib
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from gatepost.config.settings import Config
from gatepost_authz.config import Problem
from gatepost_authz.strict_json import DECODER, StrictJsonError

PREFIX = "GATEPOST_"


def overlay(tree: dict[str, Any], environment: Mapping[str, str], problems: list[Problem]) -> None:
    """
    Override settings in *tree* with those of the environment.

    Variables with the prefix that do not look like a setting are ignored: Kubernetes injects such
    variables (GATEPOST_PORT, GATEPOST_SERVICE_HOST) for a service of that name. A variable with
    `__`, or with almost the name of a setting, is reported.
    """
    for variable, text in sorted(environment.items()):
        if variable.startswith(PREFIX):
            _put(tree, variable, text, problems)


def _put(tree: dict[str, Any], variable: str, text: str, problems: list[Problem]) -> None:
    path = variable[len(PREFIX) :].lower().split("__")
    kind = _kind_of(path)
    if kind is None:
        if similar := _nearest(path):
            problems.append(
                Problem("config.E004", f"{variable} is not a setting", f"did you mean {similar}?")
            )
        return
    try:
        value = _decode(text, kind)
    except ValueError as error:
        problems.append(Problem("config.E004", f"{variable}: {error}", setting=".".join(path)))
        return
    section = tree
    for name in path[:-1]:
        subsection = section.setdefault(name, {})
        if not isinstance(subsection, dict):
            return  # the file has the wrong type here, which is reported when it is read
        section = subsection
    section[path[-1]] = value


def _kind_of(path: list[str]) -> Any:
    """Return the declared type of the setting at *path*, or None."""
    kind: Any = Config
    for name in path:
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return None
        kind = get_type_hints(kind).get(name)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return None
    return kind


def variables(struct: type[msgspec.Struct] = Config, prefix: str = PREFIX) -> list[str]:
    """Return the names of all variables that set a setting."""
    names = []
    for name, kind in get_type_hints(struct).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            names += variables(kind, f"{prefix}{name}__")
        else:
            names.append(f"{prefix}{name}".upper())
    return names


def _nearest(path: list[str]) -> str | None:
    written = f"{PREFIX}{'__'.join(path)}".upper()
    similarity = 0.5 if len(path) > 1 else 0.85
    similar = difflib.get_close_matches(written, variables(), n=1, cutoff=similarity)
    return similar[0] if similar else (variables()[0] if len(path) > 1 else None)


def _decode(text: str, kind: Any) -> Any:
    """Return the text as a value of a TOML file; ValueError carries a sentence."""
    alternatives = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    origins = {get_origin(alternative) or alternative for alternative in alternatives}
    if tuple in origins:
        if text.lstrip().startswith("["):
            return _json(text)
        return [part.strip() for part in text.split(",") if part.strip()]
    if dict in origins:
        return _json(text)
    if bool in origins:
        return _boolean(text)
    if int in origins:
        return _number(text, int, "a whole number")
    if float in origins:
        return _number(text, float, "a number")
    return text


def _json(text: str) -> Any:
    try:
        return DECODER.decode(text)
    except StrictJsonError as refused:
        raise ValueError(f"is not strict JSON ({refused})") from None
    except (ValueError, RecursionError):
        raise ValueError("is not valid JSON") from None


def _boolean(text: str) -> bool:
    booleans = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.strip().lower() not in booleans:
        raise ValueError("must be true or false")
    return booleans[text.strip().lower()]


def _number(text: str, kind: type[int] | type[float], name: str) -> int | float:
    try:
        return kind(text.strip())
    except ValueError:
        raise ValueError(f"must be {name}") from None
