"""No URL leads any tool inside, however it is written, resolved or redirected to."""

import socket
from collections.abc import Iterator, Sequence

import pytest

from tests.outbound.takers import TAKERS, Taker
from tests.outbound.urls import NAMES, REBOUND, REFUSED, spelt
from tests.outbound.world import PUBLIC, World, leads, says
from tests.packs.office import Heard, Office, Worker, open_office

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

    def heard(self) -> int:
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
def office(internet: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A server with every pack whose tools take URLs, in development mode, without robots."""
    with open_office(
        tmp_path_factory.mktemp("office"),
        sorted({taker.pack for taker in TAKERS}),
        network=internet.network(),
        packs={"web": {"robots": False, "timeout_s": 5}},
        prepare=internet.resolves_for,
    ) as office:
        yield office


@pytest.fixture(scope="module")
def worker(office: Office) -> Worker:
    return office.worker("rest")


@pytest.fixture
def world(world: World, inside: Inside) -> Iterator[World]:
    """Nobody got inside: not past the proxy, and not through it."""
    world.names.known |= {name: list(answers) for name, answers in NAMES.items()}
    yield world
    assert inside.heard() == 0
    assert {target.split()[1].rpartition(":")[0] for target in world.proxy.asked} <= {PUBLIC}


def ask(worker: Worker, taker: Taker, url: str) -> Heard:
    """What came of the last call; one before it may have refused already."""
    heard = Heard()
    for tool, arguments in taker.calls(url):
        heard = worker.call(tool, **arguments)
        if heard.failure is not None:
            break
    return heard


@pytest.mark.requirement("P9", "X4", "X5", "X7")
@pytest.mark.parametrize("some", SOME, ids=lambda urls: spelt(urls[0]))
@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.what)
def test_a_url_does_not_lead_inside(
    worker: Worker, world: World, inside: Inside, taker: Taker, some: Sequence[str]
) -> None:
    """It is refused in a sentence, and nobody is asked anything."""
    for url in some:
        heard = ask(worker, taker, url.replace("{port}", str(inside.port)))

        assert heard.failure is not None, url
        assert heard.kind in {"denied", "validation", "upstream_unavailable"}, (url, heard)
        assert (world.site.seen, inside.heard()) == ([], 0), url


@pytest.mark.requirement("P9", "X5", "X7")
@pytest.mark.parametrize("some", SOME, ids=lambda urls: spelt(urls[0]))
@pytest.mark.parametrize("taker", [one for one in TAKERS if one.follows], ids=lambda one: one.what)
def test_a_redirect_does_not_lead_inside(
    worker: Worker, world: World, inside: Inside, taker: Taker, some: Sequence[str]
) -> None:
    """Wherever a page points to."""
    for url in some:
        target = url.replace("{port}", str(inside.port))
        world.site.pages["/to"] = leads("".join(c for c in target if c not in "\r\n\0\t"))

        heard = ask(worker, taker, "http://www.web.test/to")

        assert heard.kind != "internal", (url, heard)
        assert inside.heard() == 0, url


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("url", REBOUND, ids=spelt)
@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.what)
def test_a_name_that_changes_its_mind_does_not_lead_inside(
    worker: Worker, world: World, inside: Inside, taker: Taker, url: str
) -> None:
    """What was checked is what is connected to; the next check finds the change."""
    world.site.pages["/"] = world.site.pages["/to"] = says("<p>x")
    for _ in range(TIMES):
        heard = ask(worker, taker, url.replace("{port}", str(inside.port)))
        assert heard.kind != "internal", heard


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.what)
def test_a_chain_of_redirects_ends(worker: Worker, world: World, taker: Taker, status: int) -> None:
    """Whether it goes in a circle or on and on."""
    world.site.pages["/"] = leads("/to", status)
    world.site.pages["/to"] = leads("https://other.web.test/", status)

    assert ask(worker, taker, "https://www.web.test/").kind != "internal"
    assert len(world.site.seen) <= 12
