"""The webhook of approvals: its messages and their signature."""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gatepost.config.approvals import LONGEST_S
from gatepost.execution.failure import ToolFailure
from gatepost.policy.approvals.approval_request import (
    ApprovalGrant,
    ApprovalRequest,
    PageUrl,
    no_page,
)
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.storage.outbox import OutboxMessage
from gatepost.tools.context.interfaces import Outbound

PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
"""Standard Webhooks 1.0, "Signature scheme"."""
TIMEOUT_S = 10.0
MAX_ANSWER = 10_000
DELIVERABLE_S = 3600.0
"""How long after a request's end its message is still delivered."""

EVENTS = {
    "requested": ("approval.requested", 0),
    "approved": ("approval.decided", 1),
    "rejected": ("approval.decided", 1),
    "withdrawn": ("approval.decided", 2),
    "revoked": ("approval.decided", 2),
    "expired": ("approval.expired", 2),
}
"""A change's event, and the place of its message among those of one call, whatever clocks say."""


class BadSecret(ValueError):
    """The signing secret is invalid; the message does not contain it."""


def key_of(secret: str) -> bytes:
    """Return the key of `whsec_…`; raise BadSecret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise BadSecret(
            f"a secret is {PREFIX} and {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes in base64"
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` (Standard Webhooks 1.0)."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _payload(event: str, request: ApprovalRequest, *, now: float, page: PageUrl) -> bytes:
    """
    Return the payload for an event of a request.

    It contains neither arguments nor people's texts; those require a sign-in.
    """
    payload = {
        "type": event,
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
    return msgspec.json.encode(payload)


class Webhook:
    """
    Create the messages for approval changes and send them to the webhook's URL.

    *http* is called for each delivery, because a reload changes the allowed hosts.
    """

    def __init__(
        self, http: Callable[[], Outbound], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._http, self._clock = http, clock
        self._sequence = 0
        """The order number of the latest message about a script."""
        self.apply("", b"", no_page)

    def apply(self, url: str, key: bytes, page: PageUrl) -> None:
        """Take up the URL and the key; an empty URL turns the webhook off."""
        self.url, self._key, self._page = url, key, page

    def message(self, change: ApprovalChange) -> OutboxMessage | None:
        """Return the outbox message for a change, or None if it sends none."""
        request, now = change.changed, self._clock()
        if not self.url or isinstance(request, ApprovalGrant) or change.kind not in EVENTS:
            return None
        if change.kind == "approved" and request.state == "waiting":
            return None  # the first of two approvals; nothing is decided yet
        event, sequence = EVENTS[change.kind]
        name, until = f"{request.id.replace(':', '_')}_{change.kind}", request.until
        if request.kind == "script":
            # The same content may be decided again, or by another tenant at the same time. Those
            # are other messages, and their ids must not be predictable.
            name, until = f"{name}_{secrets.token_hex(16)}", now + LONGEST_S
            # Messages about a script are sent in the order of its decisions.
            sequence = self._sequence = max(round(now * 1_000_000), self._sequence + 1)
        return OutboxMessage(
            id=f"msg_{name}",
            ordering_key=request.id,
            sequence=sequence,
            body=_payload(event, request, now=now, page=self._page),
            created_at=now,
            due_at=now,
            expires_at=max(until, now) + DELIVERABLE_S,
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
                self.url,
                headers=headers,
                content=message.body,
                timeout_s=TIMEOUT_S,
                max_bytes=MAX_ANSWER,
            )
        except ToolFailure as failure:
            return failure.failure.message
        return None if 200 <= reply.status < 300 else str(reply.status)
