"""Store scripts and what administrators decided about them, the same for every replica."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from gatepost.policy.approvals.approval_request import ERASED, DisplayedParty, party_of
from gatepost.policy.script_reviews.script import Rejection, Script, ScriptReview
from gatepost.storage.entries import Entries, Entry
from gatepost.tools.offers.offer import CallContext
from gatepost_authz.caller import TenantContext

SUBJECT = "scripts"
APPROVED_PREFIX, WAITING_PREFIX, REJECTED_PREFIX = "approved:", "waiting:", "rejected:"
MAX_REJECTED = 50
"""Rejections of one tenant that are kept with their content; the oldest are dropped."""
ERASED_APPROVER = DisplayedParty(subject="", name="an administrator")

_encode = msgspec.json.encode
_review = msgspec.json.Decoder(ScriptReview).decode
_rejection = msgspec.json.Decoder(Rejection).decode


class ScriptApprovals:
    """
    The approvals and rejections of one tenant.

    One content of each name is approved. A new approval replaces the previous one, so that a
    version that was replaced for a reason cannot come back. Nothing is cached: a decision counts
    from the next call, at every replica.
    """

    def __init__(self, entries: Entries, *, clock: Callable[[], float] = time.time) -> None:
        self._entries = entries
        self._clock = clock

    @classmethod
    def of(cls, ctx: CallContext) -> "ScriptApprovals":
        """Return those of the call's tenant."""
        return cls(ctx.entries(SUBJECT))

    async def request(
        self, scripts: Sequence[Script], *, caller: TenantContext, max_waiting: int
    ) -> None:
        """
        Let scripts of a call wait for an administrator; keep at most *max_waiting* waiting per
        tenant.

        The caller with the most waiting scripts loses its oldest, so that a caller never displaces
        those of a caller with fewer. An older version of the same file is dropped, because it
        cannot run any more. A rejected script is not submitted.
        """
        accepted = [
            script for script in scripts if script.text is not None and await self._is_new(script)
        ]
        if not accepted:
            return
        # Read once for all of them: waiting scripts may be large, and a tenant has many.
        del accepted[max_waiting:]
        names, waiting = {script.name for script in accepted}, await self.waiting()
        replaced = [review for review in waiting if review.name in names]
        remaining = [review for review in waiting if review.name not in names]
        party, now = party_of(caller), self._clock()
        submitted = [ScriptReview.of(script, at=now, caller=party) for script in accepted]
        displaced = {review.digest for review in displaced_by(submitted, remaining, max_waiting)}
        for review in [*replaced, *(review for review in remaining if review.digest in displaced)]:
            await self._entries.delete(WAITING_PREFIX + review.digest)
        for review in [review for review in submitted if review.digest not in displaced]:
            key = WAITING_PREFIX + review.digest
            await self._entries.put(key, _encode(review), now=self._clock(), revision=0)

    async def _is_new(self, script: Script) -> bool:
        if await self._entries.get(WAITING_PREFIX + script.digest) is not None:
            return False
        return await self.rejection(script) is None

    async def approved(self, name: str) -> ScriptReview | None:
        """Return the approved content of a name."""
        entry = await self._entries.get(APPROVED_PREFIX + name)
        return None if entry is None else _review(entry.value)

    async def is_approved(self, script: Script) -> bool:
        """Return whether exactly this script is approved."""
        review = await self.approved(script.name)
        return review is not None and review.digest == script.digest

    async def all_approved(self) -> list[ScriptReview]:
        """Return the approved scripts, by name."""
        return _reviews(await self._entries.all(), APPROVED_PREFIX)

    async def waiting(self) -> list[ScriptReview]:
        """Return the scripts that wait for an administrator, the oldest first."""
        entries = await self._entries.all()
        # A call at another replica may submit it at the moment of its rejection.
        rejected = {rejection.review.digest for rejection in self._rejections(entries)}
        waiting = [
            review for review in _reviews(entries, WAITING_PREFIX) if review.digest not in rejected
        ]
        return sorted(waiting, key=lambda review: (review.at, review.name))

    async def rejected(self) -> list[Rejection]:
        """Return the rejections that hold, the latest first."""
        rejections = self._rejections(await self._entries.all())
        return sorted(
            rejections, key=lambda rejection: (rejection.at, rejection.review.name), reverse=True
        )

    async def rejection(self, script: Script) -> Rejection | None:
        """Return the rejection of exactly this script, if it holds."""
        entry = await self._entries.get(REJECTED_PREFIX + script.digest)
        return None if entry is None else next(self._rejections([entry]), None)

    async def approve(self, script: Script, *, by: DisplayedParty) -> None:
        """
        Approve exactly this script; raise ValueError if it is not text, which no person can review.
        """
        now = self._clock()
        review = ScriptReview.of(script, at=now, approver=by)
        await self._entries.put(APPROVED_PREFIX + script.name, _encode(review), now=now)
        await self._entries.delete(REJECTED_PREFIX + script.digest)
        await self._entries.delete(WAITING_PREFIX + script.digest)

    async def drop(self, digest: str) -> bool:
        """Remove a waiting content until it is called again; return whether it waited."""
        return await self._entries.delete(WAITING_PREFIX + digest)

    async def reject(
        self, review: ScriptReview, *, by: DisplayedParty, reason: str, until: float
    ) -> bool:
        """Reject a waiting content *until* then; return False if another decision was first."""
        now, key = self._clock(), REJECTED_PREFIX + review.digest
        rejection = Rejection(review=review, by=by, reason=reason, at=now, until=until)
        await self.tidy(max_rejected=MAX_REJECTED - 1)
        is_first = await self._entries.put(key, _encode(rejection), now=now, revision=0)
        await self._entries.delete(WAITING_PREFIX + review.digest)
        if is_first and await self.is_approved(review.script):
            # In the same moment it was approved: it may run, and must not count as rejected later.
            await self._entries.delete(key)
            return False
        return is_first

    async def tidy(self, *, max_rejected: int = MAX_REJECTED) -> int:
        """Remove expired rejections, and the oldest beyond *max_rejected*; return their number."""
        entries = await self._entries.all()
        stored = [entry for entry in entries if entry.key.startswith(REJECTED_PREFIX)]
        newest = sorted(self._rejections(stored), key=lambda rejection: rejection.at)[
            -max_rejected:
        ]
        keys = {REJECTED_PREFIX + rejection.review.digest for rejection in newest}
        expired = [entry.key for entry in stored if entry.key not in keys]
        for key in expired:
            await self._entries.delete(key)
        return len(expired)

    async def revoke(self, name: str) -> Literal["approved", "waiting"] | None:
        """Remove the approval and all waiting contents of that name; return what there was."""
        was_approved = await self._entries.delete(APPROVED_PREFIX + name)
        waiting = [review for review in await self.waiting() if review.name == name]
        for review in waiting:
            await self.drop(review.digest)
        if was_approved:
            return "approved"
        return "waiting" if waiting else None

    async def erase(self, issuer: str, subject: str) -> int:
        """
        Erase a person from their submissions and decisions; return the number of changed contents.

        Scripts that they submitted no longer wait. A decision stays without their name and reason.
        """
        changed = 0
        for entry in await self._entries.all():
            if entry.key.startswith(WAITING_PREFIX) and _is_submitter(
                _review(entry.value).caller, issuer, subject
            ):
                changed += await self._entries.delete(entry.key)
        for entry in await self._entries.all():
            before: ScriptReview | Rejection
            after: ScriptReview | Rejection
            if entry.key.startswith(APPROVED_PREFIX):
                before = _review(entry.value)
                after = _without_approver(before, issuer, subject)
            elif entry.key.startswith(REJECTED_PREFIX):
                before = _rejection(entry.value)
                after = _without_person(before, issuer, subject)
            else:
                continue
            if after != before:
                # A concurrent change means that the entry was replaced or removed.
                value, revision = _encode(after), entry.revision
                changed += await self._entries.put(
                    entry.key, value, now=self._clock(), revision=revision
                )
        return changed

    def _rejections(self, entries: Iterable[Entry]) -> Iterator[Rejection]:
        """Yield the rejections among the entries that hold."""
        now = self._clock()
        for entry in entries:
            if entry.key.startswith(REJECTED_PREFIX):
                rejection = _rejection(entry.value)
                if rejection.until > now:
                    yield rejection


