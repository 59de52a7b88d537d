"""The webhook: what is said of a change, for how long, and how it is signed and sent."""

import base64
import json
import math
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from gatepost import ToolFailure
from gatepost.policy.approvals.approval_request import (
    ApprovalGrant,
    ApprovalRequest,
    DisplayedParty,
    page_of,
)
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.approvals.webhook import (
    BadSecret,
    Webhook,
    key_of,
    signature,
)
from gatepost.tools.context.interfaces import OutboundReply, Sending

URL = "https://hooks.example.com/x"
UNAVAILABLE_FAILURE = ToolFailure("upstream_unavailable", "Away.")
PAGE = page_of("https://mcp.example.com/mcp")


def change(
    change_kind: Any, state: Any = "waiting", until: float = 1_300.0, **settings: Any
) -> ApprovalChange:
    request = ApprovalRequest(
        id="a1",
        tenant="acme",
        state=state,
        tool="pay",
        caller=DisplayedParty(subject="alice-4711", name="Alice 4711"),
        arguments=b'{"to":"bob-4711"}',
        reason="4711",
        created_at=1_000.0,
        until=until,
        **settings,
    )
    return ApprovalChange(change_kind, request)


ALICE = DisplayedParty(subject="alice-4711", name="Alice 4711")
GRANT = ApprovalGrant(
    id="g1",
    tenant="acme",
    caller=ALICE,
    tool="pay",
    until=2_000.0,
    created_at=1_000.0,
    by=ALICE,
    request="a1",
)
EVENT_CASES = {
    "a request": (change("requested"), "approval.requested"),
    "a yes": (change("approved", "approved"), "approval.decided"),
    "the first yes of two": (change("approved", needed=2), None),
    "a no": (change("rejected", "rejected"), "approval.decided"),
    "a withdrawal": (change("withdrawn", "withdrawn"), "approval.decided"),
    "the end of an approval": (change("revoked", "withdrawn"), "approval.decided"),
    "the end of its time": (change("expired", "expired"), "approval.expired"),
    "its use": (change("used", "used"), None),
    "a grant": (ApprovalChange("granted", GRANT), None),
}


@pytest.mark.parametrize(("approval_change", "event"), EVENT_CASES.values(), ids=EVENT_CASES)
def test_a_webhook_payload_names_the_change_and_the_page(
    approval_change: ApprovalChange, event: str | None
) -> None:
    """A message tells the change and the page to open; it has no arguments and no names."""
    webhook = Webhook(lambda: ScriptedReceiver(), clock=lambda: 1_795_335_300.5)
    webhook.apply("https://hooks.example.com/gatepost", b"", PAGE)

    message = webhook.message(approval_change)

    if event is None:
        assert message is None
        return
    assert message is not None
    assert b"4711" not in message.body
    payload = json.loads(message.body)
    assert isinstance(approval_change.changed, ApprovalRequest)
    assert (payload["type"], payload["data"]["state"]) == (
        event,
        approval_change.changed.state,
    )
    assert payload["timestamp"].startswith("2026-11-22T08:15:00")
    assert payload["data"]["url"] == "https://mcp.example.com/dashboard/approvals/a1"


