"""Tools reach what is public and what is allowed, and send only what they meant to send."""

import re
from typing import Any

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost.tools.context.interfaces import Upload
from tests.support.internet import PUBLIC, Internet

SITE = "https://www.web.test"


async def refusal(
    outbound_client: OutboundClient, method: str, url: str, **options: Any
) -> ToolFailure:
    """Return the failure of a request that must not be answered."""
    with pytest.raises(ToolFailure) as failure:
        await outbound_client.of("acme").send(method, url, **options)
    return failure.value


@pytest.mark.requirement("O13")
async def test_a_request_is_sent_with_parameters_headers_and_json(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Parameters, headers and JSON; who we are, and the call's correlation id."""
    reply = await outbound_client.of("acme", "episode-1").send(
        "POST",
        f"{SITE}/things?a=1#part",
        params={"b": [2, "ü"], "c": True, "d": None},
        headers={"Authorization": "Bearer x"},
        json={"ü": 1},
    )

    seen = internet.site.seen[0]
    assert (reply.status, reply.truncated) == (200, False)
    assert reply.url == f"{SITE}/things?a=1&b=2&b=%C3%BC&c=true"
    assert (seen.method, seen.scheme, seen.host) == ("POST", "https", "www.web.test")
    assert seen.query == {"a": "1", "b": "ü", "c": "true"}
    assert seen.body == '{"ü":1}'.encode()
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["authorization"] == "Bearer x"
    assert seen.headers["x-octopus-correlation-id"] == "episode-1"
    assert seen.headers["user-agent"].startswith("gatepost/")


async def test_bodies_of_every_kind_are_sent(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Forms, multipart forms with files, and bytes with a custom type."""
    http = outbound_client.of("acme")
    upload = Upload("file", 'a"\r\nX: y.txt', b"data", "text/plain")

    await http.send("POST", f"{SITE}/", form={"a": [1, 2], "b": "x y"})
    await http.send("POST", f"{SITE}/", form={"a": "1"}, uploads=[upload])
    await http.send("PUT", f"{SITE}/", content=b"\0", headers={"content-type": "a/b"})
    await http.send("POST", f"{SITE}/")

    form, multipart, put, empty = internet.site.seen
    assert (form.body, form.headers["content-type"]) == (
        b"a=1&a=2&b=x+y",
        "application/x-www-form-urlencoded",
    )
    assert multipart.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert (
        b'filename="a%22%0D%0AX: y.txt"\r\nContent-Type: text/plain\r\n\r\ndata' in multipart.body
    )
    assert (put.body, put.headers["content-type"]) == (b"\0", "a/b")
    assert (empty.body, empty.headers["content-length"]) == (b"", "0")


async def test_a_proxy_gets_the_checked_address(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Gatepost never sends the name, which the proxy might resolve to an internal address."""
    await outbound_client.of("acme").send("GET", f"{SITE}/")
    await outbound_client.of("acme").send("GET", "http://www.web.test/")

    assert internet.proxy.asked == [f"CONNECT {PUBLIC}:443", f"CONNECT {PUBLIC}:80"]
    assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in internet.proxy.head
    assert [seen.scheme for seen in internet.site.seen] == ["https", "http"]


async def test_a_proxy_gets_an_ipv6_address_in_brackets(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """CONNECT requires brackets (RFC 9110 section 9.3.6)."""
    internet.names.known["www.web.test"] = [["2606:2800:21f:cb07:6820:80da:af6b:8b2c"]]

    await outbound_client.of("acme").send("GET", f"{SITE}/")

    assert internet.proxy.asked == ["CONNECT [2606:2800:21f:cb07:6820:80da:af6b:8b2c]:443"]


@pytest.mark.parametrize("name", ["", "x\0y", "ep isode", "ü", "x" * 300])
async def test_an_invalid_correlation_id_is_not_sent(
    outbound_client: OutboundClient, internet: Internet, name: str
) -> None:
    """A caller cannot add another header by it."""
    await outbound_client.of("acme", name).send("GET", f"{SITE}/")

    assert "x-octopus-correlation-id" not in internet.site.seen[0].headers


async def test_a_secret_in_the_url_needs_encryption(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """A tool says of parameters that they are confidential."""
    options: Any = {"params": {"key": "secret"}, "confidential": True}

    assert (
        await refusal(outbound_client, "GET", "http://www.web.test/", **options)
    ).failure.kind == "denied"
    assert (await outbound_client.of("acme").send("GET", f"{SITE}/", **options)).status == 200
    assert len(internet.site.seen) == 1


async def test_an_allowed_host_is_reached_directly_and_by_http(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """A tool may send it anything, since the operator has named the host and its port."""
    reply = await outbound_client.of("acme").send(
        "POST", f"http://localhost:{internet.plain}/", headers={"Authorization": "x"}, json={}
    )

    assert reply.status == 200
    assert internet.proxy.asked == []


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("POST", {"json": {}}),
        ("DELETE", {}),
        ("GET", {"headers": {"Authorization": "x"}}),
        ("GET", {"headers": {"Cookie": "x"}}),
        ("GET", {"headers": {"X-Anything": "x"}}),
    ],
)
async def test_writes_and_headers_over_plain_http_are_refused(
    outbound_client: OutboundClient, internet: Internet, method: str, options: Any
) -> None:
    """A tool may only read from a public host over HTTP, with headers that hold no secret."""
    failure = await refusal(outbound_client, method, "http://www.web.test/", **options)

    assert failure.failure.kind == "denied"
    assert "use https" in failure.failure.message
    assert internet.site.seen == []


@pytest.mark.parametrize(
    ("headers", "expected_text"),
    [
        ({"Host": "localhost"}, "Host cannot be set"),
        ({"content-length": "5"}, "cannot be set"),
        ({"Transfer-Encoding": "chunked"}, "cannot be set"),
        ({"Connection": "x-secret"}, "cannot be set"),
        ({"Proxy-Authorization": "x"}, "cannot be set"),
        ({"Upgrade": "websocket"}, "cannot be set"),
        ({"X-Octopus-Correlation-Id": "x"}, "cannot be set"),
        ({"a": "x\r\nb: y"}, "printable ASCII"),
        ({"a": "x\0"}, "printable ASCII"),
        ({"a\r\nb": "x"}, "printable ASCII"),
        ({"a b": "x"}, "printable ASCII"),
        ({"": "x"}, "printable ASCII"),
        ({"a": "ü"}, "printable ASCII"),
        ({"a": "x", "A": "y"}, "given twice"),
        ({"a": "x" * 40_000}, "At most"),
        ({f"a{n}": "x" for n in range(70)}, "At most"),
    ],
    ids=lambda value: str(value)[:30].encode("unicode_escape").decode(),
)
async def test_a_tool_cannot_set_headers_that_frame_the_message(
    outbound_client: OutboundClient, internet: Internet, headers: dict[str, str], expected_text: str
) -> None:
    """A tool cannot smuggle a second request, another host, or credentials for the proxy."""
    failure = await refusal(outbound_client, "GET", f"{SITE}/", headers=headers)

    assert failure.failure.kind == "validation"
    assert expected_text in failure.failure.message
    assert internet.site.seen == []


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        ({"json": float("nan")}, "cannot express"),
        ({"json": {"a": object()}}, "cannot express"),
        ({"json": "\ud800"}, "cannot express"),
        ({"params": {"a": "\ud800"}}, "cannot express"),
        ({"form": {"a": {"b": 1}}}, "cannot express"),
        ({"params": {"a": {"b": 1}}}, "cannot express"),
        ({"params": {"a": "x" * 9_000}}, "longer than"),
        ({"params": {"a": "x" * 90_000}}, "longer than"),
        ({"content": b"x" * 32_000_001}, "at most"),
        ({"uploads": [Upload("a", "b", b"", "x\r\ny")]}, "printable ASCII"),
        ({"uploads": [Upload("a", "b", b"", "")]}, "printable ASCII"),
    ],
    ids=[str(n) for n in range(11)],
)
async def test_an_unencodable_request_is_refused(
    outbound_client: OutboundClient, internet: Internet, options: Any, expected_text: str
) -> None:
    """Gatepost refuses it before it connects."""
    failure = await refusal(outbound_client, "POST", f"{SITE}/", **options)

    assert failure.failure.kind == "validation"
    assert re.search(expected_text, failure.failure.message), failure.failure.message
    assert internet.site.seen == []


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "GET /\r\nX: ", "", "G T"])
async def test_an_invalid_or_dangerous_method_is_refused(
    outbound_client: OutboundClient, internet: Internet, method: str
) -> None:
    """Gatepost does not send a method that opens a tunnel or echoes headers, either."""
    assert (await refusal(outbound_client, method, SITE)).failure.kind == "validation"
    assert internet.site.seen == []
