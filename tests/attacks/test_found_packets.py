"""Whatever packets bring, in whatever pieces: a known head changes nothing of what is answered."""

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.wire.fast import FastProtocol
from tests.server.test_known import app, post
from tests.server.wire import SOON, serving

SCRIPTS = 400
TURNS = 6
"""Turns of the loop in which whatever can be answered is."""
BODIES = (b"", b"a", b"first", b"\r\n\r\n{}", b"ab\r\n\r\n{}", b"GET / HTTP/1.1\r\n\r\n", b"y" * 99)
BEHIND = (b"\r\n", b"\r\n\r\n\r\n", b"GET /x HTTP/1.1\r\nX-Part: ", b"POST /mcp?q", b"\x00", b" ")
LENGTHS = (None, None, None, b"0", b"3", b"05", b"5 ", b"-5", b"00000000000000000005")
FIELDS = ((), (), (), (b"X-A: b",), (b"Content-Length: 3",), (b"Upgrade: x",), (b"Expect: x",))
NOT_SAID = re.compile(rb"date: [^\r]*\r\n|content-length: \d+\r\n|\"times\":\d+")


class Heard(FastProtocol):
    """Tells when something has come, so that a test knows that its packet was one."""

    heard = asyncio.Semaphore(0)
    gone = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.heard.release()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.heard.release()
        self.gone.set()


class Forgetful(Heard):
    """Knows no head."""

    def _learn(self, data: bytes) -> None:
        pass


async def slowly(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers later than the next packet may come."""
    await asyncio.sleep(0)
    await app(scope, receive, send)


def packets(chance: random.Random) -> list[tuple[bytes, bool]]:
    """What a client sends, and after which packets it waits for what is answered."""
    sent: list[bytes] = []
    for _ in range(chance.randint(2, 5)):
        body, number = chance.choice(BODIES), chance.random()
        whole = post(body)
        at = chance.randrange(1, len(whole))
        if number < 0.3:
            sent += [whole] * chance.randint(1, 2)
        elif number < 0.6:
            sent += [whole + chance.choice(BEHIND)] * chance.randint(1, 2)
        elif number < 0.75:
            sent += [whole[:at], whole[at:]]
        elif number < 0.85:
            sent += [whole + whole[:at], whole[at:] + whole] * 2
        elif number < 0.95:
            sent += [post(body, *chance.choice(FIELDS), length=chance.choice(LENGTHS))] * 2
        else:
            sent.append(whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :])
    return [(packet, chance.random() < 0.8) for packet in sent]


async def answered(port: int, kind: type[Heard], sent: list[tuple[bytes, bool]]) -> bytes:
    """All that came back, but for what differs by the hour or by what is remembered."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(client, ("127.0.0.1", port))
        kind.heard, kind.gone = asyncio.Semaphore(0), asyncio.Event()
        for packet, waits in [(post(b"first"), True)] * 3 + sent + [(post(b"last"), True)]:
            try:
                await loop.sock_sendall(client, packet)
            except ConnectionError:
                break
            await kind.heard.acquire()
            for _ in range(TURNS if waits else 0):
                await asyncio.sleep(0)
        received = b""
        try:
            while chunk := client.recv(65_536):
                received += chunk
        except (BlockingIOError, ConnectionError):
            pass
    await kind.gone.wait()
    return NOT_SAID.sub(b"", received)


@pytest.fixture(scope="module")
async def ports() -> AsyncIterator[dict[type[Heard], int]]:
    async with serving(slowly, Heard) as one, serving(slowly, Forgetful) as other:
        yield {Heard: one, Forgetful: other}


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("seed", range(4))
async def test_a_known_head_changes_no_answer(ports: dict[type[Heard], int], seed: int) -> None:
    """Requests whole, cut, changed, and with parts of others behind them (RFC 9112, 11.2)."""
    for number in range(SCRIPTS // 4):
        sent = packets(random.Random(f"{seed} {number}"))
        async with asyncio.timeout(SOON):
            found = await answered(ports[Heard], Heard, sent)
            expected = await answered(ports[Forgetful], Forgetful, sent)
        assert found == expected, sent
