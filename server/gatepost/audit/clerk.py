"""Drafts the records of calls that have ended, many at a time; runs off the path of calls."""

from collections.abc import Mapping, Sequence, Set

import msgspec
import structlog

from gatepost.audit.argument import may_show, plain, shown
from gatepost.audit.entry import Ended, Entry, is_limited, reads
from gatepost.audit.record import (
    Body,
    Value,
    draft,
    drafted,
    encode,
    fresh_salts,
    members,
    opening,
    person_of,
    quoted,
    sealed,
    text,
    value,
)
from gatepost.audit.settings import AuditSettings
from gatepost.stores.audit import Draft, Sort
from gatepost.tools.api import Call, Failure
from gatepost.tools.redaction import Guard
from gatepost_authz.caller import TenantContext

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
MOST_KNOWN = 2_048
"""Callers, and openings of records, that are remembered."""
MOST_APART = 64
"""
Refusals of one batch by a limit that differ in whose, of what or from where. Behind these the
address is left out: an IPv6 network has more addresses than a disk has room for records.
"""
USUAL_VALUES = 2
"""That a record commits to: who called, and with which arguments."""
NOTHING: Mapping[str, str] = {}
CALLER, REASON, CORRELATION, NAME, ARGUMENTS = map(
    quoted, ("caller", "reason", "correlation", "name", "arguments")
)
"""What a record of a call may commit to, in this order."""

log = structlog.get_logger("gatepost.audit")


class Author(msgspec.Struct, frozen=True):
    """What all records of one caller say, who calls from one address."""

    caller: TenantContext
    peer: str
    value: Value
    closing: str
    """The members of each body that are about the caller."""


class Opening(msgspec.Struct, frozen=True):
    """How records begin of calls of one tool of one tenant that end alike."""

    members: str
    sort: Sort


class Authors(dict[int, Author]):
    """
    Callers by their identity in memory, so that none is taken for another that was there, each as
    it called last; *peers*: records say from which address.
    """

    def __init__(self, *, peers: bool = True) -> None:
        self.peers = peers
        self._elsewhere: dict[tuple[int, str], Author] = {}
        """By address, too: one token may be used on several machines in turn."""

    def of(self, caller: TenantContext, peer: str) -> Author:
        """What records say of that caller."""
        known = self.get(id(caller))
        if known is None or known.caller is not caller or known.peer != peer:
            known = self[id(caller)] = self._from(caller, peer)
        return known

    def _from(self, caller: TenantContext, peer: str) -> Author:
        known = self._elsewhere.get((id(caller), peer))
        if known is None or known.caller is not caller:
            if len(self._elsewhere) >= MOST_KNOWN:
                self._elsewhere.clear()
                self.clear()
            who = value(CALLER, encode(person_of(caller, peer if self.peers else "")))
            about = members(
                subject_kind=caller.subject_kind, shared_audience=caller.shared_audience
            )
            known = self._elsewhere[id(caller), peer] = Author(caller, peer, who, about)
        return known


class Openings(dict[tuple[str, str, str, str, bool], Opening]):
    """By tenant, tool, the kind of what was called, outcome, and whether that is a refusal."""

    def __missing__(self, key: tuple[str, str, str, str, bool]) -> Opening:
        if len(self) >= MOST_KNOWN:
            self.clear()
        tenant, tool, offer, outcome, refused = key
        kind = "refusal" if refused else "call"
        encoded = opening(kind=kind, tenant=tenant, tool=tool, offer=offer, outcome=outcome)
        made = self[key] = Opening(encoded, (kind, tool, outcome))
        return made


class Limited(dict[tuple[int, str, str | None, str], tuple[Ended, int]]):
    """
    Refusals by a limit in one batch: the last of those that differ in nothing, and their number, by
    caller, what was called, which limit and, with *peers*, from where.
    """

    def __init__(self, *, peers: bool) -> None:
        self._peers = peers

    def add(self, entry: Ended, limit: str | None) -> None:
        """Count one more."""
        call = entry[0]
        alike = id(call.caller), call.name, limit, call.peer if self._peers else ""
        if alike not in self and len(self) >= MOST_APART:
            alike = id(call.caller), call.name, limit, ""
        if alike[3] != call.peer:
            entry = (msgspec.structs.replace(call, peer=""), *entry[1:])
        self[alike] = entry, self[alike][1] + 1 if alike in self else 1


