"""Labels of states and outcomes, and the filters of the templates."""

from collections.abc import Mapping

import jinja2
import msgspec

from gatepost.dashboard import argument_tree, escaping, formats
from gatepost.dashboard.page import DECIDERS
from gatepost.policy.approvals.request_lists import USES
from gatepost_authz.check import OPERATOR


class NavigationLink(msgspec.Struct, frozen=True):
    """One entry of the navigation."""

    path: str
    """Below the base."""
    label: str
    roles: frozenset[str]
    """The roles of which a user needs one."""

    def leads(self, roles: frozenset[str]) -> bool:
        """Return whether users with these roles can see the page."""
        return bool(self.roles & roles)


NAVIGATION = (
    NavigationLink("", "Waiting", DECIDERS),
    NavigationLink("/history", "History", DECIDERS),
    NavigationLink("/grants", "Grants", DECIDERS),
    NavigationLink("/audit", "Audit log", DECIDERS),
    NavigationLink("/tools", "Tools", DECIDERS),
    NavigationLink("/upstreams", "Upstreams", frozenset({"admin"})),
    NavigationLink("/usage", "Usage", DECIDERS),
    NavigationLink("/operations", "Operations", frozenset({OPERATOR})),
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
    "approved": "The agent can make this call once, with exactly these arguments.",
    "rejected": "The agent got the reason.",
    "expired": "The request expired. The agent has been informed and can make the call again.",
    "withdrawn": "The request was withdrawn because the caller or an approver lost access.",
    "used": "The call ran. The approval cannot be used again.",
}


def add_filters(environment: jinja2.Environment) -> None:
    """Add the filters and labels to the templates' environment."""
    environment.filters |= {
        "pieces": escaping.pieces,
        "oneline": escaping.oneline,
        "visible": escaping.plain_text,
        "summary": argument_tree.summary,
        "amount": formats.amount,
        "span": formats.span,
        "ago": formats.ago,
        "iso": formats.iso,
        "full": formats.full,
        "rate": formats.rate,
        "anchor": lambda text: text.encode().hex(),
    }
    environment.globals |= {
        "words": STATES,
        "outcomes": OUTCOMES,
        "uses": USES,
        "navigation": NAVIGATION,
    }
