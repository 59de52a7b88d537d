"""Record events that are no calls; count repeated refusals instead of recording each of them."""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter

import msgspec

from gatepost.audit.chain import encode, text
from gatepost.audit.record import (
    REFUSED,
    AuditEntry,
    BuiltRecord,
    EndedCall,
    RecordBody,
    RecordedPerson,
    RecordKind,
    asked_tool,
    person_of,
)
from gatepost.audit.record_builder import new_record
from gatepost.config.audit import AuditSettings
from gatepost.execution.failure import AUDIT_LIMITS
from gatepost.execution.interruption import timer
from gatepost.storage.audit import NewAuditRecord
from gatepost.storage.commit import CommitFailed, CommitFuture
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call, Failure
from gatepost_authz.caller import TenantContext

GATHERED_S = 10.0
"""How long refusals of a caller are counted before their number is recorded."""
RECORDED_PER_KIND, RECORDED_PER_CALLER = 5, 20
"""Refusals of a kind, and of all kinds, that have a record each within that time."""
MAX_KINDS = 64
"""Kinds of a caller that are counted separately; further ones without the tool's name."""
MAX_CALLERS = 10_000

RefusalKey = tuple[RecordKind, str, str, str, str]
"""The record's kind, what was called (kind and name), the outcome, and the limit that refused."""
MISMATCH: RefusalKey = ("tenant_mismatch", "tool", "", "refused", "")
"""A request that named another tenant than its token."""


class CountedRefusals(msgspec.Struct):
    """Refusals that differ only in their time."""

    call: Call
    """The last call, without its arguments and its connection."""
    reason: str
    """The reason of the last one, which can be erased."""
    first: float
    last: float
    peer: str
    """The address of all of them; empty if there are several."""
    times: int = 0


class CallerRefusals(msgspec.Struct):
    """The refusals of one caller since a time of `perf_counter`."""

    since: float
    recorded: int = 0
    counts: dict[RefusalKey, int] = {}
    counted: dict[RefusalKey, CountedRefusals] = {}


