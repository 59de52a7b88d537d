"""Store scripts and what administrators decided about them, the same for every replica."""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from gatepost.policy.approvals.request import reason_sentence
from gatepost.storage.entries import Entries, Entry
from gatepost.tools.api import CallContext
from gatepost.tools.context import Workspace
from gatepost_authz.caller import TenantContext

Place = Literal["server", "workspace", "code"]
"""A folder of the operator, a folder of the tenant's workspace, or an argument of a call."""


class Script(msgspec.Struct, frozen=True):
    """
    Code as it was read once.

    Exactly these bytes are judged, shown to an administrator and run, even if the file changes
    meanwhile.
    """

    name: str
    content: bytes
    place: Place

    @property
    def file(self) -> str:
        """Return the name that people see."""
        return f"{self.name}.star"

    @property
    def digest(self) -> str:
        """
        Return the SHA-256 of name, NUL and content.

        The same bytes under another name are another script.
        """
        return hashlib.sha256(self.name.encode() + b"\0" + self.content).hexdigest()

    @property
    def text(self) -> str | None:
        """Return the content as text; None if it is not UTF-8."""
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None


class FoundScripts(msgspec.Struct, frozen=True):
    """The scripts of one tenant."""

    scripts: tuple[Script, ...]
    cut: bool
    """Whether there are more than the configuration allows."""


class ScriptSource(Protocol):
    """Finds the scripts of one tenant for `gatepost scripts`; a pack registers how to make one."""

    async def find(self, name: str) -> Script | None:
        """Return the script of that name; raise ToolFailure if it cannot be read."""

    async def all(self) -> FoundScripts:
        """Return all scripts by name, without those that cannot be read."""

    def allowed_by(self, script: Script) -> str | None:
        """Return the setting that lets the script run without an approval, if one does."""


OpenScriptSource = Callable[[Any, Workspace], ScriptSource]
"""Makes the source of one tenant, from the pack's own settings and the tenant's workspace."""


SUBJECT = "scripts"
APPROVED, WAITING, REJECTED = "approved:", "waiting:", "rejected:"
MOST_REJECTED = 50
"""Rejections of one tenant that are kept with their content; the oldest are dropped."""


class ScriptCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller that asked for a script, as its token proved it."""

    issuer: str
    kind: Literal["user", "client"]
    client_id: str | None
    actor: str | None
    issued_at: int | None


class ScriptApprover(msgspec.Struct, frozen=True, kw_only=True):
    """The person who decided about a script; without a subject after erasure."""

    subject: str
    issuer: str = ""
    name: str = ""
    operator: bool = False
    """Whether the operator decided, identified by the machine's user name."""

    @property
    def shown(self) -> str:
        """Return the name that callers and script lists show."""
        return (self.name or self.subject) if self.subject else "an administrator"


