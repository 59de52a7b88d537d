"""Which offers exist, and which of them a caller may see."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from gatepost.tools.api import WORDS, Kind, Offer, Tool
from gatepost.tools.function import NAME
from gatepost.tools.offer import Completer, Document, Lister, Prompt, Skill, Template
from gatepost.tools.template import is_uri
from gatepost_authz.caller import TenantContext

# A permission set is a set of scopes; issuers that put a fresh one into every token must not grow
# our memory.
REMEMBERED_SETS = 1024

Required = frozenset[str]
AnyOffer = TypeVar("AnyOffer", bound=Offer)


class Unknown(Exception):
    """Nothing of this name within this caller's reach; whether others have it is not said."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class UnknownTool(Unknown):
    """No such tool."""


class Visible:
    """
    What one permission set reaches, each kind sorted by key; one object per set, so it can key a
    cache.
    """

    __slots__ = ("documents", "listers", "prompts", "skills", "templates", "tools")

    def __init__(self, offers: Iterable[Offer]) -> None:
        reached = list(offers)
        self.tools = _of(Tool, reached)
        self.documents = _of(Document, reached)
        self.templates = _of(Template, reached)
        self.prompts = _of(Prompt, reached)
        self.listers = _of(Lister, reached)
        self.skills = _of(Skill, reached)


class Registry:
    """
    Everything that is enabled, as an immutable snapshot.

    A caller reaches an offer when its token grants all the offer's scopes, or lacks only scopes
    that it may step up to (*obtainable*; None: whatever is enabled declares). Every other one is
    unknown to it, exactly like one that does not exist. ValueError names bad and doubled names.
    """

    def __init__(
        self, offers: Iterable[Offer], *, obtainable: frozenset[str] | None = None
    ) -> None:
        listed = sorted(offers, key=lambda offer: offer.key)
        self.tools = _checked(_of(Tool, listed))
        self.documents = _checked(_of(Document, listed))
        self.templates = _checked(_of(Template, listed))
        self.prompts = _checked(_of(Prompt, listed))
        self.skills = _checked(_of(Skill, listed))
        declared = frozenset[str]().union(*(offer.scopes for offer in listed))
        self.obtainable = declared if obtainable is None else obtainable
        # What a caller must already hold to reach each of them at all.
        self._offers: dict[Kind, dict[str, tuple[Offer, Required]]] = {kind: {} for kind in WORDS}
        self._all = [(one, one.scopes - self.obtainable) for one in (*listed, *_derived(listed))]
        for offer, required in self._all:
            if not isinstance(offer, Template):
                self._offers[offer.kind][offer.key] = offer, required
        self.completes = any(one.suggests for one, _ in self._all if isinstance(one, Completer))
        """Whether anything has suggestions."""
        by_weight = sorted(self.templates.values(), key=lambda one: -one.template.weight)
        self._templates = [(one, one.scopes - self.obtainable) for one in by_weight]
        self._deciding = frozenset[str]().union(*(required for _, required in self._all))
        self._visible: dict[frozenset[str], Visible] = {}

    @property
    def offers(self) -> list[Offer]:
        """Everything that can be called, with what templates and prompts bring along."""
        return [one for one, _ in self._all]

    def offer(self, kind: Kind, key: str, caller: TenantContext) -> Offer:
        """What has that name (a resource: that URI) within the caller's reach; raises Unknown."""
        found = self._offers[kind].get(key)
        if found is not None and found[1] <= caller.scopes:
            return found[0]
        if kind == "document":
            # As if the others were not there: of those in reach, the one that fits best.
            for template, required in self._templates:
                if required <= caller.scopes and template.template.match(key) is not None:
                    return template
        raise UnknownTool(key) if kind == "tool" else Unknown(key)

    def find(self, caller: TenantContext, name: str) -> Tool:
        """The tool of that name within the caller's reach; raises UnknownTool."""
        found = self._offers["tool"].get(name)
        if found is None or not found[1] <= caller.scopes:
            raise UnknownTool(name)
        return self.tools[name]

    def withheld(self, tool: Tool, caller: TenantContext) -> frozenset[str]:
        """The scopes for want of which a tool is unknown to the caller; none where it is not."""
        return self._offers["tool"][tool.name][1] - caller.scopes

    def visible(self, caller: TenantContext) -> Visible:
        """What this caller may see; the same object for the same permissions."""
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
    """What templates and prompts bring along; each needs the scopes of its owner."""
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
        if isinstance(offer, Document) and not is_uri(offer.uri):
            raise ValueError(f"{offer.uri} is not a URI")
    return {offer.key: offer for offer in offers}