def displaced_by(
    submitted: Sequence[ScriptReview], waiting: Sequence[ScriptReview], max_waiting: int
) -> list[ScriptReview]:
    """
    Return the scripts to drop, of *waiting* (oldest first) and of one caller's *submitted* ones.

    Each time the caller with the most scripts loses its oldest; in a tie it is the submitting
    caller.
    """
    submitter = _key_of(submitted[0].caller)
    queues: dict[SubmitterKey, deque[ScriptReview]] = {submitter: deque()}
    for review in waiting:
        queues.setdefault(_key_of(review.caller), deque()).append(review)
    # Some of many new scripts may have to go before they were ever stored.
    queues[submitter].extend(submitted)
    displaced = []
    for _ in range(len(waiting) + len(submitted) - max_waiting):
        # One new script stays: the submitter is not shut out even if all submitters have as many
        # scripts.
        counts = {key: len(reviews) for key, reviews in queues.items()}
        counts[submitter] -= counts[submitter] == 1
        # The first in a tie: the submitting caller, then the one that has waited longest.
        displaced.append(queues[max(counts, key=counts.__getitem__)].popleft())
    return displaced


SubmitterKey = tuple[str, str, str]
"""Issuer, kind and subject of a script's submitter."""


def _key_of(caller: DisplayedParty) -> SubmitterKey:
    return caller.issuer, caller.kind, caller.subject


def _reviews(entries: Iterable[Entry], kind: str) -> list[ScriptReview]:
    return [_review(entry.value) for entry in entries if entry.key.startswith(kind)]


def _is_person(party: DisplayedParty | None, issuer: str, subject: str) -> bool:
    return party is not None and (party.issuer, party.subject) == (issuer, subject)


def _is_submitter(caller: DisplayedParty, issuer: str, subject: str) -> bool:
    """Return whether this person submitted it, or another caller did on their behalf."""
    return _is_person(caller, issuer, subject) or caller.actor == subject


def _without_approver(review: ScriptReview, issuer: str, subject: str) -> ScriptReview:
    is_by_person = _is_person(review.approver, issuer, subject)
    return replace(review, approver=ERASED_APPROVER) if is_by_person else review


def _without_person(rejection: Rejection, issuer: str, subject: str) -> Rejection:
    if _is_submitter(rejection.review.caller, issuer, subject):
        rejection = replace(rejection, review=replace(rejection.review, caller=ERASED))
    if _is_person(rejection.by, issuer, subject):
        rejection = replace(rejection, by=ERASED_APPROVER, reason="")
    return rejection
