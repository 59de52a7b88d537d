"""
docs/settings.md and the settings say the same, in both directions.

`python -m tests.docs.test_settings` writes the page from the docstrings of the settings.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from gatepost.config.environment import variables
from gatepost.config.packs import Packs
from gatepost.config.settings import Config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "settings.md"
PAGE_HEAD = """# Settings

This page lists every setting of `gatepost.toml` with its default.

You can also set each one through the environment: `GATEPOST_` and the name in capitals, \
with two underscores for the dot.
`GATEPOST_LISTEN__PORT=9000` is `port` of `[listen]`.
Lists are comma-separated or JSON; tables are JSON.

Gatepost refuses an unknown setting and suggests the nearest known name.
`gatepost check` reports all problems at once ([what each means](errors.md)).
Secrets are references, never values: `env:NAME` or `file:PATH`.
Relative paths start at the folder in which you start the server.

`SIGHUP` reloads the file, also for requests on open connections.
These settings take effect on reload: issuers, tenants, scopes, tools, packs, upstreams, agents, \
credentials, `[approvals]`, \
`[audit]`, `[dashboard]`, `[limits]`, `[retention]`, `[tasks]`, the key ring, \
`listen.allowed_origins`, `listen.trusted_proxies`, a renewed certificate and \
`network.allow_hosts`.
These need a restart: the rest of `[listen]`, `[log]`, the rest of `[network]`, `[storage]`, \
`[telemetry]`, `[workspace]`, `limits.failures_per_second` and `limits.header_timeout_s`.

This page is generated from the docstrings in the source.

## Top level
"""


TABLES = {
    "issuers": "[issuers]",
    "upstreams": "[upstreams]",
    "agents": "[agents]",
    "credentials": "credentials.NAME",
}
"""Settings that are tables of their own, several or by name, and how their heading shows it."""


@cache
def meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring under each field, joined to one line."""
    if struct is Packs:
        return {}  # it is made of what packs register; each table is a struct of its own
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    meanings = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            meanings[field.target.id] = " ".join(str(after.value.value).split())
    return meanings


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a type is, or contains as item, value or alternative."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((struct for argument in get_args(kind) if (struct := struct_in(argument))), None)


def settings(
    struct: type[msgspec.Struct] = Config, prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield the name, meaning and default of every setting; tables by their members."""
    meaning_of = meanings(struct)
    kinds = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        name = f"{prefix}{field.name}"
        if field.name in meaning_of:
            yield name, meaning_of[field.name], default_of(field)
        inner = struct_in(kinds[field.name])
        if inner is not None:
            yield from settings(inner, f"{name}.")


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the default in TOML."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        return "required"
    if default is None or isinstance(default, msgspec.Struct):
        return ""
    if isinstance(default, tuple):
        default = list(default)
    return f"`{msgspec.json.encode(default).decode()}`"


def page() -> str:
    """Return the whole page."""
    parts = [PAGE_HEAD]
    section = ""
    for name, meaning, default in settings():
        table = name.partition(".")[0] if "." in name or name in TABLES else ""
        if table == "packs":
            table = ".".join(name.split(".")[:2])
        if table != section:
            section = table
            parts.append(f"## [{TABLES.get(table, table)}]\n")
        ends = "Required." if default == "required" else f"Default: {default}." if default else ""
        sentence = meaning if meaning.endswith(".") else f"{meaning}."
        parts.append(
            f"### {name}\n\n{sentence}\n{ends}\n" if ends else f"### {name}\n\n{sentence}\n"
        )
    return "\n".join(parts)


def names() -> set[str]:
    """Return the name of every setting."""
    return {name for name, _, _ in settings()}


def headings() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("### ") for line in lines if line.startswith("### ")]


def test_the_headings_equal_the_settings() -> None:
    """The page describes every setting and no removed one."""
    assert sorted(headings()) == sorted(names())


def test_the_settings_page_is_generated_from_the_docstrings() -> None:
    """Run `python -m tests.docs.test_settings` after a change."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_setting_has_a_docstring() -> None:
    """The docstring has at least ten characters."""
    assert [name for name, meaning, _ in settings() if len(meaning) < 10] == []


def test_every_plain_setting_has_a_variable() -> None:
    """Members of lists and tables have none; `listen.port` is GATEPOST_LISTEN__PORT."""
    every = names()
    plain = {name for name in every if not any(name.startswith(f"{setting}.") for setting in every)}

    assert {f"GATEPOST_{name}".replace(".", "__").upper() for name in plain} == set(variables())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
