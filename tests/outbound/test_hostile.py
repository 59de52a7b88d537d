"""No URL leads any tool inside, however it is written, resolved or redirected to."""

import socket
from collections.abc import Iterator, Sequence

import pytest

from tests.outbound.internet import PUBLIC, Internet, leads, says
from tests.outbound.urls import NAMES, REBOUND, REFUSED, URL_TOOLS, UrlTool, spelt
from tests.packs.harness import Agent, CallResult, PackServer, open_server
from tests.support.cases import each

SOME = [REFUSED[at : at + 12] for at in range(0, len(REFUSED), 12)]
TIMES = 3
"""A name that means something else a moment later is asked for so often."""


class Inside:
    """Listens where nobody from outside may get; never answers, and hears every connection."""

    def __init__(self) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        if socket.has_dualstack_ipv6():
            self._sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        for one in self._sockets:
            one.setblocking(False)

    def connections(self) -> int:
        """How many connections came since the last time."""
        found = 0
        for one in self._sockets:
            try:
                connection, _ = one.accept()
            except BlockingIOError:
                continue
            connection.close()
            found += 1
        return found

    def close(self) -> None:
        for one in self._sockets:
            one.close()


@pytest.fixture(scope="module")
def inside() -> Iterator[Inside]:
    listening = Inside()
    yield listening
    listening.close()


@pytest.fixture(scope="module")
def server(internet: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """A server with every pack whose tools take URLs, in development mode, without robots."""
    with open_server(
        tmp_path_factory.mktemp("office"),
        sorted({taker.pack for taker in URL_TOOLS}),
        network=internet.network(),
        packs={"web": {"robots": False, "timeout_s": 5}, "gitlab": {"literals": True}},
        prepare=internet.resolves_for,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def agent(server: PackServer) -> Agent:
    return server.agent("rest")


@pytest.fixture
def world(world: Internet, inside: Inside) -> Iterator[Internet]:
    """Nobody got inside: not past the proxy, and not through it."""
    world.names.known |= {name: list(answers) for name, answers in NAMES.items()}
    yield world
    assert inside.connections() == 0
    assert {target.split()[1].rpartition(":")[0] for target in world.proxy.asked} <= {PUBLIC}


def ask(agent: Agent, taker: UrlTool, url: str) -> CallResult:
    """What came of the last call; one before it may have refused already."""
    reply = CallResult()
    for tool, arguments in taker.calls(url):
        reply = agent.call(tool, **arguments)
        if reply.failure is not None:
            break
    return reply


@pytest.mark.requirement("P9", "X4", "X5", "X7")
@each("some", SOME, ids=lambda urls: spelt(urls[0]))
@each("taker", URL_TOOLS, ids=lambda taker: taker.what)
def test_a_url_does_not_lead_inside(
    agent: Agent, world: Internet, inside: Inside, taker: UrlTool, some: Sequence[str]
) -> None:
    """It is refused in a sentence, and nobody is asked anything."""
    for url in some:
        reply = ask(agent, taker, url.replace("{port}", str(inside.port)))

        assert reply.failure is not None, url
        assert reply.kind in {"denied", "validation", "upstream_unavailable"}, (url, reply)
        assert (world.site.seen, inside.connections()) == ([], 0), url


@pytest.mark.requirement("P9", "X5", "X7")
@each("some", SOME, ids=lambda urls: spelt(urls[0]))
@each("taker", [one for one in URL_TOOLS if one.follows], ids=lambda one: one.what)
def test_a_redirect_does_not_lead_inside(
    agent: Agent, world: Internet, inside: Inside, taker: UrlTool, some: Sequence[str]
) -> None:
    """Wherever a page points to."""
    for url in some:
        target = url.replace("{port}", str(inside.port))
        world.site.pages["/to"] = leads("".join(c for c in target if c not in "\r\n\0\t"))

        reply = ask(agent, taker, "http://www.web.test/to")

        assert reply.kind != "internal", (url, reply)
        assert inside.connections() == 0, url


@pytest.mark.requirement("P9")
@each("url", REBOUND, ids=spelt)
@each("taker", URL_TOOLS, ids=lambda taker: taker.what)
def test_a_name_that_changes_its_mind_does_not_lead_inside(
    agent: Agent, world: Internet, inside: Inside, taker: UrlTool, url: str
) -> None:
    """What was checked is what is connected to; the next check finds the change."""
    world.names.known |= {name: list(answers) for name, answers in NAMES.items()}
    world.site.pages["/"] = world.site.pages["/to"] = says("<p>x")
    for _ in range(TIMES):
        reply = ask(agent, taker, url.replace("{port}", str(inside.port)))
        assert reply.kind != "internal", reply


@pytest.mark.requirement("P9")
@each("status", [301, 302, 303, 307, 308])
@each("taker", URL_TOOLS, ids=lambda taker: taker.what)
def test_a_chain_of_redirects_ends(
    agent: Agent, world: Internet, taker: UrlTool, status: int
) -> None:
    """Whether it goes in a circle or on and on."""
    world.site.seen.clear()
    world.site.pages["/"] = leads("/to", status)
    world.site.pages["/to"] = leads("https://other.web.test/", status)

    assert ask(agent, taker, "https://www.web.test/").kind != "internal"
    assert len(world.site.seen) <= 12
