"""Describe the effects of a tool: hints for clients, its effects, and the file that it writes."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec


class Annotations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """MCP's hints about a tool (schema ToolAnnotations), as clients read them in a list."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Effects(msgspec.Struct, frozen=True):
    """
    The possible effects of a call; retries, approvals, scripts and the audit record depend on them.
    """

    read_only: bool = False
    """It changes nothing."""
    destructive: bool = False
    """It may replace or delete what is there."""
    idempotent: bool = False
    """The same call again changes nothing more."""
    open_world: bool = True
    """It may reach systems outside the tenant's own data."""

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if not isinstance(value, bool):
                # `read_only="false"` would be true, and the tool would run without an approval.
                raise TypeError(f"Effects: {name} must be True or False, not {value!r}")


def effects_of(hints: Annotations) -> Effects:
    """Return the effects that *hints* declare; without a hint, only `open_world` is true."""
    return Effects(
        read_only=hints.read_only_hint is True,
        destructive=hints.destructive_hint is True,
        idempotent=hints.idempotent_hint is True,
        open_world=hints.open_world_hint is not False,
    )


Settings = TypeVar("Settings")


class SettingsLookup(Protocol):
    """Finds a pack's own table of the configuration, as `ctx.settings` does."""

    def __call__(self, kind: type[Settings], /) -> Settings:
        """Return the table of that type."""


class FileWrite(msgspec.Struct, frozen=True, kw_only=True):
    """
    The arguments of a tool that are the path and the text of a file in the tenant's workspace.

    The dashboard compares the file with what it would be after the call. Nothing else uses this.
    """

    path: str
    """The name of the argument that is the path."""
    text: str
    """The name of the argument that is the text."""
    locate: Callable[[str, SettingsLookup], str] | None = None
    """
    Returns the path within the workspace for the path that the caller gave, by the settings of the
    pack; default: the same path.
    """
    after: Callable[[bytes, Mapping[str, Any]], bytes] | None = None
    """
    Returns the content after the call, from the current content and the arguments of the call,
    which are JSON of any type; it runs in a thread and may raise ToolFailure. Default: the text.
    """
