"""The tests of the customer register; run `python -m pytest` in this folder."""

import asyncio
import json
import threading
import tomllib
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import crm
import pytest

from gatepost.testing import CallRefused, LocalClient, LocalServer, serving

pytestmark = pytest.mark.anyio
RULES = tomllib.loads((Path(__file__).parent / "gatepost.toml").read_text())["approvals"]
ALL = {"crm:read", "crm:write", "crm:refund"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class CreditAgency(BaseHTTPRequestHandler):
    """Answers a score to every client that has the key."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = body == {"email": "ann@example.com", "key": "key-of-acme"}
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b"720" if known else b"")

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def agency() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), CreditAgency) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
async def server(agency: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalServer]:
    monkeypatch.setattr(crm, "CREDIT_URL", f"http://{agency}/score")
    async with serving(crm.pack, approvals=RULES, network={"allow_hosts": [agency]}) as running:
        yield running


@pytest.fixture
async def alice(server: LocalServer) -> LocalClient:
    client = server.client("acme", scopes=ALL, answer=lambda request: {"day": "2027-03-01"})
    await client.call("create_customer", email="ann@example.com", name="Ann")
    await client.call("record_payment", email="ann@example.com", amount=500)
    return client


async def test_customers_are_found_and_tenants_stay_apart(
    server: LocalServer, alice: LocalClient
) -> None:
    found = await alice.call("find_customers", text="ANN")
    other = await server.client("globex", scopes=ALL).call("find_customers")
    twice = await alice.call("create_customer", email="ann@example.com", name="Ann")
    wrong = await alice.call("create_customer", email="ann", name="Ann")

    assert [one["email"] for one in found.structured["result"]] == ["ann@example.com"]
    assert other.structured == {"result": []}
    assert "already" in twice.text
    assert wrong.is_error


async def test_a_large_refund_waits_for_a_person(server: LocalServer, alice: LocalClient) -> None:
    small = await alice.call("refund", email="ann@example.com", amount=100)
    call = asyncio.create_task(alice.call("refund", email="ann@example.com", amount=150))
    waiting = await server.approval(tool="refund")
    with pytest.raises(PermissionError):
        await waiting.approve(alice)
    await waiting.approve(server.client(subject="dave", roles={"approver"}))
    large = await call
    call = asyncio.create_task(alice.call("refund", email="ann@example.com", amount=200))
    await (await server.approval()).reject(reason="Ask her first")

    assert small.structured["paid"] == 400
    assert large.structured["paid"] == 250
    assert "Ask her first" in (await call).text
    await alice.call("refund", email="ann@example.com", amount=100)
    await alice.call("refund", email="ann@example.com", amount=90)
    too_much = await alice.call("refund", email="ann@example.com", amount=99)
    assert "not paid that much" in too_much.text


async def test_of_two_payments_at_once_none_is_lost(alice: LocalClient) -> None:
    pay = [alice.call("record_payment", email="ann@example.com", amount=n) for n in range(1, 11)]
    await asyncio.gather(*pay)
    found = await alice.call("find_customers")

    assert found.structured["result"][0]["paid"] == 555


async def test_each_tool_needs_its_scope(server: LocalServer) -> None:
    reader = server.client(scopes={"crm:read"})
    with pytest.raises(CallRefused) as refused:
        await reader.call("refund", email="ann@example.com", amount=1)

    assert refused.value.scopes >= {"crm:refund"}


async def test_the_person_chooses_the_day_of_a_call(
    server: LocalServer, alice: LocalClient
) -> None:
    planned = await alice.call("plan_call", email="ann@example.com")
    missing = await alice.call("plan_call", email="bob@example.com")

    assert planned.structured["next_call"] == "2027-03-01"
    assert "use find_customers" in missing.text


async def test_a_report_is_a_task_with_progress(alice: LocalClient) -> None:
    called = await alice.call("write_report")
    report = await (await alice.start("write_report")).result()

    assert called.text == report.text == "Ann: 500"
    assert called.progress == ({"progress": 1, "total": 1, "message": "Ann"},)


async def test_the_credit_agency_gets_the_tenants_own_key(
    server: LocalServer, alice: LocalClient, agency: str
) -> None:
    without = await alice.call("credit_score", email="ann@example.com")
    await server.secret("acme", "CREDIT_KEY", "key-of-acme", hosts=[agency])
    scored = await alice.call("credit_score", email="ann@example.com")

    assert "gatepost secrets set CREDIT_KEY" in without.text
    assert scored.structured == {"result": 720}


async def test_a_chart_a_resource_and_a_prompt(alice: LocalClient) -> None:
    chart = await alice.call("sales_chart")
    (shown,) = await alice.read("crm://customers/ann@example.com")
    (message,) = await alice.prompt("thank", email="ann@example.com")

    assert chart.text == "Sales"
    assert chart.images[0].startswith(b"\x89PNG")
    assert b'"name":"Ann"' in shown
    assert "warm sentences" in message["content"]["text"]
