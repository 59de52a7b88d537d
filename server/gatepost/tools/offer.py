"""What is offered beside tools: resources, templates, prompts, skills, and help with these."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gatepost.tools.api import Offer
from gatepost.tools.content import Relevance
from gatepost.tools.template import UriTemplate


def inherited(owner: Offer) -> dict[str, Any]:
    """What an offer has from the one that brings it along: the same callers may use both."""
    return {
        "name": owner.key,
        "description": owner.description,
        "scopes": owner.scopes,
        "acr_values": owner.acr_values,
        "max_age_s": owner.max_age_s,
        "timeout_s": owner.timeout_s,
        "pack": owner.pack,
    }


class Completer(Offer, frozen=True, kw_only=True):
    """
    Suggestions for the arguments of a prompt, or the variables of a template.

    Its arguments are ``argument`` (a name), ``value`` (what is typed so far) and ``given`` (the
    others, by name); it answers ``values``, ``total`` and ``hasMore``.
    """

    kind = "completion"

    arguments: frozenset[str]
    """The names that can be asked about."""
    suggests: bool = False
    """Whether there are suggestions for any of them."""


class Lister(Offer, frozen=True, kw_only=True):
    """Which resources of a template there are for a caller; answers one block for each."""

    kind = "listing"


class Document(Offer, frozen=True, kw_only=True):
    """
    A resource of the protocol. Its one argument is ``uri``, and it answers blocks of contents.

    ``size`` is in bytes; ``ttl_s`` says how long a client may keep what it read.
    """

    kind = "document"

    uri: str
    mime_type: str | None = None
    size: int | None = None
    relevance: Relevance = Relevance()
    ttl_s: float = 0

    @property
    def key(self) -> str:
        """What finds it among its kind."""
        return self.uri


class Template(Offer, frozen=True, kw_only=True):
    """Resources that have one form of URI and one function; as Document otherwise."""

    kind = "document"

    template: UriTemplate
    mime_type: str | None = None
    relevance: Relevance = Relevance()
    ttl_s: float = 0
    lister: Lister | None = None
    completer: Completer | None = None

    @property
    def key(self) -> str:
        """What finds it among its kind."""
        return self.template.text


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a prompt, always a text (schema PromptArgument)."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False


class Prompt(Offer, frozen=True, kw_only=True):
    """Messages that a person starts from; it answers one block for each."""

    kind = "prompt"

    arguments: tuple[Argument, ...] = ()
    completer: Completer | None = None


class Skill(Offer, frozen=True, kw_only=True):
    """A folder that teaches a way of working (SEP-2640); its files are Documents of their own."""

    kind = "skill"

    uri: str
    """Of its SKILL.md."""
    entry: Mapping[str, Any]
    """What `skills/list` and `skills/get` say of it; also what it answers."""
    folders: Mapping[str, Sequence[Mapping[str, str]]]
    """The direct children of each of its folders, by the folder's URI."""

    @property
    def key(self) -> str:
        """What finds it among its kind."""
        return self.uri
