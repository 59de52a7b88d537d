"""The offers other than tools: resources, templates, prompts, skills, completers and listers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gatepost.tools.context.content import Relevance
from gatepost.tools.offers.offer import Offer
from gatepost.tools.offers.uri_template import UriTemplate


def inherited(owner: Offer) -> dict[str, Any]:
    """Return the members that a completer or lister has from its owner, such as the scopes."""
    return {
        "name": owner.key,
        "description": owner.description,
        "scopes": owner.scopes,
        "acr_values": owner.acr_values,
        "max_age_s": owner.max_age_s,
        "timeout_s": owner.timeout_s,
        "pack": owner.pack,
        "origin": owner.origin,
    }


class Completer(Offer, frozen=True, kw_only=True):
    """
    Suggestions for the arguments of a prompt, or the variables of a template.

    Its arguments are ``argument`` (a name), ``value`` (the text typed so far) and ``given`` (the
    other arguments, by name). It returns ``values``, ``total`` and ``hasMore``.
    """

    kind = "completion"

    arguments: frozenset[str]
    """The names of the arguments."""
    suggests: bool = False
    """Whether there are suggestions for any of them."""


class Lister(Offer, frozen=True, kw_only=True):
    """Lists the resources of a template for a caller; returns one block for each."""

    kind = "listing"


class ResourceOffer(Offer, frozen=True, kw_only=True):
    """
    A resource. Its only argument is ``uri``, and it returns blocks of contents.

    ``size`` is in bytes; ``ttl_s`` is how long a client may cache the content.
    """

    kind = "document"

    uri: str
    mime_type: str | None = None
    size: int | None = None
    relevance: Relevance = Relevance()
    ttl_s: float = 0

    @property
    def key(self) -> str:
        """Return the key that identifies it among its kind."""
        return self.uri


class Template(Offer, frozen=True, kw_only=True):
    """The resources of one URI template, read by one function; otherwise as ResourceOffer."""

    kind = "document"

    template: UriTemplate
    mime_type: str | None = None
    relevance: Relevance = Relevance()
    ttl_s: float = 0
    lister: Lister | None = None
    completer: Completer | None = None

    @property
    def key(self) -> str:
        """Return the key that identifies it among its kind."""
        return self.template.text


class PromptArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a prompt, always a text (schema PromptArgument)."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False


class Prompt(Offer, frozen=True, kw_only=True):
    """A prompt; it returns one block for each message."""

    kind = "prompt"

    arguments: tuple[PromptArgument, ...] = ()
    completer: Completer | None = None


class Skill(Offer, frozen=True, kw_only=True):
    """A folder with instructions for the agent (SEP-2640); its files are ResourceOffers."""

    kind = "skill"

    uri: str
    """The URI of its SKILL.md."""
    entry: Mapping[str, Any]
    """Its entry in the answers of `skills/list` and `skills/get`."""
    folders: Mapping[str, Sequence[Mapping[str, str]]]
    """The direct children of each of its folders, by the folder's URI."""

    @property
    def key(self) -> str:
        """Return the key that identifies it among its kind."""
        return self.uri


def derived_of(owner: Offer) -> Iterator[Offer]:
    """Yield the lister and the completer of a template or prompt; they need its scopes."""
    if isinstance(owner, Template) and owner.lister:
        yield owner.lister
    if isinstance(owner, Template | Prompt) and owner.completer:
        yield owner.completer
