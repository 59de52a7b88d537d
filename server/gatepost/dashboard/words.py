"""What states and outcomes are called on the pages, and the filters that templates use."""

from collections.abc import Mapping

import jinja2
import msgspec

from gatepost.approvals.use import USES
from gatepost.dashboard import glyph, phrase, reading


class Link(msgspec.Struct, frozen=True):
    """One entry of the navigation."""

    path: str
    """Below the base."""
    label: str


NAVIGATION = (
    Link("", "Waiting"),
    Link("/history", "History"),
    Link("/grants", "Grants"),
    Link("/audit", "Audit trail"),
    Link("/tools", "Tools"),
    Link("/usage", "Usage"),
)


STATES: Mapping[str, str] = {
    "waiting": "Waiting",
    "approved": "Approved",
    "rejected": "Rejected",
    "expired": "Expired",
    "withdrawn": "Withdrawn",
    "used": "Approved and used",
}
OUTCOMES: Mapping[str, str] = {
    "approved": "The agent may make this call once, with exactly these arguments.",
    "rejected": "The agent was told so, with the reason, and can try something else.",
    "expired": "The time for it is over, and the agent was told so. It may ask again.",
    "withdrawn": "Nobody decides about it any more: who asked, or had approved it, lost access.",
    "used": "The call ran. This approval cannot be used a second time.",
}


def teach(environment: jinja2.Environment) -> None:
    """Give the templates our filters and words."""
    environment.filters |= {
        "pieces": glyph.pieces,
        "oneline": glyph.oneline,
        "visible": glyph.shown,
        "summary": reading.summary,
        "amount": phrase.amount,
        "span": phrase.span,
        "ago": phrase.ago,
        "iso": phrase.iso,
        "full": phrase.full,
        "rate": phrase.rate,
        "anchor": lambda text: text.encode().hex(),
    }
    environment.globals |= {
        "words": STATES,
        "outcomes": OUTCOMES,
        "uses": USES,
        "navigation": NAVIGATION,
    }
