"""What the journal holds of a call that has ended, until somebody drafts its record."""

import asyncio
from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from gatepost.stores.api import StoreUnavailable
from gatepost.stores.audit import Draft
from gatepost.tools.api import Call, Failure, Offer, Tool
from gatepost.tools.client import InputNeeded, MissingCapability, ProtocolError, Unaccepted
from gatepost.tools.redaction import Guard
from gatepost.tools.registry import Unknown
from gatepost_authz.errors import (
    AuthError,
    InsufficientAuthentication,
    InsufficientScope,
)

LIGHT_ENTRIES, LIGHT_BYTES = 64, 16_384
"""What is drafted on the event loop: at most about a millisecond of everybody's time."""


class Reason(msgspec.Struct, frozen=True):
    """How a call ended that raised."""

    outcome: str
    message: str = ""


Ended = tuple[Call, float, float, list[Guard], Failure | Reason | None]
"""The call, when it began and ended (`perf_counter`), its guard if it came so far, its ending."""
Entry = Ended | tuple[str, Draft]
"""A call, or what is drafted already, with its tenant."""

_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (Unknown, "unknown"),
    (InsufficientScope, "insufficient_scope"),
    (InsufficientAuthentication, "insufficient_authentication"),
    (AuthError, "refused"),
    (MissingCapability, "missing_capability"),
    (ProtocolError, "protocol_error"),
    (InputNeeded, "input_required"),
    (Unaccepted, "refused"),
    (StoreUnavailable, "store_unavailable"),
    (asyncio.CancelledError, "cancelled"),
    (GeneratorExit, "cancelled"),
)


def reason_of(error: BaseException) -> Reason:
    """What a record says of an exception; nothing of one whose words are not known to be clean."""
    outcome = next((name for kind, name in _KINDS if isinstance(error, kind)), "internal")
    if isinstance(error, Unknown):
        return Reason(outcome, error.name)
    if isinstance(error, InsufficientScope):
        return Reason(outcome, f"needs {' '.join(error.scopes)}")
    return Reason(outcome, str(error.message) if isinstance(error, ProtocolError) else "")


def is_light(entries: Sequence[Entry]) -> bool:
    """Whether the drafts of these are made within a moment."""
    if len(entries) > LIGHT_ENTRIES:
        return False
    return sum(len(one[0].arguments) for one in entries if len(one) != 2) <= LIGHT_BYTES


def reads(offer: Offer) -> bool:
    """Whether what is called declares that it changes nothing."""
    return not isinstance(offer, Tool) or offer.annotations.read_only_hint is True


def is_limited(ending: Failure | Reason) -> TypeGuard[Failure]:
    """Whether a limit has refused the call."""
    return isinstance(ending, Failure) and ending.kind == "rate_limit"
