"""Where a request can be looked at and decided."""

from collections.abc import Callable

from gatepost_authz.config import TENANT, Beside, Resource

Page = Callable[[str, str], str]
"""From a tenant and a request's id to the URL of its page."""


def page_of(resource: str) -> Page:
    """The pages of the dashboard that lies beside *resource*."""
    where = Resource(resource)
    below = f"{where.origin}{Beside(where).base}/dashboard/approvals/"
    # A script's id has a colon, which is no letter of a path's segment to everybody.
    return lambda tenant, request_id: (
        below.replace(TENANT, tenant) + request_id.replace(":", "-", 1)
    )


def no_page(tenant: str, request_id: str) -> str:
    """Where nobody can sign in there is no page."""
    return ""