class RefusalCounter:
    """
    Count refused calls by caller, so that a caller that is refused repeatedly cannot fill the disk.

    The first refusals within some seconds are recorded like any call. Further ones are counted and
    become one record per kind when that time is over, which *add* receives. Refusals by a quota of
    audit records are always counted.
    """

    peers = True
    """Whether records name the address of the caller."""

    def __init__(self, add: Callable[[AuditEntry], object], clock: Callable[[], float]) -> None:
        self._callers: dict[tuple[str | None, ...], CallerRefusals] = {}
        self._add, self._clock = add, clock
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: EndedCall) -> bool:
        """Return whether this call is a refusal that is counted and needs no record of its own."""
        refusal_key = _refusal_key(entry)
        if refusal_key is None:
            return False
        call, _, ended_at, _, ending = entry
        return self.count(
            refusal_key, call, ended_at, str(ending.message) if ending is not None else ""
        )

    def count(self, refusal_key: RefusalKey, call: Call, ended_at: float, reason: str) -> bool:
        """Return whether this refusal is counted and needs no record of its own."""
        quota = refusal_key[4] in AUDIT_LIMITS
        # All clients of a caller share the caller's quota.
        identity = call.caller.principal_key if quota else call.caller.identity_key
        caller_refusals = self._callers.get(identity)
        if caller_refusals is None or (
            not caller_refusals.counted and ended_at - caller_refusals.since >= GATHERED_S
        ):
            caller_refusals = self._new(identity, ended_at)
        if refusal_key not in caller_refusals.counts and len(caller_refusals.counts) >= MAX_KINDS:
            refusal_key = (*refusal_key[:2], "", *refusal_key[3:])
        number = caller_refusals.counts[refusal_key] = (
            caller_refusals.counts.get(refusal_key, 0) + 1
        )
        if (
            not quota
            and number <= RECORDED_PER_KIND
            and caller_refusals.recorded < RECORDED_PER_CALLER
        ):
            caller_refusals.recorded += 1
            return False
        counted = caller_refusals.counted.get(refusal_key)
        if counted is None:
            counted = caller_refusals.counted[refusal_key] = CountedRefusals(
                call, "", ended_at, ended_at, call.peer
            )
        # Keeps neither the arguments nor the connection of a refused call in memory.
        counted.call = Call(caller=call.caller, name="", arguments=b"", request_id=call.request_id)
        counted.reason = reason
        counted.last = ended_at
        counted.times += 1
        if counted.peer != call.peer:
            counted.peer = ""
        self._schedule()
        return True

    def _schedule(self) -> None:
        if len(self._callers) >= MAX_CALLERS:
            self.write()
        elif self._timer is None:
            self._timer = timer(GATHERED_S, self.write, GATHERED_S)

    def _new(self, identity: tuple[str | None, ...], since: float) -> CallerRefusals:
        if len(self._callers) >= MAX_CALLERS:
            self._callers = {
                key: refusals for key, refusals in self._callers.items() if refusals.counted
            }
        caller_refusals = self._callers[identity] = CallerRefusals(since)
        return caller_refusals

    def write(self, older_s: float = 0.0) -> None:
        """
        Add the records of callers that were first refused *older_s* seconds ago or earlier.

        Records of refusals by a quota of audit records do not count against it.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = perf_counter()
        offset = self._clock() - now
        over = [key for key, refusals in self._callers.items() if refusals.since <= now - older_s]
        due = [self._callers.pop(key) for key in over]
        if self._callers:
            self._schedule()
        for caller_refusals in due:
            for refusal_key, refusals in caller_refusals.counted.items():
                caller = refusals.call.caller
                record = _new_record(refusal_key, refusals, offset, peers=self.peers)
                charged = None if refusal_key[4] in AUDIT_LIMITS else caller
                self._add(BuiltRecord(caller.tenant_id, record, charged))


def _refusal_key(entry: EndedCall) -> RefusalKey | None:
    """Return the kind of a refusal that may be counted, or None."""
    call, _, _, redacted_calls, ending = entry
    if ending is None:
        return None
    outcome, limit = (
        (ending.kind, ending.limit or "") if isinstance(ending, Failure) else (ending.outcome, "")
    )
    redacted = redacted_calls[0] if redacted_calls else None
    if redacted is not None and redacted.has_begun:
        # The tool ran; only a nested call may have been refused.
        return None
    if outcome not in REFUSED and (redacted is None or redacted.checked):
        return None
    # One record for all tools, because the quota is used up.
    tool = redacted.offer.name if redacted is not None else asked_tool(call, outcome)
    return "refusal", call.kind, "" if limit in AUDIT_LIMITS else tool, outcome, limit


def _new_record(
    refusal_key: RefusalKey, counted: CountedRefusals, offset: float, *, peers: bool
) -> NewAuditRecord:
    caller = counted.call.caller
    kind, offer, tool, outcome, limit = refusal_key
    body = RecordBody(
        at=int((counted.last + offset) * 1000),
        kind=kind,
        tenant=caller.tenant_id,
        tool=tool,
        offer=offer,
        outcome=outcome,
        request_id=counted.call.request_id,
        times=counted.times,
        first=int((counted.first + offset) * 1000),
        limit=limit,
        subject_kind=caller.subject_kind,
        shared_audience=caller.shared_audience,
    )
    private = {"caller": encode(person_of(caller, counted.peer if peers else ""))}
    if counted.reason:
        private["claimed" if kind == "tenant_mismatch" else "reason"] = text(counted.reason)
    return new_record(body, private)


class AuditEvents:
    """
    Record events that are no calls: decisions, sign-ins, changes by people, refused tokens.

    *add* gives a record to the writer and returns its commit. Refused calls are counted here.
    """

    def __init__(
        self,
        add: Callable[[AuditEntry], CommitFuture],
        redaction: Redaction,
        clock: Callable[[], float],
    ) -> None:
        self.refusals = RefusalCounter(add, clock)
        self._add, self._redaction, self._clock = add, redaction, clock
        self._settings = AuditSettings()

    def apply(self, settings: AuditSettings) -> None:
        """Apply these settings from now on."""
        self._settings, self.refusals.peers = settings, settings.peers

    async def note(  # noqa: PLR0913  # each of them is a field of the record
        self,
        tenant: str,
        kind: RecordKind,
        *,
        outcome: str,
        caller: TenantContext | None = None,
        person: RecordedPerson | None = None,
        tool: str = "",
        approval: str = "",
        request_id: str = "",
        peer: str = "",
        details: Mapping[str, str] | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        """
        Record an event that is not a call; it is durable when this returns.

        *caller* did it, from the address *peer*; it concerns *person*. These can be erased, as can
        the *private* texts (`reason`, `arguments`…). *details* cannot, so they must not contain
        personal data. Texts are redacted here. Raises StoreUnavailable.
        """
        if not self._settings.enabled:
            return
        clean = self._redaction.redactor_for(tenant).clean
        side = {name: text(clean(value)) for name, value in (private or {}).items()}
        if person is not None:
            side["about"] = encode(person)
        if caller is not None:
            side["caller"] = encode(person_of(caller, peer if self._settings.peers else ""))
        body = RecordBody(
            at=int(self._clock() * 1000),
            kind=kind,
            tenant=tenant,
            tool=tool,
            outcome=outcome,
            approval=approval,
            request_id=request_id,
            subject_kind=caller.subject_kind if caller else "",
            shared_audience=caller.shared_audience if caller else False,
            details={name: text(clean(value)) for name, value in (details or {}).items()},
        )
        try:
            await self._add(BuiltRecord(tenant, new_record(body, side), caller))
        except CommitFailed as failure:
            raise StoreUnavailable(f"it could not be put on record: {failure}") from None

    async def note_mismatch(self, call: Call, claimed: str) -> None:
        """Record a call that claimed another tenant; repeated ones of a caller are counted."""
        if not self._settings.enabled:
            return
        caller, reason = (
            call.caller,
            self._redaction.redactor_for(call.caller.tenant_id).clean(claimed),
        )
        if not self.refusals.count(MISMATCH, call, perf_counter(), reason):
            await self.note(
                caller.tenant_id,
                "tenant_mismatch",
                outcome="refused",
                caller=caller,
                request_id=call.request_id,
                peer=call.peer,
                private={"claimed": claimed},
            )
