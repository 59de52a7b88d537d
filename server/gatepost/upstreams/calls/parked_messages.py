"""Encode the messages of replicas about parked calls, encrypted for one tenant and one request."""

from typing import TypeVar

import msgspec

from gatepost.secrets.keyring import KeyRing
from gatepost.upstreams.calls.call_states import Answer, ExchangeStep
from gatepost.upstreams.calls.round_state import ParkedState
from gatepost.upstreams.connection import UpstreamNotification

PURPOSE = "parked-call"
KEEP_ALIVE_S = 1.0
"""How often the replica that holds a call sends a keep-alive message."""
SILENT_S = 8.0
"""The time without a message after which the replica counts as dead."""
NOTE_S = 60.0
"""How long a message may wait to be taken."""
CHUNK_BYTES = 150_000
"""The key ring opens no larger message at once."""
KEEP_ALIVE, READY = b"alive", b"ready"

T = TypeVar("T")


class ParkedRequest(msgspec.Struct, frozen=True):
    """A request for the next step of a parked call, or to cancel it."""

    parked: str
    call: str
    step: int = 0
    answer: Answer | None = None
    valid_until: float = 0.0
    """The expiry of the token with which its caller continues it."""
    cancels: str = ""
    """The request that its caller gave up, if this message announces that."""


class Sealing:
    """Seals the messages of one request; *reply* is its random id."""

    def __init__(self, keyring: KeyRing, tenant: str, reply: str) -> None:
        self._keyring = keyring
        self._context = msgspec.json.encode([tenant, reply])

    def seal(
        self, message: ParkedRequest | ParkedState | UpstreamNotification | ExchangeStep
    ) -> bytes:
        """Return the message, encrypted."""
        text = msgspec.json.encode(message)
        starts = range(0, len(text), CHUNK_BYTES)
        parts = [
            self._keyring.seal(
                PURPOSE, text[at : at + CHUNK_BYTES], context=self._part_context(at, len(text))
            )
            for at in starts
        ]
        return msgspec.json.encode([len(text), *parts])

    def open(self, sealed: bytes, kind: type[T]) -> T | None:
        """Return the message; None if it was not encrypted for this request."""
        try:
            size, *parts = msgspec.json.decode(sealed)
            text = b""
            for part in parts:
                piece = self._keyring.open(
                    PURPOSE, part, context=self._part_context(len(text), size)
                )
                if piece is None:
                    return None
                text += piece
            return msgspec.json.decode(text, type=kind) if len(text) == size else None
        except (msgspec.DecodeError, TypeError, ValueError):
            return None

    def _part_context(self, at: int, size: int) -> bytes:
        return self._context + b"%d/%d" % (at, size)


def replica_topic(replica: str) -> str:
    """Return the topic on which a replica receives requests for its parked calls."""
    return f"parked:{replica}"


def reply_topic(reply: str) -> str:
    """Return the topic of the messages to the replica that sent a request."""
    return f"parked-reply:{reply}"


def request_note(reply: str) -> str:
    """Return the name of the note that holds a request."""
    return f"parked-request:{reply}"


def step_note(reply: str) -> str:
    """Return the name of the note that holds the step that answers a request."""
    return f"parked-step:{reply}"
