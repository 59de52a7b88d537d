"""A redirect is followed only as far as asked, and takes no secret to another host."""

from typing import Any

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost.tools.context.interfaces import OutboundReply
from tests.support.internet import Internet, redirect_answer

SITE = "https://www.web.test"
OTHER_ORIGIN = "https://other.web.test"
SECRETS = {
    "Authorization": "Bearer x",
    "Cookie": "a=b",
    "PRIVATE-TOKEN": "x",
    "X-Api-Key": "x",
    "Accept": "text/plain",
}


async def send(
    outbound_client: OutboundClient, method: str = "GET", url: str = SITE, **options: Any
) -> OutboundReply:
    return await outbound_client.client_for("acme").send(
        method, f"{url}/", **({"redirects": 5} | options)
    )


async def test_a_redirect_is_not_followed_by_default(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """The tool gets the redirect as the response."""
    internet.site.pages["/"] = redirect_answer(f"{OTHER_ORIGIN}/there")

    reply = await outbound_client.client_for("acme").send("GET", f"{SITE}/")

    assert (reply.status, reply.headers["location"]) == (302, f"{OTHER_ORIGIN}/there")
    assert len(internet.site.seen) == 1


@pytest.mark.parametrize(
    ("method", "status", "redirected_method"),
    [
        ("GET", 301, "GET"),
        ("GET", 302, "GET"),
        ("GET", 303, "GET"),
        ("GET", 307, "GET"),
        ("HEAD", 303, "HEAD"),
        ("POST", 301, "GET"),
        ("POST", 302, "GET"),
        ("POST", 303, "GET"),
        ("POST", 307, "POST"),
        ("POST", 308, "POST"),
        ("PUT", 301, "PUT"),
        ("PUT", 303, "GET"),
        ("DELETE", 302, "DELETE"),
    ],
)
async def test_a_redirect_changes_the_method_as_browsers_do(
    outbound_client: OutboundClient,
    internet: Internet,
    method: str,
    status: int,
    redirected_method: str,
) -> None:
    """The body is sent again only if the method stays the same."""
    internet.site.pages["/"] = redirect_answer("/there?x=%C3%BC#part", status)
    body = {"json": {"a": 1}} if method in {"POST", "PUT"} else {}

    reply = await send(outbound_client, method, headers=SECRETS, **body)

    seen = internet.site.seen[1]
    assert (reply.status, reply.url) == (200, f"{SITE}/there?x=%C3%BC")
    assert (seen.method, seen.path) == (redirected_method, "/there")
    assert seen.headers["authorization"] == "Bearer x"
    keeps_body = redirected_method == method and bool(body)
    assert seen.body == (b'{"a":1}' if keeps_body else b"")
    assert ("content-type" in seen.headers) is keeps_body


@pytest.mark.parametrize("origin", [OTHER_ORIGIN, "https://www.web.test:8443", "//other.web.test"])
async def test_secrets_stay_with_the_origin_they_were_meant_for(
    outbound_client: OutboundClient, internet: Internet, origin: str
) -> None:
    """An origin is scheme, host and port. A redirect back does not bring the secrets back."""
    internet.site.pages["/"] = redirect_answer(f"{origin}/there")
    internet.site.pages["/there"] = redirect_answer(f"{SITE}/back")

    await send(outbound_client, headers=SECRETS)

    elsewhere, back = internet.site.seen[1:]
    for seen in (elsewhere, back):
        assert not seen.headers.keys() & {"authorization", "cookie", "private-token", "x-api-key"}
        assert seen.headers["accept"] == "text/plain"


async def test_a_body_is_not_sent_to_another_host(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """The caller gets the redirect itself as the answer."""
    internet.site.pages["/"] = redirect_answer(f"{OTHER_ORIGIN}/there", 307)

    reply = await send(outbound_client, "POST", json={"secret": 1})
    secret = await send(outbound_client, confidential=True)

    assert (reply.status, secret.status) == (307, 307)
    assert len(internet.site.seen) == 2


async def test_a_redirect_from_https_to_http_is_not_followed(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Gatepost follows no redirect from https to http."""
    internet.site.pages["/"] = redirect_answer("http://www.web.test/there")

    assert (await send(outbound_client)).status == 302
    assert (await send(outbound_client, url="http://other.web.test")).status == 200


async def test_the_number_of_redirects_is_bounded(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """In a loop, the first redirect beyond the limit is the response."""
    internet.site.pages["/"] = redirect_answer("/")

    reply = await send(outbound_client, redirects=3)

    assert reply.status == 302
    assert len(internet.site.seen) == 4


async def test_a_redirect_does_not_lead_to_an_allowed_internal_host(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Only a tool may name an allowed host; a redirect of a public server may not."""
    inside = f"http://localhost:{internet.plain}"
    internet.site.pages["/"] = redirect_answer(f"{inside}/there")

    with pytest.raises(ToolFailure) as failure:
        await send(outbound_client, url="http://www.web.test")
    assert failure.value.failure.kind == "denied"
    assert len(internet.site.seen) == 1
    assert (await send(outbound_client, url=inside)).status == 200


@pytest.mark.parametrize("status", [300, 304, 305, 306, 302])
async def test_a_redirect_without_a_target_is_returned(
    outbound_client: OutboundClient, internet: Internet, status: int
) -> None:
    """It has no Location, or a status that is not followed."""
    internet.site.pages["/"] = redirect_answer("" if status == 302 else "/there", status)

    assert (await send(outbound_client)).status == status


@pytest.mark.parametrize(
    ("method", "kind"), [("GET", "upstream_unavailable"), ("POST", "internal")]
)
async def test_a_failure_after_a_redirect_says_that_the_first_request_was_sent(
    outbound_client: OutboundClient, internet: Internet, method: str, kind: str
) -> None:
    """Its method counts: the redirect of a POST is followed by a GET, which has no effects."""
    internet.site.pages["/"] = redirect_answer("https://nowhere.example/there")

    with pytest.raises(ToolFailure) as failure:
        await send(outbound_client, method)

    assert failure.value.failure.kind == kind
