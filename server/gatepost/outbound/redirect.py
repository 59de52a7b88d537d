"""Follow redirects, and decide what a redirected request may contain."""

from urllib.parse import urljoin

import httpx2
import msgspec

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_request import HARMLESS_HEADERS, OutboundRequest, plain_url
from gatepost.outbound.transport_errors import refused_url
from gatepost_authz.address_policy import ToolAddressPolicy
from gatepost_authz.addresses import PRINTABLE, USUAL_PORTS
from gatepost_authz.pinned_response import PinnedResponse

STATUSES = frozenset({301, 302, 303, 307, 308})


def host_and_port(url: httpx2.URL) -> tuple[str, int]:
    """Return the host and port."""
    return url.host, url.port or USUAL_PORTS[url.scheme]


def following(
    outbound: OutboundRequest, answer: PinnedResponse, address_policy: ToolAddressPolicy
) -> OutboundRequest | None:
    """
    Return the request that a redirect asks for (RFC 9110 section 15.4); None if not followed.

    A redirect from https to http is not followed, nor one that would take a body or confidential
    data to another origin: these are meant for one server only. For the same reason only headers
    without secrets are sent to another origin. Raises ToolFailure if the target is not allowed.
    """
    location = answer.headers.get("location", "")
    if answer.status not in STATUSES or not location:
        return None
    before = httpx2.URL(outbound.url)
    after = _target(outbound.url, location, address_policy)
    if before.scheme == "https" and after.scheme == "http":
        return None
    came_from_inside = address_policy.allows(*host_and_port(before))
    if address_policy.allows(*host_and_port(after)) and not came_from_inside:
        # A public server must not choose requests to internal hosts.
        raise refused_url("a redirect leads from a public server to an internal host")
    moved = (before.scheme, *host_and_port(before)) != (after.scheme, *host_and_port(after))
    headers = {n: v for n, v in outbound.headers.items() if not moved or n in HARMLESS_HEADERS}
    if _becomes_get(outbound.method, answer.status):
        return OutboundRequest("GET", str(after), headers)
    if moved and outbound.confidential:
        return None
    return msgspec.structs.replace(outbound, url=str(after), parsed=None, headers=headers)


def _becomes_get(method: str, status: int) -> bool:
    """Follow the Fetch standard (HTTP-redirect fetch), which RFC 9110 allows."""
    if status == 303:
        return method not in {"GET", "HEAD"}
    return status in {301, 302} and method == "POST"


def _target(base: str, location: str, address_policy: ToolAddressPolicy) -> httpx2.URL:
    try:
        text = plain_url(urljoin(base, plain_url(location)))
        if not PRINTABLE.fullmatch(plain_url(location)):
            raise refused_url("a redirect has an invalid URL")
        if problem := address_policy.problem(text):
            raise refused_url(f"a redirect leads to another, and {problem}")
        return httpx2.URL(text)
    except (ValueError, httpx2.InvalidURL) as error:
        raise ToolFailure("denied", "A redirect has an invalid URL.") from error
