"""The webhook of approvals: messages, their signature, and one attempt to deliver them."""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gatepost.config.approvals import LONGEST_S
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.approvals.request import Page, no_page
from gatepost.storage.outbox import OutboxMessage
from gatepost.tools.api import ToolFailure
from gatepost.tools.context import Outbound

PREFIX = "whsec_"
LEAST_KEY_BYTES, MOST_KEY_BYTES = 24, 64
"""Standard Webhooks 1.0, "Signature scheme"."""
TIMEOUT_S = 10.0
MOST_ANSWER = 10_000
WORTH_S = 3600.0
"""How long after a request's end its message is still delivered."""

EVENTS = {
    "requested": "approval.requested",
    "approved": "approval.decided",
    "rejected": "approval.decided",
    "withdrawn": "approval.decided",
    "revoked": "approval.decided",
    "expired": "approval.expired",
}

# The order of one call's messages: the request first, then its decision, whatever clocks say.
PLACES = {"requested": 0, "approved": 1, "rejected": 1, "withdrawn": 2, "expired": 2}


class BadSecret(ValueError):
    """The signing secret is invalid; the message does not contain it."""


def key_of(secret: str) -> bytes:
    """Return the key of `whsec_…`; raise BadSecret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise BadSecret(
            f"a secret is {PREFIX} and {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes in base64"
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` (Standard Webhooks 1.0)."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def payload_of(change: ApprovalChange, *, now: float, page: Page) -> bytes | None:
    """
    Return the payload for a change, or None if it sends none.

    It contains neither arguments nor people's texts; those require a sign-in.
    """
    request = change.request
    if request is None or change.what not in EVENTS:
        return None
    if change.what == "approved" and request.state == "waiting":
        return None  # the first of two approvals; nothing is decided yet
    said: dict[str, Any] = {
        "type": EVENTS[change.what],
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
        "data": {
            "id": request.id,
            "kind": request.kind,
            "tenant": request.tenant,
            "tool": request.tool,
            "state": request.state,
            "until": request.until if request.kind == "call" else None,
            "url": page(request.tenant, request.id),
        },
    }
    return msgspec.json.encode(said)


class Webhook:
    """
    Create the messages for approval changes and send them to the webhook's URL.

    *http* is called for each delivery, because a reload changes the allowed hosts.
    """

    def __init__(
        self, http: Callable[[], Outbound], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._http, self._clock = http, clock
        self._place = 0
        """The order number of the latest message about a script."""
        self.apply("", b"", no_page)

    def apply(self, url: str, key: bytes, page: Page) -> None:
        """Take up the URL and the key; an empty URL turns the webhook off."""
        self._url, self._key, self._page = url, key, page

    @property
    def is_on(self) -> bool:
        """Return whether a URL is configured."""
        return bool(self._url)

    def message(self, change: ApprovalChange) -> OutboxMessage | None:
        """Return the outbox message for a change, or None if it sends none."""
        request, now = change.request, self._clock()
        body = payload_of(change, now=now, page=self._page) if self._url else None
        if request is None or body is None:
            return None
        name, until = f"{change.id.replace(':', '_')}_{change.what}", request.until
        if request.kind == "call":
            place = PLACES[change.what]
        else:
            # The same content may be decided again, or by another tenant at the same time. Those
            # are other messages, and their ids must not be predictable.
            name, until = f"{name}_{secrets.token_hex(16)}", now + LONGEST_S
            # Messages about a script are sent in the order of its decisions.
            place = self._place = max(round(now * 1_000_000), self._place + 1)
        return OutboxMessage(
            id=f"msg_{name}",
            ordering_key=change.id,
            sequence=place,
            body=body,
            created_at=now,
            due_at=now,
            expires_at=max(until, now) + WORTH_S,
        )

    async def send(self, message: OutboxMessage) -> str | None:
        """Send a message; return why it failed, or None if it was accepted."""
        timestamp = int(self._clock())
        headers = {
            "content-type": "application/json",
            # The same for every attempt, so that a receiver recognizes duplicates.
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._key, message.id, timestamp, message.body),
        }
        try:
            reply = await self._http().send(
                "POST",
                self._url,
                headers=headers,
                content=message.body,
                timeout_s=TIMEOUT_S,
                max_bytes=MOST_ANSWER,
            )
        except ToolFailure as failure:
            return failure.failure.message
        return None if 200 <= reply.status < 300 else str(reply.status)
