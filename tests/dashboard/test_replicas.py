"""The pages of tools and usage are the same at every replica, and after a restart."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest

from gatepost.audit import events
from gatepost.cli import erasure
from gatepost.cli.stores import OpenStores
from gatepost.config.limits import LimitsSettings, NamedToolLimitSettings
from gatepost.config.settings import Config, StorageSettings
from gatepost.policy.revocation.revocation_records import revocation
from gatepost.runtime.http_server import bind
from gatepost.runtime.process_reports import ProcessReporter
from gatepost.storage.revocations import RevocationRecord
from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.conftest import HttpBrowser
from tests.support.measuring import eventually
from tests.support.processes import free_port
from tests.support.server import Server
from tests.support.stores import POOLER, Postgres, Valkey

WITHIN_S = 30
LIMITS = LimitsSettings(
    requests_per_second=1_000,
    burst=1_000,
    tools={"whoami": NamedToolLimitSettings(requests_per_second=0.001, burst=2)},
)
PROCESSES = "Each process counts its own limits"


class TwoReplicas:
    """A company with two replicas: agents call at the one, and people look at the other."""

    def __init__(self, billing: BillingServer, other: Server, port: int) -> None:
        self.billing, self.other, self.port = billing, other, port

    def page(self, user_browser: HttpBrowser, below: str) -> str:
        """Return a page of the other replica, in the session that began at the first."""
        answer = user_browser.http.get(
            f"http://127.0.0.1:{self.port}{user_browser.server.base}{below}",
            headers={"host": urlsplit(user_browser.server.origin).netloc},
        )
        assert answer.status_code == 200, answer.text
        return unescape(answer.text)

    def shows(self, user_browser: HttpBrowser, below: str, *words: str) -> None:
        """Return once that page of the other replica has all the words."""

        def is_so() -> bool:
            page = self.page(user_browser, below)
            return all(word in page for word in words)

        eventually(is_so, within=WITHIN_S)

    def hides(self, user_browser: HttpBrowser, below: str, word: str) -> None:
        """Return once neither replica's page has the word."""

        def is_so() -> bool:
            pages = self.page(user_browser, below), unescape(user_browser.get(below).text)
            return not any(word in page for page in pages)

        eventually(is_so, within=WITHIN_S)


@contextmanager
def replica(billing: BillingServer) -> Iterator[TwoReplicas]:
    """Run another process of the same server, with a loop and connections of its own."""
    port, first = free_port(), billing.server
    sock = bind("127.0.0.1", port)
    other = Server(first.config, first.loaded_packs, sock, keyring=first.keyring)
    with other.running():
        yield TwoReplicas(billing, other, port)


@contextmanager
def pair_on(root: Path, database: str, shared_store: str) -> Iterator[TwoReplicas]:
    def change(config: Config) -> Config:
        storage = StorageSettings(database=database, shared=shared_store)
        return msgspec.structs.replace(config, storage=storage, limits=LIMITS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "GATHERED_S", 1.0)
        with open_billing_server(root, change=change) as billing, replica(billing) as pair:
            yield pair


@pytest.fixture(scope="module", params=["postgresql", POOLER])
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> Iterator[TwoReplicas]:
    root = tmp_path_factory.mktemp("pair")
    with postgres_server.database(like=postgres_template) as database:
        if request.param == "pgbouncer":
            database = request.getfixturevalue("pgbouncer").url(database)
        with pair_on(root, database, valkey_server.url()) as pair:
            yield pair


@pytest.fixture(scope="module")
def dave(pair: TwoReplicas) -> Iterator[HttpBrowser]:
    with pair.billing.server.user_browser("dave") as user_browser:
        yield user_browser


@pytest.fixture(scope="module")
def bob(pair: TwoReplicas) -> Iterator[HttpBrowser]:
    """Yield the browser of an approver of another tenant."""
    with pair.billing.server.user_browser("bob") as user_browser:
        yield user_browser


def test_every_replica_shows_callers_of_the_other_replicas(
    pair: TwoReplicas, dave: HttpBrowser, bob: HttpBrowser
) -> None:
    """The scopes of the last token decide, also at a later replica, for one tenant only."""
    pair.billing.call("find_customer", {"name": "x"})
    pair.shows(dave, "/tools", "Erin Ek")
    pair.shows(dave, "/usage", "erin</bdi>")
    (key,) = re.findall(
        r'<option value="([0-9a-f]{16})">Erin Ek', pair.page(dave, "/tools").replace("<bdi>", "")
    )
    assert "Missing scope billing:close" in pair.page(dave, f"/tools?caller={key}")
    pair.billing.call("find_customer", {"name": "x"}, scopes="billing:read")
    pair.shows(dave, f"/tools?caller={key}", "Erin Ek", "Missing scope billing:write")

    with replica(pair.billing) as later:
        assert "Erin Ek" in later.page(dave, "/tools")
        assert "erin</bdi>" in later.page(dave, "/usage")
        for below in ("/tools", f"/tools?caller={key}", "/usage"):
            assert "erin" not in later.page(bob, below).lower()


