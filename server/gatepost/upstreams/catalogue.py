"""Describe the catalogue of an upstream: its offers, cleaned and bounded, as stored and served."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Section = Literal["tools", "resources", "templates", "prompts"]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One definition of an upstream: a tool, resource, template or prompt."""

    section: Section
    key: str
    """Its own name, URI or URI template at the upstream."""
    name: str
    """The name, URI or URI template behind this gate."""
    value: Mapping[str, Any]
    """The definition in the newest revision's form, bounded and cleaned."""
    digest: str
    """SHA-256 of its canonical JSON (RFC 8785) before cleaning, in hexadecimal."""
    cleaned: tuple[str, ...] = ()
    """The parts that the cleaning removed, as sentences for the dashboard."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that is not offered, and the reason."""

    section: Section
    key: str
    reason: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that differs from the pinned one, or is new and waits for a review."""

    section: Section | Literal["instructions"]
    """`instructions` is the server's own text, whose key is empty."""
    key: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    digest: str
    """
    The digest to accept: that of the new definition, or of the fact that a definition is gone.
    """


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All offers of one upstream, as of one fetch."""

    server_id: str
    fetched_at: float
    revision: str = ""
    era: Literal["modern", "session"] = "modern"
    capabilities: Mapping[str, Any] = {}
    instructions: str = ""
    definitions: tuple[Definition, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    changes: tuple[Change, ...] = ()
    ttl_ms: int = 86_400_000
    """How long it is fresh: the smallest of the pages, at most 24 hours."""
    failing_since: float | None = None
    """The time when fetching began to fail; the definitions are those of the last success."""
    failure: str = ""
    """The reason of the failure, as one sentence."""


class CatalogueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a catalogue that lists of servers show; its definitions are not decoded."""

    fetched_at: float
    changes: tuple[msgspec.Raw, ...] = ()
    failing_since: float | None = None
    failure: str = ""


def same_content(before: Catalogue, after: Catalogue) -> bool:
    """Return whether two fetches brought the same, whenever they were."""
    return _undated(before) == _undated(after)


def _undated(catalogue: Catalogue) -> Catalogue:
    return msgspec.structs.replace(catalogue, fetched_at=0.0, failing_since=None, failure="")
