"""A request means the same over TLS, whatever records it comes in."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gatepost.http.deadlines import Deadlines
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime.http_server import tls_context
from tests.http.test_framing import (
    ACCEPTED_FRAMINGS,
    PACKETS,
    REFUSED_FRAMINGS,
    app,
    application_fields,
    means_the_same,
    post,
    send_usual_requests,
)
from tests.support.connections import WireConnection, connected, serving
from tests.support.proxies import CertificateAuthority

pytestmark = pytest.mark.requirement("P3")

LONG_DEADLINES = Deadlines(head_s=30.0, keep_alive_s=30, drain_s=1, max_head_bytes=2000)
MAX_IN_A_RECORD = 16 * 1024
"""Bytes (RFC 8446 section 5.1)."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def client_tls(authority: CertificateAuthority) -> ssl.SSLContext:
    """Return the TLS context of the clients of this company."""
    return ssl.create_default_context(cafile=str(authority.bundle))


@pytest.fixture(scope="module")
async def port(authority: CertificateAuthority) -> AsyncIterator[int]:
    tls = tls_context(*authority.certify("localhost"))
    async with serving(app, HttptoolsProtocol, deadlines=LONG_DEADLINES, tls=tls) as port:
        yield port


@pytest.fixture
async def wire(port: int, client_tls: ssl.SSLContext) -> AsyncIterator[WireConnection]:
    """Yield a connection that has served the usual request."""
    async with connected(port, tls=client_tls) as wire:
        await send_usual_requests(wire)
        yield wire


@pytest.mark.parametrize("packets", PACKETS.values(), ids=PACKETS.keys())
async def test_a_request_is_read_the_same_in_any_split_into_tls_records(
    port: int, client_tls: ssl.SSLContext, wire: WireConnection, packets: list[bytes]
) -> None:
    """The result is compared with a fresh connection, twice."""
    async with connected(port, tls=client_tls) as fresh:
        await means_the_same(packets, fresh, wire)


@pytest.mark.parametrize(
    ("packets", "bodies"), ACCEPTED_FRAMINGS.values(), ids=ACCEPTED_FRAMINGS.keys()
)
async def test_a_request_ends_after_its_declared_length(
    wire: WireConnection, packets: list[bytes], bodies: list[str]
) -> None:
    """Requests are pipelined, or TLS records end inside of requests."""
    for packet in packets:
        await wire.send(packet)
    assert [(await application_fields(wire))["body"] for _ in bodies] == bodies


@pytest.mark.parametrize("packet", REFUSED_FRAMINGS.values(), ids=REFUSED_FRAMINGS.keys())
async def test_a_malformed_request_is_refused_after_others_on_a_connection(
    wire: WireConnection, packet: bytes
) -> None:
    """The connection ends."""
    await wire.send(packet)
    assert b'"end"' not in await wire.rest()


async def test_a_body_of_many_tls_records_is_read_as_one_body(wire: WireConnection) -> None:
    """The body is larger than one record."""
    for size in (MAX_IN_A_RECORD - 1, MAX_IN_A_RECORD, 3 * MAX_IN_A_RECORD):
        await wire.send(post(b"x" * size))
        assert (await application_fields(wire))["body"] == "x" * size
    await wire.send(post(b"last"))
    assert (await application_fields(wire))["body"] == "last"


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
def version(request: pytest.FixtureRequest, authority: CertificateAuthority) -> ssl.SSLContext:
    """Return the TLS context of a client that speaks this version only."""
    context = ssl.create_default_context(cafile=str(authority.bundle))
    context.minimum_version = context.maximum_version = request.param
    return context


async def test_requests_are_read_in_both_tls_versions(port: int, version: ssl.SSLContext) -> None:
    """Several requests with bodies of different lengths follow each other."""
    async with connected(port, tls=version) as wire:
        await send_usual_requests(wire)
        for body in (b"a", b"first", b"a longer one"):
            await wire.send(post(body))
            assert (await application_fields(wire))["body"] == body.decode()


@asynccontextmanager
async def used_connection(
    port: int, tls: ssl.SSLContext, token: bytes
) -> AsyncIterator[WireConnection]:
    """Open a connection that has served the usual request with that token."""
    async with connected(port, tls=tls) as wire:
        for _ in range(3):
            await wire.send(post(b"first").replace(b"token", token))
            await application_fields(wire)
        yield wire


async def test_header_fields_of_one_connection_never_appear_on_another(
    port: int, client_tls: ssl.SSLContext
) -> None:
    """Both connections send heads of the same length."""
    async with (
        used_connection(port, client_tls, b"first") as first,
        used_connection(port, client_tls, b"other") as other,
    ):
        for _ in range(3):
            for wire, token in ((first, "first"), (other, "other")):
                await wire.send(post(b"x").replace(b"token", token.encode()))
                request = await application_fields(wire)
                assert ["authorization", f"Bearer {token}"] in request["headers"]
