"""The registry of offers, and which of them a caller can see."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from gatepost.tools.api import WORDS, Kind, Offer, Tool
from gatepost.tools.function import NAME
from gatepost.tools.offers import Completer, Lister, Prompt, ResourceOffer, Skill, Template
from gatepost.tools.uri_template import is_uri
from gatepost_authz.caller import TenantContext

# A permission set is a set of scopes. The cache is bounded, because an issuer might put a new scope
# into every token.
REMEMBERED_SETS = 1024

Required = frozenset[str]
AnyOffer = TypeVar("AnyOffer", bound=Offer)


class Unknown(Exception):
    """The caller cannot reach an offer of this name, whether or not it exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class UnknownTool(Unknown):
    """The caller cannot reach a tool of this name."""


class Visible:
    """
    The offers that one permission set can reach, each kind sorted by key.

    There is one object per permission set, so it can be the key of a cache.
    """

    __slots__ = ("documents", "listers", "prompts", "skills", "templates", "tools")

    def __init__(self, offers: Iterable[Offer]) -> None:
        reached = list(offers)
        self.tools = _of(Tool, reached)
        self.documents = _of(ResourceOffer, reached)
        self.templates = _of(Template, reached)
        self.prompts = _of(Prompt, reached)
        self.listers = _of(Lister, reached)
        self.skills = _of(Skill, reached)


class Registry:
    """
    All enabled offers, as an immutable snapshot.

    A caller can reach an offer if its token has all the offer's scopes, or lacks only scopes that
    it can step up to (*obtainable*; None means all scopes of the offers). To the caller, every
    other offer does not exist. Raises ValueError for invalid and duplicate names.
    """

    def __init__(
        self, offers: Iterable[Offer], *, obtainable: frozenset[str] | None = None
    ) -> None:
        listed = sorted(offers, key=lambda offer: offer.key)
        self.tools = _checked(_of(Tool, listed))
        self.documents = _checked(_of(ResourceOffer, listed))
        self.templates = _checked(_of(Template, listed))
        self.prompts = _checked(_of(Prompt, listed))
        self.skills = _checked(_of(Skill, listed))
        self.declared = frozenset[str]().union(*(offer.scopes for offer in listed))
        """All scopes that an offer needs."""
        self.obtainable = self.declared if obtainable is None else obtainable
        # The scopes that a caller must already have to reach each offer.
        self._offers: dict[Kind, dict[str, tuple[Offer, Required]]] = {kind: {} for kind in WORDS}
        self._all = [(one, one.scopes - self.obtainable) for one in (*listed, *_derived(listed))]
        for offer, required in self._all:
            if not isinstance(offer, Template):
                self._offers[offer.kind][offer.key] = offer, required
        self.completes = any(one.suggests for one, _ in self._all if isinstance(one, Completer))
        """Whether any offer has suggestions."""
        by_weight = sorted(self.templates.values(), key=lambda one: -one.template.weight)
        self._templates = [(one, one.scopes - self.obtainable) for one in by_weight]
        self._deciding = frozenset[str]().union(*(required for _, required in self._all))
        self._visible: dict[frozenset[str], Visible] = {}

    @property
    def offers(self) -> list[Offer]:
        """All offers that can be called, including completers and listers."""
        return [one for one, _ in self._all]

    def offer(self, kind: Kind, key: str, caller: TenantContext) -> Offer:
        """Return the offer of that name or URI if the caller can reach it; raises Unknown."""
        found = self._offers[kind].get(key)
        if found is not None and found[1] <= caller.scopes:
            return found[0]
        if kind == "document":
            # The most specific template that the caller can reach and that matches.
            for template, required in self._templates:
                if required <= caller.scopes and template.template.match(key) is not None:
                    return template
        raise UnknownTool(key) if kind == "tool" else Unknown(key)

    def find(self, caller: TenantContext, name: str) -> Tool:
        """Return the tool of that name if the caller can reach it; raises UnknownTool."""
        found = self._offers["tool"].get(name)
        if found is None or not found[1] <= caller.scopes:
            raise UnknownTool(name)
        return self.tools[name]

    def withheld(self, tool: Tool, caller: TenantContext) -> frozenset[str]:
        """Return the missing scopes that hide a tool from the caller; empty if it is not hidden."""
        return self._offers["tool"][tool.name][1] - caller.scopes

    def visible(self, caller: TenantContext) -> Visible:
        """Return what this caller can see; the same object for the same permissions."""
        held = caller.scopes & self._deciding
        visible = self._visible.get(held)
        if visible is None:
            if len(self._visible) >= REMEMBERED_SETS:
                self._visible.pop(next(iter(self._visible)))
            visible = Visible(offer for offer, required in self._all if required <= held)
            self._visible[held] = visible
        return visible


def _of(kind: type[AnyOffer], offers: Iterable[Offer]) -> tuple[AnyOffer, ...]:
    return tuple(offer for offer in offers if isinstance(offer, kind))


def _derived(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Yield the completers and listers of templates and prompts; they need their owner's scopes."""
    for owner in offers:
        if isinstance(owner, Template) and owner.lister:
            yield owner.lister
        if isinstance(owner, Template | Prompt) and owner.completer:
            yield owner.completer


def _checked(offers: tuple[AnyOffer, ...]) -> dict[str, AnyOffer]:
    counted = Counter(offer.key for offer in offers)
    word = WORDS[offers[0].kind] if offers else ""
    if doubled := [key for key, count in counted.items() if count > 1]:
        raise ValueError(f"several {word}s have the same name: {', '.join(doubled)}")
    for offer in offers:
        if isinstance(offer, Tool | Prompt) and not NAME.fullmatch(offer.name):
            raise ValueError(f"{word} names must be 1 to 64 of a-z, 0-9 and _: {offer.name}")
        if isinstance(offer, ResourceOffer) and not is_uri(offer.uri):
            raise ValueError(f"{offer.uri} is not a URI")
    return {offer.key: offer for offer in offers}
