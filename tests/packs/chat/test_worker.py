"""What sends messages has one way out, and it is the server's."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.outbound.client import OutboundClient
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from gatepost_packs.chat import worker
from gatepost_packs.child.connections import WorkerConnections
from gatepost_packs.child.process import START, ask
from tests.outbound.internet import PUBLIC, Internet, small_internet
from tests.packs.chat import forbidden_actions

pytestmark = pytest.mark.requirement("P6")

HOOK = "jsons://hook.web.test/a"


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """Whose only way in is a proxy, and whose certificates a company signed."""
    with small_internet(tmp_path_factory.mktemp("internet")) as world:
        yield world


@pytest.fixture
def network(internet: Internet) -> Network:
    """What an operator says of it."""
    internet.site.seen.clear()
    internet.names.asked.clear()
    internet.names.known.clear()
    internet.proxy.asked.clear()
    return Network(ca_bundle=str(internet.company.bundle), proxy=internet.proxy.url)


@pytest.fixture
async def client(internet: Internet, network: Network) -> AsyncIterator[OutboundClient]:
    made = OutboundClient(
        network, tls=Fetcher(development=True, network=network).tls, resolver=internet.names
    )
    yield made
    await made.aclose()


def certificates(network: Network) -> str:
    return Path(network.ca_bundle).read_text(encoding="ascii")


async def sent(client: OutboundClient, url: str, *, trusted: bool = True) -> tuple[Any, list[str]]:
    """What the worker answers, and why it was refused connections."""
    network = client.network
    switchboard = WorkerConnections(client.of("acme"), network)
    ca = certificates(network) if trusted else ""
    question = {"url": url, "title": "", "body": "hello", "ca": ca, "max_parts": 1, "handle": 3}
    async with switchboard.open():
        said = await ask(
            Path(worker.__file__), question, timeout_s=30, handles=((switchboard.handle, 3),)
        )
    return said, [failure.failure.kind for failure in switchboard.failures]


async def test_a_message_takes_the_way_of_every_request(
    internet: Internet, client: OutboundClient
) -> None:
    """One look-up, a tunnel to the address that was checked, a certificate that is trusted."""
    internet.names.known["hook.web.test"] = [[PUBLIC], ["127.0.0.1"]]

    said, failures = await sent(client, HOOK)

    assert (said, failures) == ({"service": "JSON", "parts": 1, "of": 1, "status": None}, [])
    assert [(seen.scheme, seen.host, seen.path) for seen in internet.site.seen] == [
        ("https", "hook.web.test", "/a")
    ]
    assert internet.names.asked == ["hook.web.test"]
    assert internet.proxy.asked == [f"CONNECT {PUBLIC}:443"]
    assert b"Proxy-Authorization: Basic " in internet.proxy.head


async def test_a_certificate_that_nobody_trusts_ends_it(
    internet: Internet, client: OutboundClient
) -> None:
    """Before a byte of the message is sent."""
    said, _ = await sent(client, HOOK, trusted=False)

    assert (said["parts"], internet.site.seen) == (0, [])


@pytest.mark.parametrize(
    ("url", "addresses", "failure"),
    [
        (HOOK, [PUBLIC, "10.0.0.7"], "denied"),
        (HOOK, ["169.254.169.254"], "denied"),
        ("json://hook.web.test/a", [PUBLIC], "denied"),
        ("jsons://hook.web.test:8443/a", [PUBLIC], None),
        ("mailtos://hook.web.test:26/?from=a@web.test", [PUBLIC], "denied"),
        ("jsons://nowhere.test/a", [], "upstream_unavailable"),
    ],
)
async def test_what_no_tool_may_reach_no_message_reaches(
    internet: Internet, client: OutboundClient, url: str, addresses: list[str], failure: str | None
) -> None:
    """Private addresses, one among good ones too; unencrypted; ports of other services."""
    if addresses:
        internet.names.known["hook.web.test"] = [addresses]

    said, failures = await sent(client, url)

    assert failures == ([failure] if failure else [])
    assert said["parts"] == (0 if failure else 1)
    assert not failure or internet.proxy.asked == []


def test_nothing_else_is_possible_in_a_worker() -> None:
    """By the interpreter alone: also where the kernel confines nothing."""
    question = {"path": sys.path, "question": {"worker": worker.__file__}}
    command = [sys.executable, "-I", START, str(forbidden_actions.__file__), "30"]

    ended = subprocess.run(
        command, input=json.dumps(question).encode(), capture_output=True, timeout=30, check=True
    )

    outcomes = json.loads(ended.stdout)
    assert {name: bool(outcome) for name, outcome in outcomes.items()} == dict.fromkeys(
        forbidden_actions.TRIES, True
    )
    assert all(
        outcome.endswith("not allowed here") or "to messages" in outcome
        for outcome in outcomes.values()
    )
