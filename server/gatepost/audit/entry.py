"""From a call that has ended to the draft of its record; runs off the path of calls."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from gatepost.audit.record import Body, draft, drafted, encode, fresh_salts, person_of, sealed, text
from gatepost.audit.settings import AuditSettings
from gatepost.redaction.document import cleaned, harmless
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

OVERLAP_BYTES = 65_536
"""
How much behind what is kept of the arguments is looked at: a secret that begins before the cut must
be found whole. No kept secret is longer.
"""

LIGHT_ENTRIES, LIGHT_BYTES = 64, 16_384
"""What is drafted on the event loop: at most about a millisecond of everybody's time."""

REFUSED = frozenset(
    {
        "unknown",
        "insufficient_scope",
        "insufficient_authentication",
        "missing_capability",
        "rate_limit",
        "approval_pending",
        "refused",
    }
)
"""Outcomes of calls whose tool did not run."""


log = structlog.get_logger("gatepost.audit")


class Reason(msgspec.Struct, frozen=True):
    """How a call ended that raised."""

    outcome: str
    message: str = ""


People = dict[int, str]
"""What records of one batch say of each caller, by its identity in memory."""
Shared = tuple[People, Iterator[bytes]]
"""What the drafts of one batch share, and the salts that they do not."""
NOTHING: Mapping[str, str] = {}

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


def drafts_of(
    entries: Iterable[Entry], now: tuple[float, float], settings: AuditSettings
) -> dict[str, list[Draft]]:
    """
    The drafts by tenant, in their order; *now* is the same moment of `time` and `perf_counter`.

    Refusals by a limit that differ in nothing become one record with their number: a caller that
    floods must not fill the disk.
    """
    made: dict[str, list[Draft]] = {}
    shared: Shared = {}, fresh_salts()
    limited: dict[tuple[int, str], list[Ended]] = {}
    changes = settings.calls == "changes"
    offset = now[0] - now[1]
    for entry in entries:
        if len(entry) == 2:  # the pair
            made.setdefault(entry[0], []).append(entry[1])
            continue
        call, _, _, guards, ending = entry
        if ending is not None and is_limited(ending):
            limited.setdefault((id(call.caller), call.name), []).append(entry)
            continue
        if changes and ending is None and guards and reads(guards[0].offer):
            continue
        one = _drafted(entry, offset, shared, settings, 1)
        made.setdefault(call.caller.tenant_id, []).append(one)
    for alike in limited.values():
        one = _drafted(alike[-1], offset, shared, settings, len(alike))
        made.setdefault(alike[0][0].caller.tenant_id, []).append(one)
    return made


def is_light(entries: Sequence[Entry]) -> bool:
    """Whether the drafts of these are made within a moment."""
    if len(entries) > LIGHT_ENTRIES:
        return False
    return sum(len(one[0].arguments) for one in entries if len(one) != 2) <= LIGHT_BYTES


def reads(offer: Offer) -> bool:
    """Whether what is called declares that it changes nothing."""
    return not isinstance(offer, Tool) or offer.annotations.read_only_hint is True


def is_limited(ending: Failure | Reason) -> bool:
    """Whether a limit has refused the call."""
    return isinstance(ending, Failure) and ending.kind == "rate_limit"


def _drafted(
    entry: Ended, offset: float, shared: Shared, settings: AuditSettings, times: int
) -> Draft:
    try:
        return _draft(entry, offset, shared, settings, times)
    except (ValueError, RecursionError) as problem:
        # One record that cannot be made as it should must not stop all others.
        call, _, ended, _, _ = entry
        log.error("audit_record_poor", request_id=call.request_id, reason=type(problem).__name__)
        body = Body(
            at=int((ended + offset) * 1000),
            kind="call",
            tenant=call.caller.tenant_id,
            outcome="unreadable",
            request_id=call.request_id,
        )
        return draft(body, {})


def _draft(
    entry: Ended, offset: float, shared: Shared, settings: AuditSettings, times: int
) -> Draft:
    call, began, ended, guards, ending = entry
    caller = call.caller
    guard = guards[0] if guards else None
    private: dict[str, str] = {}
    people, salts = shared
    known = people.get(id(caller))
    if known is None:
        known = people[id(caller)] = encode(person_of(caller))
    private["caller"] = known
    outcome = "success"
    if ending is not None:
        outcome = ending.kind if isinstance(ending, Failure) else ending.outcome
        if ending.message:
            private["reason"] = text(str(ending.message))
    if call.correlation is not None:
        private["correlation"] = text(call.correlation)
    if guard is not None and guard.offer.name != call.name:
        private["name"] = text(guard.redaction.clean(caller.tenant_id, call.name))
    remarks = (guard.remarks if guard is not None else None) or NOTHING
    if guard is not None and settings.arguments == "redacted" and may_show(guard, outcome):
        private["arguments"] = shown(guard, settings.max_argument_bytes)
    side, commitments = sealed(private, salts)
    refused = outcome in REFUSED or (guard is not None and not guard.checked)
    body = Body(
        at=int((ended + offset) * 1000),
        kind="refusal" if refused else "call",
        tenant=caller.tenant_id,
        tool=guard.offer.name if guard is not None else _asked(call, outcome),
        offer=call.kind,
        outcome=outcome,
        duration_us=int((ended - began) * 1e6),
        request_id=call.request_id,
        retry=call.retry.kind if call.retry is not None else "",
        replayed="replayed" in remarks,
        approval=remarks.get("approval", ""),
        depth=call.depth,
        times=times,
        subject_kind=caller.subject_kind,
        shared_audience=caller.shared_audience,
        details=details_of(remarks) if remarks else NOTHING,
        commitments=commitments,
    )
    return drafted(body, side)


def _asked(call: Call, outcome: str) -> str:
    """The name of what needs more permissions, which is one of ours; any other may be anything."""
    known = outcome.startswith("insufficient_") and call.kind in {"tool", "prompt"}
    return call.name if known else ""


def details_of(remarks: Mapping[str, str]) -> dict[str, str]:
    """What stages said that has no field of its own."""
    return {name: remarks[name] for name in remarks if name not in {"replayed", "approval"}}


def may_show(guard: Guard, outcome: str) -> bool:
    """
    Whether all secrets in the arguments are known, so that what is left may be shown.

    Where a tool takes secrets, they are found in arguments that its schema allows; in others they
    may stand anywhere.
    """
    if outcome == "rate_limit":
        return False
    return guard.checked and outcome != "validation" if guard.offer.secret_arguments else True


def shown(guard: Guard, most: int) -> str:
    """The call's arguments without secrets, cut to so many bytes."""
    arguments: Any = guard.call.arguments
    redactor = guard.now()
    if len(arguments) <= most and harmless(arguments, redactor):
        return str(arguments, "utf-8", "replace")
    window = arguments[: most + OVERLAP_BYTES]
    clean = cleaned(window, redactor)
    data = window if clean is None else clean
    if len(arguments) <= most:
        return text(data.decode(errors="replace"), len(data))
    return text(data[:most].decode(errors="replace"), most) + "…"
