"""The webhook: what is said of a change, how it is signed, and when it is given up."""

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from gatepost import ToolFailure
from gatepost.approvals.herald import Change
from gatepost.approvals.page import page_of
from gatepost.approvals.request import Party, Request
from gatepost.approvals.webhook import BadSecret, Webhook, key_of, payload_of, signature
from gatepost.tools.surroundings import Reply, Sending
from tests.guard.house import come

URL = "https://hooks.example.com/x"
AWAY = ToolFailure("upstream_unavailable", "Away.")
PAGE = page_of("https://mcp.example.com/mcp")


def change(what: Any, state: Any = "waiting", **settings: Any) -> Change:
    request = Request(
        id="a1",
        tenant="acme",
        state=state,
        tool="pay",
        caller=Party(subject="alice-4711", name="Alice 4711"),
        arguments=b'{"to":"bob-4711"}',
        reason="4711",
        created_at=1_000.0,
        until=1_300.0,
        **settings,
    )
    return Change(what=what, tenant="acme", id="a1", tool="pay", request=request)


SAID = {
    "a request": (change("requested"), "approval.requested"),
    "a yes": (change("approved", "approved"), "approval.decided"),
    "the first yes of two": (change("approved", needed=2), None),
    "a no": (change("rejected", "rejected"), "approval.decided"),
    "a withdrawal": (change("withdrawn", "withdrawn"), "approval.decided"),
    "the end of its time": (change("expired", "expired"), "approval.expired"),
    "its use": (change("used", "used"), None),
    "a grant": (Change(what="granted", tenant="acme", id="g1", tool="pay"), None),
}


@pytest.mark.parametrize(("told", "event"), SAID.values(), ids=SAID)
def test_what_is_said_of_a_change(told: Change, event: str | None) -> None:
    """That it happened and where to look; nothing that was sent, and nobody's name."""
    body = payload_of(told, now=1_795_335_300.5, page=PAGE)

    if event is None:
        assert body is None
        return
    assert body is not None
    assert b"4711" not in body
    said = json.loads(body)
    assert (said["type"], said["data"]["state"]) == (event, told.request and told.request.state)
    assert said["timestamp"].startswith("2026-11-22T08:15:00")
    assert said["data"]["url"] == "https://mcp.example.com/dashboard/approvals/a1"


def test_it_is_signed_as_the_specification_has_it() -> None:
    """The example that Standard Webhooks' own libraries are tested with."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


BAD = {
    "nothing": "",
    "no prefix": base64.b64encode(bytes(32)).decode(),
    "too short": "whsec_" + base64.b64encode(bytes(23)).decode(),
    "too long": "whsec_" + base64.b64encode(bytes(65)).decode(),
    "no base64": "whsec_" + "!" * 44,
}


@pytest.mark.parametrize("secret", BAD.values(), ids=BAD)
def test_a_secret_that_is_none(secret: str) -> None:
    """Said without repeating it."""
    with pytest.raises(BadSecret) as refused:
        key_of(secret)
    assert not secret or secret not in str(refused.value)


class Receiver:
    """Takes messages as it is told to: a status, or why it cannot be reached."""

    def __init__(self, *answers: int | ToolFailure) -> None:
        self.answers = [*answers]
        self.ids: list[str] = []

    async def send(self, method: str, url: str, **options: Unpack[Sending]) -> Reply:
        assert (method, url) == ("POST", URL)
        self.ids.append(options["headers"]["webhook-id"])
        answer = self.answers.pop(0)
        if isinstance(answer, ToolFailure):
            raise answer
        return Reply(answer, {}, b"", False, url)

    async def addresses(self, scheme: str, host: str, port: int) -> Sequence[str]:
        raise NotImplementedError


ENDS: dict[str, tuple[list[int | ToolFailure], int]] = {
    "taken at once": ([204], 1),
    "taken later": ([500, AWAY, 301, 200], 4),
    "never taken": ([500] * 9, 4),
    "gone for good": ([410, 200], 1),
}


@pytest.mark.parametrize(("answers", "tried"), ENDS.values(), ids=ENDS)
async def test_how_often_a_message_is_tried(answers: list[int | ToolFailure], tried: int) -> None:
    """Until it is taken, a bounded number of times, always by the same id."""
    receiver = Receiver(*answers)
    webhook = Webhook(lambda: receiver, pauses_s=(0.0, 0.0, 0.0))
    webhook.apply(URL, bytes(32), PAGE)

    await webhook(change("requested"))
    await come(lambda: _all_sent(webhook))

    assert receiver.ids == ["msg_a1_requested"] * tried
    await webhook.aclose()


async def test_a_call_does_not_wait_for_the_receiver() -> None:
    """A receiver that hangs holds up nothing; at the end it is left behind."""
    hanging = asyncio.Event()

    class Hanging(Receiver):
        async def send(self, method: str, url: str, **options: Unpack[Sending]) -> Reply:
            hanging.set()
            await asyncio.Event().wait()
            raise AssertionError

    receiver = Hanging()
    webhook = Webhook(lambda: receiver, closing_s=0.01)
    webhook.apply(URL, bytes(32), PAGE)
    async with asyncio.timeout(5):
        await webhook(change("requested"))
        await hanging.wait()
        await webhook.aclose()


async def _all_sent(webhook: Webhook) -> bool:
    return not webhook.unsent
