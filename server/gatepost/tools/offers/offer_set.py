"""The offers that one permission set can reach, as lists."""

from collections.abc import Iterable
from typing import Any, TypeVar

from gatepost.tools.offers.offer import Offer, Tool
from gatepost.tools.offers.offer_kinds import Lister, Prompt, ResourceOffer, Skill, Template

AnyOffer = TypeVar("AnyOffer", bound=Offer)


class OfferSet:
    """
    The offers that one permission set can reach, each kind sorted by key.

    There is one object per permission set, so it can be the key of a cache.
    """

    __slots__ = (
        "__weakref__",
        "documents",
        "index",
        "instructions",
        "listers",
        "prompts",
        "skills",
        "templates",
        "tools",
        "ttl_ms",
    )

    def __init__(
        self, offers: Iterable[Offer], *, ttl_ms: int | None = None, instructions: str = ""
    ) -> None:
        reached = list(offers)
        self.tools = of_kind(Tool, reached)
        self.documents = of_kind(ResourceOffer, reached)
        self.templates = of_kind(Template, reached)
        self.prompts = of_kind(Prompt, reached)
        self.listers = of_kind(Lister, reached)
        self.skills = of_kind(Skill, reached)
        self.ttl_ms = ttl_ms
        """How long the lists stay fresh; None: as long as other lists."""
        self.instructions = instructions
        """The instructions of the servers behind these offers for agents; empty without any."""
        self.index: Any = None
        """The search index of the tools, made by the first search."""


def of_kind(kind: type[AnyOffer], offers: Iterable[Offer]) -> tuple[AnyOffer, ...]:
    """Return the offers of one kind, in their order."""
    return tuple(offer for offer in offers if isinstance(offer, kind))
