"""Sign people out: the form's route, and where they go afterwards, such as the issuer's page."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from gatepost.config.settings import Config
from gatepost.dashboard.location import DashboardLocation, DashboardPaths
from gatepost.dashboard.openid import OpenIdClient
from gatepost.dashboard.page import PageRequest, PageResponse, PageRoute
from gatepost.dashboard.signin import short_name
from gatepost_authz.fetch import FetchError

log = logging.getLogger(__name__)

Parties = Callable[[DashboardPaths], Mapping[str, OpenIdClient]]
"""Returns the issuers where a tenant's users sign in, by their short names."""


async def _sign_out(page_request: PageRequest) -> PageResponse:
    return PageResponse(signs_out=True)


SIGN_OUT = PageRoute(path="/sign-out", post=_sign_out, roles=frozenset())
"""`CheckedPage` ends the session (`gatepost/dashboard/page_access.py`)."""


def destinations(
    parties: Parties, location: DashboardLocation
) -> Callable[[DashboardPaths, str, str], Awaitable[str]]:
    """Return the function that says where a user goes who signs out."""

    async def destination(paths: DashboardPaths, issuer: str, hint: str) -> str:
        return_address, party = location.signed_out(paths), parties(paths).get(short_name(issuer))
        try:
            address = await party.sign_out_address(return_address, hint) if party else ""
        except FetchError as error:
            # The session here has ended in any case.
            log.warning("dashboard_sign_out_failed", extra={"issuer": issuer, "reason": str(error)})
            address = ""
        return address or f"{paths.base}/signed-out"

    return destination


def sign_out_origins(config: Config) -> tuple[str, ...]:
    """Return the origins of the issuers where people sign out, for the policy of the pages."""
    leading = [
        issuer for issuer in config.issuers if issuer.dashboard and issuer.dashboard.sign_out
    ]
    parts = [urlsplit(issuer.issuer) for issuer in leading]
    return tuple(dict.fromkeys(f"{part.scheme}://{part.netloc}" for part in parts))
