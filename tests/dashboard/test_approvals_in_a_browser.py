"""People decide in a real browser about calls of a real MCP client."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.billing_server import (
    CALLS_RUN,
    BillingServer,
    WebUser,
    open_billing_server,
    signed_in,
)
from tests.support.programs import chromium, in_a_browser

START_S, ANSWER_S = 10, 30
AGENT_NAME = "Erin's <b>Agent</b>"


class AgentAnswer:
    """What came of a call, as the model reads it."""

    def __init__(self, text: str, *, is_error: bool) -> None:
        self.text, self.is_error = text, is_error


class ConnectedAgent:
    """One connected client; several calls may be under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self._loop, self._client = loop, client

    def call(self, tool: str, arguments: Mapping[str, Any]) -> "Future[AgentAnswer]":
        """Begin a call; its result comes after the decision."""
        return asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> AgentAnswer:
        result = await self._client.call_tool(tool, dict(arguments))
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        return AgentAnswer(text, is_error=bool(result.is_error))


@contextmanager
def agent(url: str, token: str) -> Iterator[ConnectedAgent]:
    """Connect an agent of a revision with sessions: its calls are held open while people decide."""
    ready: Future[ConnectedAgent] = Future()
    stop: list[asyncio.Event] = []

    async def live() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        stop.append(over)
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(
                streamable_http_client(url, http_client=http),
                mode="legacy",
                client_info=Implementation(name="agent", version="1", title=AGENT_NAME),
            ) as client,
        ):
            ready.set_result(ConnectedAgent(loop, client))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    connected = ready.result(START_S)
    try:
        yield connected
    finally:
        connected._loop.call_soon_threadsafe(stop[0].set)
        thread.join(START_S)
        assert not thread.is_alive(), "the agent did not stop in time"


pytestmark = [pytest.mark.requirement("A7"), *in_a_browser]

INVOICE = {
    "to": "lena@mueller.example",
    "lines": [{"item": "Consulting", "pieces": 12, "price": 110.5}],
    "text": "Dear Lena,\nplease find the invoice attached.\u202e",
    "mail_token": "a-token-that-must-be-hidden",
}


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingServer]:
    with open_billing_server(tmp_path_factory.mktemp("billing")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def erins(billing: BillingServer) -> Iterator[ConnectedAgent]:
    """Yield the agent of a user without any role."""
    with agent(billing.resource, billing.token("erin")) as connected:
        yield connected


@pytest.fixture(scope="module")
def dave(billing: BillingServer, browser: Browser) -> Iterator[WebUser]:
    with signed_in(billing, browser, "dave", timezone_id="Asia/Kathmandu") as user:
        yield user


def open_newest_request(page: Page, title: str) -> None:
    """Open the newest request of that title, once it appears by itself."""
    page.locator(".request").filter(has_text=title).last.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(title)


def test_an_arriving_call_is_edited_and_runs_with_the_edited_arguments(
    dave: WebUser, erins: ConnectedAgent
) -> None:
    """The page is not loaded again between the arrival and the result."""
    CALLS_RUN.clear()
    page = dave.open()
    expect(page.get_by_role("heading", name="No requests are waiting")).to_be_visible()
    expect(page).to_have_title("Waiting · Gatepost")

    outcome = erins.call("send_invoice", INVOICE)
    expect(page.locator(".request")).to_have_count(1)
    expect(page).to_have_title("(1) Waiting · Gatepost")
    expect(page.get_by_role("status")).to_contain_text("New: send_invoice")

    open_newest_request(page, "Send an invoice")
    text = page.locator("main").inner_text()
    assert "please find the invoice attached.\\u202e" in text
    assert "[REDACTED:MAIL_TOKEN]" in text
    assert "a-token-that-must-be-hidden" not in page.content()
    assert "Invoices leave the company in its name." in text
    assert "Send an invoice to a customer" in text
    assert f"calls itself {AGENT_NAME}" in text
    assert re.search(r"Requested\s+\d+ \w+ 20\d\d, \d\d:\d\d:\d\d GMT\+5:45", text)

    page.get_by_role("link", name="Edit the arguments first").click()
    page.get_by_label("to", exact=True).fill("accounts@mueller.example")
    page.get_by_label("lines", exact=True).fill("[{")
    page.get_by_label("Comment").fill("Travel only, as agreed.")
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.get_by_role("alert")).to_contain_text("your edits are kept")
    expect(page.get_by_label("to", exact=True)).to_have_value("accounts@mueller.example")
    page.get_by_label("lines", exact=True).fill('[{"item": "Travel", "pieces": 1, "price": 5}]')
    expect(page.get_by_label("Comment")).to_have_value("Travel only, as agreed.")
    page.get_by_role("button", name="Approve with these arguments").click()

    expect(page.get_by_text("Dave Dunn approved with edited arguments")).to_be_visible()
    heard = outcome.result(ANSWER_S)
    assert not heard.is_error
    assert "accounts@mueller.example" in heard.text
    assert "The person who approved this call wrote: Travel only, as agreed." in heard.text
    expect(page.get_by_text("Travel only, as agreed.")).to_be_visible()
    assert [(ran["to"], ran["lines"]) for ran in CALLS_RUN] == [("accounts@mueller.example", 1)]