def test_every_replica_counts_calls_refused_by_limits(
    pair: TwoReplicas, dave: HttpBrowser, bob: HttpBrowser
) -> None:
    """Each call is counted by its limit, although one record covers many, and after a restart."""
    answers = asyncio.run(concurrent_statuses(pair.billing, 40))
    assert answers.count(429) == 38
    text = "38 by the tool limit"
    # Refusals are gathered before they are on record.
    eventually(lambda: text in pair.page(dave, "/usage"), within=30)
    assert text in unescape(dave.get("/usage").text)
    with replica(pair.billing) as later:
        assert text in later.page(dave, "/usage?span=week")
        assert "no calls" in later.page(bob, "/usage")
        assert PROCESSES not in later.page(dave, "/usage")


async def concurrent_statuses(billing: BillingServer, number: int) -> list[int]:
    """Return the statuses of that number of concurrent calls of one tool."""
    async with httpx2.AsyncClient(timeout=WITHIN_S, trust_env=False) as http:
        headers = {"authorization": f"Bearer {billing.token()}"}
        url = f"{billing.server.origin}/tool/whoami/call"
        calls = [http.post(url, json={}, headers=headers) for _ in range(number)]
        return [answer.status_code for answer in await asyncio.gather(*calls)]


def test_revoked_callers_are_removed_from_the_tools_page(
    pair: TwoReplicas, dave: HttpBrowser
) -> None:
    """They appear again when they call with another token."""
    billing = pair.billing
    billing.call("find_customer", {"name": "x"}, "alice")
    pair.shows(dave, "/tools", "Alice Archer")
    now = time.time()
    selectors = RevocationRecord(id="", subject="alice", created_at=now, created_by="test")
    cut = revocation(
        selectors, now=now, leeway_s=0.0, longest_s=3_600.0, kept_s=3_600.0, block_s=0.0
    )
    pair.billing.server.run(billing.server.services.records.revocations.put(cut))
    pair.hides(dave, "/tools", "Alice Archer")

    pair.billing.server.run(billing.server.services.records.revocations.delete("", cut.id))
    eventually(
        lambda: billing.call("find_customer", {"name": "x"}, "alice").status_code == 200,
        within=WITHIN_S,
    )
    pair.shows(dave, "/tools", "Alice Archer")


def test_erased_persons_are_removed_from_the_list_of_callers(
    pair: TwoReplicas, dave: HttpBrowser
) -> None:
    """Every replica removes them from memory and from the store."""
    billing = pair.billing
    billing.call("find_customer", {"name": "x"}, "carol")
    pair.shows(dave, "/tools", "Carol Chen")
    services, keyring = billing.server.services, billing.server.keyring
    writer = services.audit_writer
    stores = OpenStores(services.records, services.shared_store, keyring, writer.store, writer)
    whom = erasure.ErasedPerson("acme", billing.server.config.issuers[0].issuer, "carol")
    assert pair.billing.server.run(erasure.forgotten(whom, yes=True, reason="", stores=stores))

    pair.hides(dave, "/tools", "Carol Chen")
    entry = pair.billing.server.run(
        services.records.for_tenant("acme").entries("callers").get("lately")
    )
    assert b"carol" not in entry.value
    assert b"dave" in entry.value


def test_limits_that_hold_for_one_process_are_marked_as_such(
    tmp_path: Path, postgres_server: Postgres, postgres_template: str
) -> None:
    """Without a shared store each process has limits of its own."""
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server.database(like=postgres_template))
        pair = stack.enter_context(pair_on(tmp_path, database, ""))
        user_browser = stack.enter_context(pair.billing.server.user_browser("dave"))
        pair.billing.call("find_customer", {"name": "x"})

        pair.shows(user_browser, "/tools", "Erin Ek")
        assert PROCESSES in pair.page(user_browser, "/usage")


def test_the_operations_page_shows_every_replica_at_any_replica(pair: TwoReplicas) -> None:
    """Each process stores a report, so a page needs no request to another process."""
    servers = pair.billing.server, pair.other
    reporters = [(server, ProcessReporter(server.services)) for server in servers]
    for server, reporter in reporters:
        server.run(reporter.write())
    with pair.billing.server.user_browser("olga") as olga:
        both = pair.page(olga, "/operations")
        servers[0].run(reporters[0][1].remove())
        page = pair.page(olga, "/operations")
    servers[1].run(reporters[1][1].remove())

    row = 'data-label="Health"'
    assert (both.count(row), page.count(row)) == (2, 1)
