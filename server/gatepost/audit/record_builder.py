"""Build records: of events, and of ended calls, many at a time."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from io import BytesIO
from typing import Any

import msgspec

from gatepost.audit.chain import SALT_BYTES, Value, encode, salted_details, text, value_of
from gatepost.audit.record import (
    REFUSED,
    AuditEntry,
    EndedCall,
    RecordBody,
    RecordKind,
    asked_tool,
    is_limited,
    may_show,
    only_read,
    person_of,
    shown_arguments,
    with_origin,
)
from gatepost.config.audit import AuditSettings
from gatepost.redaction.redactor import Redactor, are_clear
from gatepost.storage.audit import RECORD_BYTES, NewAuditRecord, Sort
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.offers.offer import Call, Failure
from gatepost_authz.caller import TenantContext

MAX_KNOWN = 20_000
"""Maximum number of cached record prefixes, which take up to a kilobyte each."""
MAX_CALLERS = 1_000
"""
Maximum number of cached callers; beyond it all are forgotten. The cached values of one caller take
half a kilobyte, and two microseconds to build again.
"""
USUAL_VALUES = 2
"""Details of a usual record of a call: the caller and the arguments."""
TOGETHER = 64
"""Documents that are searched at once, during which no other thread runs."""
LIGHT_ENTRIES, LIGHT_BYTES = 64, 16_384
"""The largest batch that is built on the event loop, in about a millisecond."""
THREAD = ThreadPoolExecutor(1, "gatepost-audit")
"""Builds larger batches; the default executor may be busy with the work of tools."""

PLAIN = (b"", b"")
"""The rare members of a body, for the bodies that have none of them."""

_encode = msgspec.json.encode

CALLER, REASON, CORRELATION, NAME, ARGUMENTS = map(
    _encode, ("caller", "reason", "correlation", "name", "arguments")
)
"""The details that a record of a call may have, in this order."""

log = logging.getLogger(__name__)


def new_record(body: RecordBody, private: Mapping[str, str]) -> NewAuditRecord:
    """Return the new record of a record from its body and its details."""
    encoded = _encode(body)[1:-1]
    sort: Sort = (body.kind, body.tool, body.outcome)
    if body.limit or body.times != 1:
        sort = (body.kind, body.tool, body.outcome, body.limit, body.times)
    if not private:
        return NewAuditRecord(b",%b}" % encoded, body.at, sort, None)
    values = [(_encode(name), text.encode(), _encode(text)) for name, text in private.items()]
    side, commitments = salted_details(values, BytesIO())
    whole = b',%b,"commitments":%b}' % (encoded, commitments)
    return NewAuditRecord(whole, body.at, sort, side)


def log_record(
    kind: RecordKind, tenant: str, outcome: str, at: int, **details: str
) -> NewAuditRecord:
    """Return a record about the audit log itself; *at* is in milliseconds since the epoch."""
    body = RecordBody(at=at, kind=kind, tenant=tenant, outcome=outcome, details=details)
    return new_record(body, {})


class CallerFields(msgspec.Struct, frozen=True, gc=False):
    """The parts of a record about a caller, who calls from one address."""

    caller: TenantContext
    value: Value
    members: bytes
    """The members of the body."""


_AT = len(_encode({"at": 0})) - 1
_REQUIRED = len(_encode(RecordBody(at=0, kind="", tenant=""))) - 1


def _members(**fields: Any) -> bytes:
    """Return the JSON members after the outcome; empty ones are left out."""
    return _encode(RecordBody(at=0, kind="", tenant="", **fields))[_REQUIRED:-1]


@lru_cache(MAX_KNOWN)
def _prefix(tenant: str, tool: str, offer: str, outcome: str, refused: bool) -> tuple[bytes, Sort]:
    """Return the members from kind to outcome of the body of a call, and how it is counted."""
    kind = "refusal" if refused else "call"
    body = RecordBody(at=0, kind=kind, tenant=tenant, tool=tool, offer=offer, outcome=outcome)
    return _encode(body)[_AT:-1], (kind, tool, outcome)


@cache
def _caller_members(subject_kind: str, shared_audience: bool) -> bytes:
    """Return the members about a caller, which most callers have in common."""
    return _members(subject_kind=subject_kind, shared_audience=shared_audience)


class RecordBuilder:
    """
    Build the records of calls, and remember the parts that records of a caller or tool share.

    msgspec encodes each text; the builder joins whole members, numbers and digests. Several threads
    may use it, because what it remembers can be built again.
    """

    def __init__(self) -> None:
        self.sizes: deque[tuple[TenantContext, int]] = deque()
        """The caller and the bytes of each record that was built; the reader removes them."""
        self._peers = True
        self._callers: dict[tuple[int, str], CallerFields] = {}
        """
        Keyed by the caller's identity in memory, which another caller may have had before, and by
        address: a token may be used on several machines in turn.
        """

    async def built(
        self, entries: Sequence[AuditEntry], now: tuple[float, float], settings: AuditSettings
    ) -> dict[str, list[NewAuditRecord]]:
        """Return what `new_records` returns, from another thread if it takes long."""
        size = sum(len(entry[0].arguments) for entry in entries if isinstance(entry, tuple))
        if size <= LIGHT_BYTES and len(entries) <= LIGHT_ENTRIES:
            # In another thread it would take twice as long, because both threads compete for the
            # interpreter's lock.
            return self.new_records(entries, now, settings)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(THREAD, self.new_records, entries, now, settings)

    def new_records(
        self, entries: Sequence[AuditEntry], now: tuple[float, float], settings: AuditSettings
    ) -> dict[str, list[NewAuditRecord]]:
        """
        Return the new records by tenant, in order.

        *now* is the same moment of `time` and of `perf_counter`.
        """
        if self._peers != settings.peers:
            self._peers, self._callers = settings.peers, {}
        if settings.calls == "changes":
            entries = [entry for entry in entries if not only_read(entry)]
        calls = [
            redacted
            for entry in entries
            if isinstance(entry, tuple)
            for redacted in entry[3]
            if redacted.has_begun or entry[4] is None or not is_limited(entry[4])
        ]
        max_bytes = settings.max_argument_bytes if settings.arguments == "redacted" else None
        clear = frozenset[int]() if max_bytes is None else plain_arguments(calls, max_bytes)
        # From a single system call: each releases the interpreter's lock, and a thread that builds
        # records would have to wait for the event loop every time.
        salts = BytesIO(os.urandom(SALT_BYTES * USUAL_VALUES * max(len(calls), 1)))
        offset, built = now[0] - now[1], dict[str, list[NewAuditRecord]]()
        sizes: list[tuple[TenantContext, int]] = []
        for entry in entries:
            if not isinstance(entry, tuple):
                tenant, record, caller = entry.tenant, entry.record, entry.caller
            else:
                caller = entry[0].caller
                tenant = caller.tenant_id
                try:
                    record = self._new_record(entry, offset, max_bytes, clear, salts)
                except (ValueError, RecursionError) as problem:
                    # One record that cannot be built must not stop all others.
                    record = _unreadable(entry, offset, problem)
            built.setdefault(tenant, []).append(record)
            if caller is not None:
                sizes.append((caller, RECORD_BYTES + len(record.body) + len(record.side or b"")))
        self.sizes += sizes
        return built

    def _new_record(
        self,
        entry: EndedCall,
        offset: float,
        max_bytes: int | None,
        clear: Set[int],
        salts: BytesIO,
    ) -> NewAuditRecord:
        """Return the record of a call, with *max_bytes* of its arguments; None: without them."""
        call, began, ended_at, redacted_calls, ending = entry
        caller, redacted = call.caller, redacted_calls[0] if redacted_calls else None
        fields = self._callers.get((id(caller), call.peer))
        if fields is None or fields.caller is not caller:
            fields = self._caller_fields(caller, call.peer)
        values, outcome, limit = [fields.value], "success", ""
        if ending is not None:
            outcome = ending.kind if isinstance(ending, Failure) else ending.outcome
            limit = (ending.limit or "") if is_limited(ending) else ""
            if ending.message:
                values.append(value_of(REASON, text(str(ending.message))))
        if call.correlation is not None:
            values.append(value_of(CORRELATION, text(call.correlation)))
        if redacted is None:
            tool, refused, remarks = asked_tool(call, outcome), outcome in REFUSED, None
        else:
            tool, refused = redacted.offer.name, not redacted.checked or outcome in REFUSED
            remarks = redacted.remarks if redacted.offer.origin is None else with_origin(redacted)
            if tool != call.name:
                name = redacted.redaction.clean(caller.tenant_id, call.name)
                values.append(value_of(NAME, text(name)))
            if id(redacted) in clear:
                arguments = str(call.arguments, "utf-8", "replace")
                values.append((ARGUMENTS, arguments.encode(), _encode(arguments)))
            elif max_bytes is not None and may_show(redacted, outcome):
                values.append(value_of(ARGUMENTS, shown_arguments(redacted, max_bytes)))
        prefix, sort = _prefix(caller.tenant_id, tool, call.kind, outcome, refused)
        side, commitments = salted_details(values, salts)
        at, took = int((ended_at + offset) * 1000), int((ended_at - began) * 1e6)
        duration = b',"duration_us":%d' % took if took else b""
        request = b',"request_id":%b' % _encode(call.request_id) if call.request_id else b""
        is_special = remarks or call.idempotency_key is not None or call.depth or limit
        special, details = _special(call, remarks or {}, limit) if is_special else PLAIN
        parts = (b',"at":%d' % at, prefix, duration, request, special, fields.members, details)
        return NewAuditRecord(
            b"".join((*parts, b',"commitments":', commitments, b"}")),
            at,
            (*sort[:3], limit, 1) if limit else sort,
            side,
        )

    def _caller_fields(self, caller: TenantContext, peer: str) -> CallerFields:
        person = encode(person_of(caller, peer if self._peers else ""))
        members = _caller_members(caller.subject_kind, caller.shared_audience)
        fields = CallerFields(caller, value_of(CALLER, person), members)
        if len(self._callers) >= MAX_CALLERS:
            self._callers.clear()
        self._callers[id(caller), peer] = fields
        return fields


def _special(call: Call, remarks: Mapping[str, str], limit: str) -> tuple[bytes, bytes]:
    """Return the members that few bodies have: before those about the caller, and after them."""
    details = {name: remarks[name] for name in remarks if name not in {"replayed", "approval"}}
    before = _members(
        retry=call.idempotency_key.kind if call.idempotency_key is not None else "",
        replayed="replayed" in remarks,
        approval=remarks.get("approval", ""),
        depth=call.depth,
        limit=limit,
    )
    return before, _members(details=details)


def _unreadable(entry: EndedCall, offset: float, problem: Exception) -> NewAuditRecord:
    call, ended_at = entry[0], entry[2]
    reason = type(problem).__name__
    log.error("audit_record_incomplete", extra={"request_id": call.request_id, "reason": reason})
    body = RecordBody(
        at=int((ended_at + offset) * 1000),
        kind="call",
        tenant=call.caller.tenant_id,
        outcome="unreadable",
        request_id=call.request_id,
    )
    return new_record(body, {})


def plain_arguments(redacted_calls: Sequence[RedactedCall], max_bytes: int) -> set[int]:
    """
    Return the ids of the calls whose arguments are shown as they are.

    Their tools take no secrets, and the arguments are short and certain to contain none. That is
    usual, and costs a fraction of `shown_arguments` if it is found out for many calls at once.
    """
    clear: set[int] = set()
    for at in range(0, len(redacted_calls), TOGETHER):
        by_redactor: dict[Redactor, list[RedactedCall]] = {}
        for call in redacted_calls[at : at + TOGETHER]:
            offer, size = call.offer, len(call.call.arguments)
            if size <= max_bytes and not (offer.secret_arguments or offer.forwards):
                is_current = call.version == call.redaction.secrets.version
                by_redactor.setdefault(call.redactor if is_current else call.now(), []).append(call)
        for redactor, group in by_redactor.items():
            if are_clear([call.call.arguments for call in group], redactor):
                clear.update(map(id, group))
            else:
                clear |= {id(call) for call in group if are_clear([call.call.arguments], redactor)}
    return clear