class Clerk:
    """
    Makes records of calls, and remembers how those of the same callers and tools read.

    Each text is encoded by msgspec, once or for each record; what is put together here are whole
    members, numbers and digests. May be called by several threads: what they remember can be made
    again.
    """

    def __init__(self) -> None:
        self._authors, self._openings = Authors(), Openings()

    def drafts(
        self, entries: Sequence[Entry], now: tuple[float, float], settings: AuditSettings
    ) -> dict[str, list[Draft]]:
        """
        The drafts by tenant, in their order; *now* is the same moment of `time` and
        `perf_counter`.

        Refusals by a limit that differ in nothing become one record with their number: a caller
        that floods must not fill the disk.
        """
        if self._authors.peers != settings.peers:
            self._authors = Authors(peers=settings.peers)
        made: dict[str, list[Draft]] = {}
        kept: list[Entry] = []
        guards: list[Guard] = []
        limited = Limited(peers=settings.peers)
        changes = settings.calls == "changes"
        for entry in entries:
            if len(entry) != 2:  # no pair
                _, _, _, found, ending = entry
                if ending is not None and is_limited(ending):
                    limited.add(entry, ending.limit)
                    continue
                if changes and ending is None and found and reads(found[0].offer):
                    continue
                guards += found
            kept.append(entry)
        shows = settings.max_argument_bytes if settings.arguments == "redacted" else None
        sheet = Sheet(self._authors, self._openings, now[0] - now[1], shows, guards)
        for entry in kept:
            if len(entry) == 2:
                made.setdefault(entry[0], []).append(entry[1])
            else:
                made.setdefault(entry[0].caller.tenant_id, []).append(sheet.draft(entry))
        for last, times in limited.values():
            made.setdefault(last[0].caller.tenant_id, []).append(sheet.draft(last, times))
        return made


class Sheet:
    """One batch of drafts; *shows* is how many bytes of arguments they show, None is nothing."""

    def __init__(
        self,
        authors: Authors,
        openings: Openings,
        offset: float,
        shows: int | None,
        guards: list[Guard],
    ) -> None:
        self._authors, self._openings = authors, openings
        self._offset, self._shows = offset, shows
        self._plain: Set[int] = frozenset() if shows is None else plain(guards, shows)
        self._salts = fresh_salts(USUAL_VALUES * max(len(guards), 1))

    def draft(self, entry: Ended, times: int = 1) -> Draft:
        """The record of a call, or of so many that were alike."""
        try:
            return self._drafted(entry, times)
        except (ValueError, RecursionError) as problem:
            # One record that cannot be made as it should must not stop all others.
            call, _, ended, _, _ = entry
            reason = type(problem).__name__
            log.error("audit_record_poor", request_id=call.request_id, reason=reason)
            body = Body(
                at=int((ended + self._offset) * 1000),
                kind="call",
                tenant=call.caller.tenant_id,
                outcome="unreadable",
                request_id=call.request_id,
            )
            return draft(body, {})

    def _drafted(self, entry: Ended, times: int) -> Draft:
        call, began, ended, guards, ending = entry
        caller, guard = call.caller, guards[0] if guards else None
        author = self._authors.of(caller, call.peer)
        values = [author.value]
        outcome = "success"
        if ending is not None:
            outcome = ending.kind if isinstance(ending, Failure) else ending.outcome
            if ending.message:
                values.append(value(REASON, text(str(ending.message))))
        if call.correlation is not None:
            values.append(value(CORRELATION, text(call.correlation)))
        if guard is None:
            tool, refused, remarks = _asked(call, outcome), outcome in REFUSED, None
        else:
            tool, refused = guard.offer.name, not guard.checked or outcome in REFUSED
            remarks = guard.remarks
            if tool != call.name:
                name = guard.redaction.clean(caller.tenant_id, call.name)
                values.append(value(NAME, text(name)))
            if id(guard) in self._plain:
                values.append(value(ARGUMENTS, str(call.arguments, "utf-8", "replace")))
            elif self._shows is not None and may_show(guard, outcome):
                values.append(value(ARGUMENTS, shown(guard, self._shows)))
        begins = self._openings[caller.tenant_id, tool, call.kind, outcome, refused]
        side, commitments = sealed(values, self._salts)
        at, took = int((ended + self._offset) * 1000), int((ended - began) * 1e6)
        duration = f',"duration_us":{took}' if took else ""
        request = f',"request_id":{quoted(call.request_id)}' if call.request_id else ""
        special = details = limit = ""
        if ending is not None and is_limited(ending):
            limit = ending.limit or ""
        if remarks or call.retry is not None or call.depth or limit or times != 1:
            special, details = _special(call, remarks or NOTHING, times, limit)
        return drafted(
            f',"at":{at}{begins.members}{duration}{request}{special}{author.closing}{details}'
            f',"commitments":{commitments}}}',
            at,
            (*begins.sort[:3], limit, times) if limit else begins.sort,
            side,
        )


def _asked(call: Call, outcome: str) -> str:
    """The name of what needs more permissions, which is one of ours; any other may be anything."""
    known = outcome.startswith("insufficient_") and call.kind in {"tool", "prompt"}
    return call.name if known else ""


def _special(call: Call, remarks: Mapping[str, str], times: int, limit: str) -> tuple[str, str]:
    """What few bodies have: before what is about the caller, and behind it."""
    details = {name: remarks[name] for name in remarks if name not in {"replayed", "approval"}}
    before = members(
        retry=call.retry.kind if call.retry is not None else "",
        replayed="replayed" in remarks,
        approval=remarks.get("approval", ""),
        depth=call.depth,
        times=times,
        limit=limit,
    )
    return before, members(details=details)