@pytest.mark.requirement("A8")
def test_the_agent_gets_the_reason_of_a_rejection(dave: WebUser, erins: ConnectedAgent) -> None:
    """The reason is in the result, and the tool does not run."""
    CALLS_RUN.clear()
    page = dave.open()
    outcome = erins.call("refund", {"customer": "C-7", "amount": 20})
    open_newest_request(page, "Pay back")
    page.get_by_label("Reason for rejecting").fill("Ask the <b>customer</b> first.")
    page.get_by_role("button", name="Reject").click()

    expect(page.get_by_text("Dave Dunn rejected")).to_be_visible()
    expect(page.get_by_text("Ask the <b>customer</b> first.")).to_be_visible()
    heard = outcome.result(ANSWER_S)
    assert heard.is_error
    assert "Ask the <b>customer</b> first." in heard.text
    assert CALLS_RUN == []


def test_an_undecided_request_expires_on_the_open_page(
    billing: BillingServer, dave: WebUser, erins: ConnectedAgent
) -> None:
    """The open page shows the expiry and accepts no decision; the agent gets the result."""
    page = dave.open()
    outcome = erins.call("refund", {"customer": "C-8", "amount": 30})
    open_newest_request(page, "Pay back")
    with billing.later(301):
        expect(page.get_by_text("This request expired without a decision")).to_be_visible()
        expect(page.get_by_role("button", name="Approve this call")).to_be_disabled()
        assert outcome.result(ANSWER_S).is_error
        page.get_by_role("link", name="Reload").click()
        expect(page.get_by_text("Expired without a decision")).to_be_visible()


def test_the_time_left_is_computed_by_the_servers_clock(
    dave: WebUser, erins: ConnectedAgent
) -> None:
    """The clock of the user's computer may be minutes off."""
    page = dave.open()
    page.clock.install(time=time.time() - 120)
    outcome = erins.call("refund", {"customer": "C-14", "amount": 30})
    open_newest_request(page, "Pay back")
    page.clock.run_for(1_500)  # the page has counted for itself by now

    expect(page.locator("time[data-until]").first).to_have_text(re.compile(r"^[0-4]:\d\d$"))
    page.get_by_role("button", name="Reject").click()
    assert outcome.result(ANSWER_S).is_error


def test_a_call_that_needs_two_approvals_runs_after_the_second(
    billing: BillingServer, browser: Browser, dave: WebUser, erins: ConnectedAgent
) -> None:
    """The first approver cannot approve again; the second one's page updates by itself."""
    CALLS_RUN.clear()
    page = dave.open()
    outcome = erins.call("refund", {"customer": "C-9", "amount": 900})
    open_newest_request(page, "Pay back")
    with signed_in(billing, browser, "carol") as carol:
        theirs = carol.open(page.url.removeprefix(carol.home))
        page.get_by_role("button", name="Approve this call").click()
        expect(page.get_by_text("A second person has to approve.")).to_be_visible()
        expect(page.get_by_role("button", name="Approve this call")).to_have_count(0)
        expect(
            theirs.get_by_text("Dave Dunn approved this request in the meantime: 1 of 2.")
        ).to_be_visible()
        assert not outcome.done()
        theirs.get_by_role("button", name="Approve this call").click()
        expect(theirs.get_by_text("Carol Chen approved")).to_be_visible()

    assert not outcome.result(ANSWER_S).is_error
    assert [ran["amount"] for ran in CALLS_RUN] == [900]


