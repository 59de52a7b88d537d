"""Where an answer sends us on, and what goes along."""

from urllib.parse import urljoin

import httpx2
import msgspec

from gatepost.outbound.failure import refused_url
from gatepost.outbound.request import OPEN, Draft, plain
from gatepost.tools.api import ToolFailure
from gatepost_authz.addresses import PRINTABLE, USUAL_PORTS
from gatepost_authz.reach import ToolReach

STATUSES = frozenset({301, 302, 303, 307, 308})


def place(url: httpx2.URL) -> tuple[str, int]:
    """Host and port."""
    return url.host, url.port or USUAL_PORTS[url.scheme]


def following(draft: Draft, answer: httpx2.Response, reach: ToolReach) -> Draft | None:
    """
    The request that a redirect asks for (RFC 9110 section 15.4); None when it is not followed.

    Never from https to http, and never with a body or what is confidential to another origin: both
    would hand on what was meant for one server alone. For the same reason only headers without
    secrets leave an origin.
    ToolFailure when it leads where tools may not go.
    """
    location = answer.headers.get("location", "")
    if answer.status_code not in STATUSES or not location:
        return None
    before = httpx2.URL(draft.url)
    after = _target(draft.url, location, reach)
    if before.scheme == "https" and after.scheme == "http":
        return None
    if reach.allows(*place(after)) and not reach.allows(*place(before)):
        # Whoever is outside does not choose what is asked inside.
        raise refused_url("a server outside leads to a host inside")
    moved = (before.scheme, *place(before)) != (after.scheme, *place(after))
    headers = {n: v for n, v in draft.headers.items() if not moved or n in OPEN}
    if _becomes_get(draft.method, answer.status_code):
        return Draft("GET", str(after), headers)
    if moved and draft.confidential:
        return None
    return msgspec.structs.replace(draft, url=str(after), headers=headers)


def _becomes_get(method: str, status: int) -> bool:
    """As the Fetch standard has it (HTTP-redirect fetch), which RFC 9110 allows."""
    if status == 303:
        return method not in {"GET", "HEAD"}
    return status in {301, 302} and method == "POST"


def _target(base: str, location: str, reach: ToolReach) -> httpx2.URL:
    try:
        text = plain(urljoin(base, plain(location)))
        if not PRINTABLE.fullmatch(plain(location)):
            raise refused_url("a redirect leads to what is no URL")
        if problem := reach.problem(text):
            raise refused_url(f"a redirect leads to another, and {problem}")
        return httpx2.URL(text)
    except (ValueError, httpx2.InvalidURL) as error:
        raise ToolFailure("denied", "A redirect leads to what is no URL.") from error