def test_a_message_is_signed_by_the_standard_webhooks_specification() -> None:
    """The example is that of the libraries of Standard Webhooks."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


REFUSED_SECRETS = {
    "nothing": "",
    "no prefix": base64.b64encode(bytes(32)).decode(),
    "too short": "whsec_" + base64.b64encode(bytes(23)).decode(),
    "too long": "whsec_" + base64.b64encode(bytes(65)).decode(),
    "no base64": "whsec_" + "!" * 44,
}


@pytest.mark.parametrize("secret", REFUSED_SECRETS.values(), ids=REFUSED_SECRETS)
def test_an_invalid_webhook_secret_is_refused(secret: str) -> None:
    """The error does not repeat it."""
    with pytest.raises(BadSecret) as refused:
        key_of(secret)
    assert not secret or secret not in str(refused.value)


class ScriptedReceiver:
    """Takes messages as it is told to: a status, or why it cannot be reached."""

    def __init__(self, *answers: int | ToolFailure) -> None:
        self.answers = [*answers]
        self.got: list[tuple[str, Sending]] = []

    async def send(self, method: str, url: str, **options: Unpack[Sending]) -> OutboundReply:
        self.got.append((f"{method} {url}", options))
        answer = self.answers.pop(0)
        if isinstance(answer, ToolFailure):
            raise answer
        return OutboundReply(answer, {}, b"", False, url)

    async def addresses(self, scheme: str, host: str, port: int) -> Sequence[str]:
        raise NotImplementedError


def webhook_and_receiver(
    *answers: int | ToolFailure, at: float = 1_000.0
) -> tuple[Webhook, ScriptedReceiver]:
    """Return a webhook with a stopped clock, and its receiver."""
    receiver = ScriptedReceiver(*answers)
    webhook = Webhook(lambda: receiver, clock=lambda: at)
    webhook.apply(URL, bytes(32), PAGE)
    return webhook, receiver


DELIVERY_ENDINGS: dict[str, tuple[int | ToolFailure, str | None]] = {
    "taken": (204, None),
    "moved": (301, "301"),
    "gone": (410, "410"),
    "broken": (500, "500"),
    "away": (UNAVAILABLE_FAILURE, "Away."),
}


@pytest.mark.parametrize(
    ("answer", "expected_error"), DELIVERY_ENDINGS.values(), ids=DELIVERY_ENDINGS
)
async def test_only_a_2xx_answer_counts_as_delivered(
    answer: int | ToolFailure, expected_error: str | None
) -> None:
    """Only an answer of 2xx counts as taken."""
    webhook, receiver = webhook_and_receiver(answer)
    message = webhook.message(change("requested"))
    assert message is not None

    assert await webhook.send(message) == expected_error
    [(line, sent)] = receiver.got
    assert (line, sent["content"]) == (f"POST {URL}", message.body)
    assert sent["headers"]["webhook-id"] == "msg_a1_requested"
    assert sent["headers"]["webhook-signature"] == signature(
        bytes(32), "msg_a1_requested", 1_000, message.body
    )


async def test_a_reload_applies_to_stored_messages() -> None:
    """The next attempt goes to the new address, signed with the new key."""
    webhook, receiver = webhook_and_receiver(500, 204)
    message = webhook.message(change("requested"))
    assert message is not None
    await webhook.send(message)

    webhook.apply("https://new.example.com/", b"\x01" * 32, PAGE)
    await webhook.send(message)

    line, sent = receiver.got[1]
    assert line == "POST https://new.example.com/"
    assert sent["headers"]["webhook-signature"] == signature(
        b"\x01" * 32, message.id, 1_000, message.body
    )


def test_without_a_webhook_no_message_is_stored() -> None:
    """This holds before a webhook is configured and after a reload has removed it."""
    webhook, _ = webhook_and_receiver()
    assert webhook.message(change("requested")) is not None
    assert webhook.message(change("used", "used")) is None

    webhook.apply("", b"", PAGE)

    assert webhook.message(change("requested")) is None


def test_a_message_expires_an_hour_after_its_request() -> None:
    """That of a script expires half a day later, although the script waits without end."""
    webhook, _ = webhook_and_receiver(at=1_200.0)
    call, late = webhook.message(change("requested")), webhook.message(change("expired", "expired"))
    script = webhook.message(change("approved", "approved", kind="script", until=math.inf))

    assert call is not None
    assert late is not None
    weeks = webhook.message(change("rejected", "rejected", kind="script", until=9e9))
    assert script is not None
    assert weeks is not None
    assert weeks.expires_at == script.expires_at
    assert (call.expires_at, late.expires_at) == (1_300.0 + 3_600.0,) * 2
    assert script.expires_at == 1_200.0 + 43_200.0 + 3_600.0
    assert (call.sequence, late.sequence) == (0, 2)


def test_decisions_about_the_same_script_have_different_message_ids() -> None:
    """
    A script's id is that of its content; a receiver that has seen the first message must not drop
    the second.
    """
    approval_change = change("approved", "approved", kind="script", until=math.inf)
    first, other = (
        webhook_and_receiver()[0],
        webhook_and_receiver()[0],
    )  # of two tenants, or replicas, in the very same moment
    messages = [webhook.message(approval_change) for webhook in (first, first, other, other)]

    assert None not in messages
    ids = {message.id for message in messages if message}
    assert len(ids) == len(messages)
    assert {len(id_) for id_ in ids} == {len("msg_a1_approved_") + 32}


def test_sequence_numbers_of_script_messages_are_times() -> None:
    """They are microseconds, and no two numbers of one process are equal."""
    now = [1_795_335_300.000_001]
    webhook = Webhook(ScriptedReceiver, clock=lambda: now[0])
    webhook.apply(URL, bytes(32), PAGE)
    places: list[int] = []
    for what, passes in (
        ("rejected", 0.0),
        ("approved", 0.0),
        ("withdrawn", 2e-6),
        ("rejected", -9),
    ):
        now[0] += passes
        message = webhook.message(change(what, what, kind="script", until=9e9))
        assert message is not None
        places.append(message.sequence)

    first = 1_795_335_300_000_001
    assert places == [first, first + 1, first + 2, first + 3]
