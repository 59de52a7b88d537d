"""Tells another system of requests and decisions: signed, retried, off the path of calls."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from gatepost.approvals.herald import Change
from gatepost.approvals.page import Page, no_page
from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Outbound

PREFIX = "whsec_"
LEAST_KEY_BYTES, MOST_KEY_BYTES = 24, 64
"""Standard Webhooks 1.0, "Signature scheme"."""
PAUSES_S = (1.0, 5.0, 25.0, 125.0)
TIMEOUT_S = 10.0
AT_ONCE = 8
MOST_UNSENT = 1_000
CLOSING_S = 2.0
GONE = 410

EVENTS = {
    "requested": "approval.requested",
    "approved": "approval.decided",
    "rejected": "approval.decided",
    "withdrawn": "approval.decided",
    "expired": "approval.expired",
}

log = structlog.get_logger("gatepost.approvals")


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
    See `Hears`; the process that made a change sends it, and no other.

    A message that its receiver does not take within five attempts is given up, and so is what a
    process has not sent when it stops: the dashboard shows what is true. *http* is asked for each
    time, as a reload changes where it may reach.
    """

    def __init__(
        self,
        http: Callable[[], Outbound],
        *,
        clock: Callable[[], float] = time.time,
        pauses_s: Sequence[float] = PAUSES_S,
        closing_s: float = CLOSING_S,
    ) -> None:
        self._http, self._clock, self._pauses_s = http, clock, pauses_s
        self._closing_s = closing_s
        self._sending: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.apply("", b"", no_page)

    def apply(self, url: str, key: bytes, page: Page) -> None:
        """Take up where to send to, and the key; no URL: nowhere."""
        self._url, self._key, self._page = url, key, page

    async def __call__(self, change: Change) -> None:
        """See `Hears`."""
        if not self._url:
            return
        body = payload_of(change, now=self._clock(), page=self._page)
        if body is None:
            return
        if len(self._sending) >= MOST_UNSENT:
            log.warning("webhook_dropped", tenant=change.tenant, approval=change.id)
            return
        # The same for every attempt, so that a receiver knows a message again.
        message_id = f"msg_{change.id.replace(':', '_')}_{change.what}"
        task = asyncio.create_task(self._deliver(message_id, body, self._url, self._key))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    @property
    def unsent(self) -> int:
        """How many messages are under way."""
        return len(self._sending)

    async def aclose(self) -> None:
        """Let what is under way come to its end, for a moment."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=self._closing_s)
        for task in tuple(self._sending):
            task.cancel()

    async def _deliver(self, message_id: str, body: bytes, url: str, key: bytes) -> None:
        for pause_s in (*self._pauses_s, None):
            async with self._turns:
                why = await self._attempt(message_id, body, url, key)
            if why is None:
                return
            if pause_s is None or why == str(GONE):
                break
            await asyncio.sleep(pause_s)
        log.warning("webhook_given_up", webhook_id=message_id, reason=why)

    async def _attempt(self, message_id: str, body: bytes, url: str, key: bytes) -> str | None:
        """Why it was not taken; None: it was."""
        timestamp = int(self._clock())
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(key, message_id, timestamp, body),
        }
        try:
            reply = await self._http().send(
                "POST", url, headers=headers, content=body, timeout_s=TIMEOUT_S, max_bytes=10_000
            )
        except ToolFailure as failure:
            return failure.failure.message
        return None if 200 <= reply.status < 300 else str(reply.status)