def test_an_approver_cannot_approve_their_own_call(
    billing: BillingServer, browser: Browser, dave: WebUser
) -> None:
    """The call of an approver's agent waits for another approver, and the page says why."""
    with (
        agent(billing.resource, billing.token("carol")) as carols,
        signed_in(billing, browser, "carol") as carol,
    ):
        theirs = carol.open()
        outcome = carols.call("refund", {"customer": "C-10", "amount": 40})
        open_newest_request(theirs, "Pay back")
        expect(theirs.get_by_role("heading", name="You cannot decide this request")).to_be_visible()
        expect(theirs.get_by_text("This is your own call")).to_be_visible()
        expect(theirs.get_by_role("button", name=re.compile("Approve|Reject"))).to_have_count(0)

        page = dave.open(theirs.url.removeprefix(dave.home))
        page.get_by_role("button", name="Approve this call").click()
        expect(
            theirs.get_by_text("Dave Dunn approved this request in the meantime.")
        ).to_be_visible()
        assert not outcome.result(ANSWER_S).is_error


@pytest.mark.slow
def test_a_grant_lets_further_calls_pass_until_it_is_revoked(
    dave: WebUser, erins: ConnectedAgent
) -> None:
    """A granted call needs no approver; the grant is listed and can be revoked."""
    page = dave.open()
    first = erins.call("refund", {"customer": "C-11", "amount": 1})
    open_newest_request(page, "Pay back")
    page.get_by_text("Allow more calls like this one").click()
    page.get_by_label("Duration").select_option("1 hour")
    page.get_by_label("Allowed arguments").select_option("Arguments that match a condition")
    page.get_by_role("button", name="Approve this call").click()
    expect(page.get_by_text("Enter a condition")).to_be_visible()
    page.get_by_label("Condition", exact=True).fill("arguments.amount < 5.0")
    page.get_by_role("button", name="Approve this call").click()
    expect(page.get_by_text("Dave Dunn approved")).to_be_visible()
    assert not first.result(ANSWER_S).is_error

    assert not erins.call("refund", {"customer": "C-12", "amount": 2}).result(ANSWER_S).is_error
    page.get_by_role("link", name="Grants").click()
    expect(page.get_by_text("arguments.amount < 5.0")).to_be_visible()
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("heading", name="No grants")).to_be_visible()
    again = erins.call("refund", {"customer": "C-13", "amount": 3})
    page = dave.open()
    open_newest_request(page, "Pay back")
    page.get_by_role("button", name="Reject").click()
    assert again.result(ANSWER_S).is_error


@pytest.mark.slow
def test_a_request_can_be_approved_with_the_keyboard_alone(
    dave: WebUser, erins: ConnectedAgent
) -> None:
    """The focus follows the reading order in every step."""
    page = dave.open()
    outcome = erins.call("refund", {"customer": "C-14", "amount": 50})
    expect(page.locator(".request")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Pay back")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Your decision")).to_be_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "approve":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_text("Dave Dunn approved")).to_be_visible()
    assert not outcome.result(ANSWER_S).is_error


@pytest.mark.slow
def test_a_request_can_be_approved_without_javascript(
    billing: BillingServer, browser: Browser, erins: ConnectedAgent
) -> None:
    """The forms are posted, and the list reloads itself."""
    with signed_in(billing, browser, "carol", java_script_enabled=False) as carol:
        outcome = erins.call("refund", {"customer": "C-15", "amount": 60})
        billing.until_waiting(1)
        page = carol.open()
        expect(page).to_have_title("(1) Waiting · Gatepost")
        assert page.locator("noscript").count() == 1
        open_newest_request(page, "Pay back")
        page.get_by_role("button", name="Approve this call").click()
        expect(page.get_by_text("Carol Chen approved")).to_be_visible()
        assert not outcome.result(ANSWER_S).is_error
