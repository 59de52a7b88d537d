"""Where the dashboard is: the same for everybody, or one for each tenant."""

import re

import msgspec

from gatepost_authz.config import TENANT, Beside, Resource, Target

NAME = "/dashboard"
# Only paths of our own pages, spelt plainly: no scheme, no host, no backslash, no dot segment, no
# encoded anything in the path. Whatever else somebody wrote into a link leads to the first page.
BELOW = re.compile(
    r"(?:/[A-Za-z0-9_-][A-Za-z0-9._~-]{0,127}){1,8}(?:\?[A-Za-z0-9._~=&%+-]{0,512})?", re.ASCII
)


class Spot(msgspec.Struct, frozen=True):
    """One dashboard."""

    target: Target
    """The resource it belongs to: what a visitor's token must name."""
    base: str
    """The path of its first page, as ``/dashboard`` or ``/t/acme/dashboard``."""


class Place:
    """All dashboards of a resource, which are one or one per tenant."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.pattern = Beside(resource).base + NAME
        """The path of the first page, perhaps with ``{tenant}``."""
        self._beside = Beside(resource)
        shape = re.escape(self.pattern).replace(re.escape(TENANT), "[^/]+")
        self._below = re.compile(f"({shape})(?:/.*)?", re.DOTALL)

    def locate(self, path: str) -> Spot | None:
        """The dashboard that a request path belongs to; None when it names none."""
        match = self._below.fullmatch(path)
        target = self._beside.locate(path) if match else None
        return Spot(target, match[1]) if match and target else None

    def callback(self, spot: Spot) -> str:
        """The absolute address to which issuers send people back: it is registered there."""
        return f"{self.resource.origin}{spot.base}/callback"


def below(wanted: str) -> str:
    """
    *wanted* if it is a path of a page of ours, below the base; else the first page (empty).

    Where a link leads after the sign-in; the answer is only ever used behind a base.
    """
    return wanted if BELOW.fullmatch(wanted) else ""