class ScriptReview(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was approved or waits for approval."""

    name: str
    digest: str
    content: str
    """The complete content: an approver must see it, also on a machine without its file."""
    place: Place
    by: str
    """The subject of the first submitter; for an approved content, the approver's display name."""
    at: float
    """Seconds since the epoch."""
    asker: ScriptCaller | None = None
    """
    Further claims of the submitter; None for a decision without a call, or from an older version.
    """
    judge: ScriptApprover | None = None
    """The approver; None if it is not approved, or from an older version."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was rejected; it is not submitted again."""

    review: ScriptReview
    """The submission."""
    by: ScriptApprover
    reason: str
    """The approver's reason, which callers read; may be empty."""
    at: float
    until: float
    """When it can be submitted again, in seconds since the epoch."""

    @property
    def reason_sentence(self) -> str:
        """Return the reason as a sentence that follows another one; empty without a reason."""
        return reason_sentence(self.reason)


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

    async def request(self, scripts: Sequence[Script], *, caller: TenantContext, most: int) -> None:
        """Let *scripts* wait for an administrator because of a call of *caller*; see `submit`."""
        asker = ScriptCaller(
            issuer=caller.issuer,
            kind=caller.subject_kind,
            client_id=caller.client_id,
            actor=caller.actor,
            issued_at=caller.issued_at,
        )
        await self.submit(scripts, by=caller.subject, most=most, asker=asker)

    async def approved(self, name: str) -> ScriptReview | None:
        """Return the approved content of a name."""
        entry = await self._entries.get(APPROVED + name)
        return None if entry is None else _read(entry.value)

    async def holds(self, script: Script) -> bool:
        """Return whether exactly this script is approved."""
        review = await self.approved(script.name)
        return review is not None and review.digest == script.digest

    async def submit(
        self, scripts: Sequence[Script], *, by: str, most: int, asker: ScriptCaller | None = None
    ) -> None:
        """
        Submit scripts to an administrator, keeping at most *most* waiting ones per tenant.

        The caller with the most waiting scripts loses its oldest, so that a caller never displaces
        those of a caller with fewer. An older version of the same file is dropped, because it
        cannot run any more. A rejected script is not submitted.
        """
        fresh = [one for one in scripts if one.text is not None and await self._is_new(one)]
        if not fresh:
            return
        # Read once for all of them: waiting scripts may be large, and a tenant has many.
        del fresh[most:]
        names = {script.name for script in fresh}
        waiting = await self.waiting()
        gone = [one for one in waiting if one.name in names]
        kept = [one for one in waiting if one.name not in names]
        submitted = [self._review(script, by, asker) for script in fresh]
        displaced = {one.digest for one in displaced_by(submitted, kept, most)}
        for review in [*gone, *(one for one in kept if one.digest in displaced)]:
            await self._entries.delete(WAITING + review.digest)
        for review in [one for one in submitted if one.digest not in displaced]:
            key, value = WAITING + review.digest, msgspec.json.encode(review)
            await self._entries.put(key, value, now=self._clock(), revision=0)

    async def _is_new(self, script: Script) -> bool:
        if await self._entries.get(WAITING + script.digest) is not None:
            return False
        return await self.rejection(script) is None

    async def waiting(self) -> list[ScriptReview]:
        """Return the scripts that wait for an administrator, the oldest first."""
        found = await self._entries.all()
        # A call at another replica may submit it at the moment of its rejection.
        rejected = {one.review.digest for one in self._rejections(found)}
        waiting = [one for one in _reviews(found, WAITING) if one.digest not in rejected]
        return sorted(waiting, key=lambda one: (one.at, one.name))

    async def all_approved(self) -> list[ScriptReview]:
        """Return the approved scripts, by name."""
        return _reviews(await self._entries.all(), APPROVED)

    async def rejected(self) -> list[Rejection]:
        """Return the rejections that hold, the latest first."""
        found = self._rejections(await self._entries.all())
        return sorted(found, key=lambda one: (one.at, one.review.name), reverse=True)

    async def rejection(self, script: Script) -> Rejection | None:
        """Return the rejection of exactly this script, if it holds."""
        entry = await self._entries.get(REJECTED + script.digest)
        return None if entry is None else next(self._rejections([entry]), None)

    async def approve(self, script: Script, *, by: ScriptApprover) -> None:
        """
        Approve exactly this script; raise ValueError if it is not text, which no person can review.
        """
        review = msgspec.json.encode(self._review(script, by.shown, judge=by))
        await self._entries.put(APPROVED + script.name, review, now=self._clock())
        await self._entries.delete(REJECTED + script.digest)
        await self._entries.delete(WAITING + script.digest)

    async def drop(self, digest: str) -> bool:
        """Remove a waiting content until it is called again; return whether it waited."""
        return await self._entries.delete(WAITING + digest)

    async def reject(
        self, review: ScriptReview, *, by: ScriptApprover, reason: str, until: float
    ) -> bool:
        """Reject a waiting content *until* then; return False if another decision was first."""
        now, key = self._clock(), REJECTED + review.digest
        rejection = Rejection(review=review, by=by, reason=reason, at=now, until=until)
        await self.tidy(most=MOST_REJECTED - 1)
        value = msgspec.json.encode(rejection)
        first = await self._entries.put(key, value, now=now, revision=0)
        await self._entries.delete(WAITING + review.digest)
        approved = await self.approved(review.name)
        if first and approved is not None and approved.digest == review.digest:
            # In the same moment it was approved: it may run, and must not count as rejected later.
            await self._entries.delete(key)
            return False
        return first

    async def tidy(self, *, most: int = MOST_REJECTED) -> int:
        """Remove expired rejections, and the oldest beyond *most*; return their number."""
        found = await self._entries.all()
        stored = [one for one in found if one.key.startswith(REJECTED)]
        kept = sorted(self._rejections(stored), key=lambda one: one.at)[-most:]
        keys = {REJECTED + one.review.digest for one in kept}
        gone = [one.key for one in stored if one.key not in keys]
        for key in gone:
            await self._entries.delete(key)
        return len(gone)

    async def revoke(self, name: str) -> Literal["approved", "waiting"] | None:
        """Remove the approval and all waiting contents of that name; return what there was."""
        was = await self._entries.delete(APPROVED + name)
        waited = [one for one in await self.waiting() if one.name == name]
        for review in waited:
            await self._entries.delete(WAITING + review.digest)
        if was:
            return "approved"
        return "waiting" if waited else None

    def _review(
        self,
        script: Script,
        by: str,
        asker: ScriptCaller | None = None,
        judge: ScriptApprover | None = None,
    ) -> ScriptReview:
        text = script.text
        if text is None:
            raise ValueError(f"{script.file} is not text")
        return ScriptReview(
            name=script.name,
            digest=script.digest,
            content=text,
            place=script.place,
            by=by,
            at=self._clock(),
            asker=asker,
            judge=judge,
        )

    def _rejections(self, entries: Iterable[Entry]) -> Iterator[Rejection]:
        """Yield the rejections among the entries that hold."""
        now = self._clock()
        for entry in entries:
            if entry.key.startswith(REJECTED):
                rejection = msgspec.json.decode(entry.value, type=Rejection)
                if rejection.until > now:
                    yield rejection


def displaced_by(
    fresh: Sequence[ScriptReview], waiting: Sequence[ScriptReview], most: int
) -> list[ScriptReview]:
    """
    Return the scripts to drop, of *waiting* (oldest first) and of one caller's *fresh* ones.

    Each time the caller with the most scripts loses its oldest; in a tie it is the submitting
    caller.
    """
    left: dict[Caller, deque[ScriptReview]] = {_caller(fresh[0]): deque()}
    newcomer = next(iter(left))
    for review in waiting:
        left.setdefault(_caller(review), deque()).append(review)
    # Some of many new scripts may have to go before they were ever stored.
    left[newcomer].extend(fresh)
    displaced = []
    for _ in range(len(waiting) + len(fresh) - most):
        # One new script stays: the submitter is not shut out even if all submitters have as many
        # scripts.
        counts = {one: len(reviews) for one, reviews in left.items()}
        counts[newcomer] -= counts[newcomer] == 1
        # The first in a tie: the submitting caller, then the one that has waited longest.
        displaced.append(left[max(counts, key=counts.__getitem__)].popleft())
    return displaced


Caller = tuple[str, str, str]
"""Issuer, kind and subject of a script's submitter."""


def _caller(review: ScriptReview) -> Caller:
    asker = review.asker
    return ("", "", review.by) if asker is None else (asker.issuer, asker.kind, review.by)


def _reviews(entries: Iterable[Entry], kind: str) -> list[ScriptReview]:
    return [_read(entry.value) for entry in entries if entry.key.startswith(kind)]


def _read(value: bytes) -> ScriptReview:
    return msgspec.json.decode(value, type=ScriptReview)
