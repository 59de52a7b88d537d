"""One tunnel through a proxy, whatever the proxy answers and however its answer is cut."""

import httpcore2
import pytest

from gatepost_authz.tunnel import HEAD_BYTES, Tunnel
from tests.support.measuring import each

ESTABLISHED_RESPONSE = b"HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\n"
REFUSED_ANSWERS = [
    ("a refusal", b"HTTP/1.1 403 Forbidden\r\n\r\n", "refused"),
    ("a redirect", b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "refused"),
    ("a status that only begins well", b"HTTP/1.1 2000 OK\r\n\r\n", "refused"),
    ("another protocol", b"SSH-2.0-x\r\n\r\n", "refused"),
    ("bytes after the answer", ESTABLISHED_RESPONSE + b"x", "refused"),
    ("an answer that ends early", ESTABLISHED_RESPONSE[:-1], "no answer"),
    ("no answer", b"", "no answer"),
    (
        "a long answer",
        ESTABLISHED_RESPONSE[:-2] + b"a: " + b"b" * HEAD_BYTES + b"\r\n\r\n",
        "no answer",
    ),
    ("an answer without an end", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * HEAD_BYTES, "no answer"),
]


class ProxyStub:
    """What a proxy sent before it closed the connection."""

    def __init__(self, answer: bytes) -> None:
        self.left = answer
        self.got = b""

    async def write(self, data: bytes) -> None:
        self.got += data

    async def read(self, at_once: int) -> bytes:
        part, self.left = self.left[:at_once], self.left[at_once:]
        return part


async def negotiated(proxy: ProxyStub, at_once: int) -> None:
    tunnel = Tunnel("http://ada:pw@proxy.example:3128", None)
    await tunnel.negotiate("192.0.2.1", 443, write=proxy.write, read=lambda: proxy.read(at_once))


@pytest.mark.parametrize("at_once", [1, 7, 4096])
async def test_a_tunnel_opens_although_the_answer_arrives_in_parts(at_once: int) -> None:
    """The proxy gets one CONNECT with the address and the operator's password."""
    proxy = ProxyStub(ESTABLISHED_RESPONSE)
    await negotiated(proxy, at_once)

    assert proxy.got.startswith(b"CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: 192.0.2.1:443\r\n")
    assert proxy.got.endswith(b"Proxy-Authorization: Basic YWRhOnB3\r\n\r\n")


async def test_bytes_after_the_proxys_answer_are_left_for_the_tunnel() -> None:
    """Mail servers send a greeting first, which must not be lost."""
    proxy = ProxyStub(ESTABLISHED_RESPONSE + b"* OK ready\r\n")
    await negotiated(proxy, 1)

    assert proxy.left == b"* OK ready\r\n"


@pytest.mark.parametrize("at_once", [HEAD_BYTES * 8, 997])
@each(
    ("answer", "says"),
    [row[1:] for row in REFUSED_ANSWERS],
    ids=[row[0] for row in REFUSED_ANSWERS],
)
async def test_any_other_answer_of_the_proxy_is_an_error(
    answer: bytes, says: str, at_once: int
) -> None:
    """No data was sent to the target, so the caller may try another address."""
    with pytest.raises(httpcore2.ProxyError, match=says):
        await negotiated(ProxyStub(answer), at_once)
