"""What another system is told of requests and decisions, and how it is signed and sent."""

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

from gatepost.approvals.herald import Change
from gatepost.approvals.page import Page, no_page
from gatepost.approvals.settings import LONGEST_S
from gatepost.stores.notices import Notice
from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Outbound

PREFIX = "whsec_"
LEAST_KEY_BYTES, MOST_KEY_BYTES = 24, 64
"""Standard Webhooks 1.0, "Signature scheme"."""
TIMEOUT_S = 10.0
MOST_ANSWER = 10_000
WORTH_S = 3600.0
"""How long after the end of a request's time it is still told of."""

EVENTS = {
    "requested": "approval.requested",
    "approved": "approval.decided",
    "rejected": "approval.decided",
    "withdrawn": "approval.decided",
    "revoked": "approval.decided",
    "expired": "approval.expired",
}

# Of one call: whoever hears of a decision has heard of the request, whatever clocks say.
PLACES = {"requested": 0, "approved": 1, "rejected": 1, "withdrawn": 2, "expired": 2}


class BadSecret(ValueError):
    """A signing secret that is none; the message does not hold it."""


def key_of(secret: str) -> bytes:
    """The key of `whsec_…`; BadSecret."""
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
    """The header `webhook-signature` (Standard Webhooks 1.0)."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def payload_of(change: Change, *, now: float, page: Page) -> bytes | None:
    """
    What is said of a change; None: nothing.

    Neither arguments nor words of people: whoever may read those signs in.
    """
    request = change.request
    if request is None or change.what not in EVENTS:
        return None
    if change.what == "approved" and request.state == "waiting":
        return None  # the first of two; nothing is decided
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
    Where another system is told, and how: says what is told of a change, and sends it.

    *http* is asked for each time, as a reload changes where it may reach.
    """

    def __init__(
        self, http: Callable[[], Outbound], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._http, self._clock = http, clock
        self._place = 0
        """Of the latest message about any script."""
        self.apply("", b"", no_page)

    def apply(self, url: str, key: bytes, page: Page) -> None:
        """Take up where to send to, and the key; no URL: nowhere."""
        self._url, self._key, self._page = url, key, page

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._url)

    def notice(self, change: Change) -> Notice | None:
        """What is to be kept until it has been told; None: nothing is told of this change."""
        request, now = change.request, self._clock()
        body = payload_of(change, now=now, page=self._page) if self._url else None
        if request is None or body is None:
            return None
        name, until = f"{change.id.replace(':', '_')}_{change.what}", request.until
        if request.kind == "call":
            place = PLACES[change.what]
        else:
            # The same content may be decided about again, also by another tenant in this very
            # moment: those are other messages, and nobody may know their ids beforehand.
            name, until = f"{name}_{secrets.token_hex(16)}", now + LONGEST_S
            # A yes may follow a no, or the other way round: what was made first goes first.
            place = self._place = max(round(now * 1_000_000), self._place + 1)
        return Notice(
            id=f"msg_{name}",
            about=change.id,
            place=place,
            body=body,
            made_at=now,
            due_at=now,
            expires_at=max(until, now) + WORTH_S,
        )

    async def send(self, notice: Notice) -> str | None:
        """Why it was not taken; None: it was."""
        timestamp = int(self._clock())
        headers = {
            "content-type": "application/json",
            # The same for every attempt, so that a receiver knows a message again.
            "webhook-id": notice.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._key, notice.id, timestamp, notice.body),
        }
        try:
            reply = await self._http().send(
                "POST",
                self._url,
                headers=headers,
                content=notice.body,
                timeout_s=TIMEOUT_S,
                max_bytes=MOST_ANSWER,
            )
        except ToolFailure as failure:
            return failure.failure.message
        return None if 200 <= reply.status < 300 else str(reply.status)
