"""The URLs of the dashboards: one for all tenants, or one for each tenant."""

import re

import msgspec

from gatepost_authz.protected_resource import TENANT, Resource, SiblingPaths, Target

NAME = "/dashboard"
# Only plain paths of the dashboard's pages: no scheme, host, backslash, dot segment or encoding.
# Any other value in a link leads to the first page.
DASHBOARD_PATH = re.compile(
    r"(?:/[A-Za-z0-9_-][A-Za-z0-9._~-]{0,127}){1,8}(?:\?[A-Za-z0-9._~=&%+-]{0,512})?", re.ASCII
)


class DashboardPaths(msgspec.Struct, frozen=True):
    """One dashboard."""

    target: Target
    """The resource that it belongs to, which a user's token must name."""
    base: str
    """The path of its first page: ``/dashboard`` or ``/t/acme/dashboard``."""


class DashboardLocation:
    """All dashboards of a resource: one, or one for each tenant."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.pattern = SiblingPaths(resource).base + NAME
        """
        Return the path of the first page, with ``{tenant}`` if there is one dashboard per tenant.
        """
        self._paths = SiblingPaths(resource)
        shape = re.escape(self.pattern).replace(re.escape(TENANT), "[^/]+")
        self._page_path = re.compile(f"({shape})(?:/.*)?", re.DOTALL)

    def locate(self, path: str) -> DashboardPaths | None:
        """Return the dashboard that a request path belongs to, or None."""
        match = self._page_path.fullmatch(path)
        target = self._paths.locate(path) if match else None
        return DashboardPaths(target, match[1]) if match and target else None

    def callback(self, paths: DashboardPaths) -> str:
        """Return the redirect URI to register at the issuers."""
        return f"{self.resource.origin}{paths.base}/callback"

    def signed_out(self, paths: DashboardPaths) -> str:
        """Return the URL of the page after a sign-out, to register at the issuers."""
        return f"{self.resource.origin}{paths.base}/signed-out"


def valid_page_path(path: str) -> str:
    """
    Return *path* if it is a path of a page below the base; else empty, for the first page.

    This is where the sign-in continues. The result is only used after a base.
    """
    return path if DASHBOARD_PATH.fullmatch(path) else ""
