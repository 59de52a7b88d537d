"""
Which scripts an administrator let run or rejected, and which wait for one; the same at every
replica.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from gatepost.packs.scripts.script import Place, Script
from gatepost.stores.api import Entries, Entry

SUBJECT = "scripts"
APPROVED, WAITING, REJECTED = "approved:", "waiting:", "rejected:"
MOST_REJECTED = 50
"""Rejections of one tenant that are kept, content and all; the oldest make room."""


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """What the token of a call said that asked for a script, so that it is known whose it was."""

    issuer: str
    kind: Literal["user", "client"]
    client_id: str | None
    actor: str | None
    issued_at: int | None


class Judge(msgspec.Struct, frozen=True, kw_only=True):
    """Who decided about a script; without a subject once the person was erased."""

    subject: str
    issuer: str = ""
    name: str = ""
    operator: bool = False
    """Whether it was whoever runs the server, by the name that the machine knows them by."""

    @property
    def shown(self) -> str:
        """As whoever calls the script, or lists scripts, is told."""
        return (self.name or self.subject) if self.subject else "an administrator"


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was approved, or waits to be."""

    name: str
    digest: str
    content: str
    """All of it: who decides must see it, also on a machine without its file."""
    place: Place
    by: str
    """Whose call asked for it first; of what is approved, by whom as people call them."""
    at: float
    """Seconds since the epoch."""
    asker: Asker | None = None
    """More of whose call asked; None: nobody's did, or an older version kept this."""
    judge: Judge | None = None
    """Who approved it; None: nobody has, or an older version kept this."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was rejected; nobody is asked about it again."""

    review: Review
    """As it waited."""
    by: Judge
    reason: str
    """In words that whoever calls it reads; may be empty."""
    at: float
    until: float
    """When it may wait again, in seconds since the epoch."""


NOBODY = Judge(subject="", name="erased")


class Approvals:
    """
    The approvals and rejections of one tenant.

    One content of each name is approved: with a new one, the one before is history, so that nobody
    brings back a version that was replaced for a reason. Nothing is remembered in between: what is
    approved or revoked counts with the next call, wherever it arrives.
    """

    def __init__(self, entries: Entries, *, clock: Callable[[], float] = time.time) -> None:
        self._entries = entries
        self._clock = clock

    async def approved(self, name: str) -> Review | None:
        """What is approved under a name."""
        entry = await self._entries.get(APPROVED + name)
        return None if entry is None else _read(entry.value)

    async def holds(self, script: Script) -> bool:
        """Whether exactly this script is approved."""
        review = await self.approved(script.name)
        return review is not None and review.digest == script.digest

    async def submit(
        self, scripts: Sequence[Script], *, by: str, most: int, asker: Asker | None = None
    ) -> None:
        """
        Let them wait for an administrator, so that at most *most* of the tenant's do.

        The oldest make room, and an older version of the same file goes: it cannot run any more.
        What was rejected does not wait.
        """
        fresh = [one for one in scripts if one.text is not None and await self._is_new(one)]
        if not fresh:
            return
        # Read once for all of them: what waits may be large, and a tenant has many scripts.
        del fresh[most:]
        names = {script.name for script in fresh}
        waiting = await self.waiting()
        gone = [one for one in waiting if one.name in names]
        kept = [one for one in waiting if one.name not in names]
        for review in [*gone, *kept[: max(len(kept) + len(fresh) - most, 0)]]:
            await self._entries.delete(WAITING + review.digest)
        for script in fresh:
            value = self._review(script, by, asker)
            await self._entries.put(WAITING + script.digest, value, now=self._clock(), revision=0)

    async def _is_new(self, script: Script) -> bool:
        if await self._entries.get(WAITING + script.digest) is not None:
            return False
        return await self.rejection(script) is None

    async def waiting(self) -> list[Review]:
        """What waits for an administrator, the oldest first."""
        found = await self._entries.all()
        # A call at another replica may let it wait in the moment in which it is rejected.
        rejected = {one.review.digest for one in self._rejections(found)}
        waiting = [one for one in _reviews(found, WAITING) if one.digest not in rejected]
        return sorted(waiting, key=lambda one: (one.at, one.name))

    async def all_approved(self) -> list[Review]:
        """What may run, by name."""
        return _reviews(await self._entries.all(), APPROVED)

    async def rejected(self) -> list[Rejection]:
        """What was rejected and is not asked about again, the last first."""
        found = self._rejections(await self._entries.all())
        return sorted(found, key=lambda one: (one.at, one.review.name), reverse=True)

    async def rejection(self, script: Script) -> Rejection | None:
        """The rejection of exactly this script, as long as it holds."""
        entry = await self._entries.get(REJECTED + script.digest)
        return None if entry is None else next(self._rejections([entry]), None)

    async def approve(self, script: Script, *, by: Judge) -> None:
        """Let exactly this script run; ValueError when nobody could have read it."""
        review = self._review(script, by.shown, judge=by)
        await self._entries.put(APPROVED + script.name, review, now=self._clock())
        await self._entries.delete(REJECTED + script.digest)
        await self._entries.delete(WAITING + script.digest)

    async def drop(self, digest: str) -> bool:
        """Let a content wait no more, until it is called again; whether it did."""
        return await self._entries.delete(WAITING + digest)

    async def reject(self, review: Review, *, by: Judge, reason: str, until: float) -> bool:
        """Let what waits wait no more, nor again *until* then; False: somebody was faster."""
        now, key = self._clock(), REJECTED + review.digest
        rejection = Rejection(review=review, by=by, reason=reason, at=now, until=until)
        await self.tidy(most=MOST_REJECTED - 1)
        value = msgspec.json.encode(rejection)
        first = await self._entries.put(key, value, now=now, revision=0)
        await self._entries.delete(WAITING + review.digest)
        approved = await self.approved(review.name)
        if first and approved is not None and approved.digest == review.digest:
            # In the same moment: it may run, and must not be called rejected later on.
            await self._entries.delete(key)
            return False
        return first

    async def tidy(self, *, most: int = MOST_REJECTED) -> int:
        """Forget rejections that hold no more, and the oldest beyond *most*; how many."""
        found = await self._entries.all()
        stored = [one for one in found if one.key.startswith(REJECTED)]
        kept = sorted(self._rejections(stored), key=lambda one: one.at)[-most:]
        keys = {REJECTED + one.review.digest for one in kept}
        gone = [one.key for one in stored if one.key not in keys]
        for key in gone:
            await self._entries.delete(key)
        return len(gone)

    async def forget(self, issuer: str, subject: str) -> int:
        """Take a person out of what they asked for and decided; how many contents that were."""
        gone = 0
        for entry in await self._entries.all():
            if entry.key.startswith(WAITING) and _asked(_read(entry.value), subject):
                gone += await self._entries.delete(entry.key)
        for entry in await self._entries.all():
            before: Review | Rejection
            after: Review | Rejection
            if entry.key.startswith(APPROVED):
                before = _read(entry.value)
                after = _unsigned(before, issuer, subject)
            elif entry.key.startswith(REJECTED):
                before = msgspec.json.decode(entry.value, type=Rejection)
                after = _without(before, issuer, subject)
            else:
                continue
            if after != before:
                value = msgspec.json.encode(after)
                # Whoever changed it meanwhile took it away.
                gone += await self._entries.put(
                    entry.key, value, now=self._clock(), revision=entry.revision
                )
        return gone

    async def revoke(self, name: str) -> Literal["approved", "waiting"] | None:
        """Nothing of that name may run, or waits, any more; what there was."""
        was = await self._entries.delete(APPROVED + name)
        waited = [one for one in await self.waiting() if one.name == name]
        for review in waited:
            await self._entries.delete(WAITING + review.digest)
        if was:
            return "approved"
        return "waiting" if waited else None

    def _review(
        self, script: Script, by: str, asker: Asker | None = None, judge: Judge | None = None
    ) -> bytes:
        text = script.text
        if text is None:
            raise ValueError(f"{script.file} is no text")
        return msgspec.json.encode(
            Review(
                name=script.name,
                digest=script.digest,
                content=text,
                place=script.place,
                by=by,
                at=self._clock(),
                asker=asker,
                judge=judge,
            )
        )

    def _rejections(self, entries: Iterable[Entry]) -> Iterator[Rejection]:
        """Those among the entries that hold."""
        now = self._clock()
        for entry in entries:
            if entry.key.startswith(REJECTED):
                rejection = msgspec.json.decode(entry.value, type=Rejection)
                if rejection.until > now:
                    yield rejection


def _asked(review: Review, subject: str) -> bool:
    """Whether it was a call of this person's, or one that they made for somebody else."""
    return review.by == subject or (review.asker is not None and review.asker.actor == subject)


def _unsigned(review: Review, issuer: str, subject: str) -> Review:
    """What is approved, without the name if it is this person's."""
    judge = review.judge
    if judge is None:
        # An older version kept a text alone: an id where a token had no name, and then it is known.
        is_theirs = review.by == subject
    else:
        is_theirs = (judge.issuer, judge.subject) == (issuer, subject)
    return msgspec.structs.replace(review, by=NOBODY.shown, judge=NOBODY) if is_theirs else review


def _without(rejection: Rejection, issuer: str, subject: str) -> Rejection:
    review = rejection.review
    if _asked(review, subject):
        review = msgspec.structs.replace(review, by="", asker=None)
    if (rejection.by.issuer, rejection.by.subject) == (issuer, subject):
        return msgspec.structs.replace(rejection, review=review, by=NOBODY, reason="")
    return msgspec.structs.replace(rejection, review=review)


def _reviews(entries: Iterable[Entry], kind: str) -> list[Review]:
    return [_read(entry.value) for entry in entries if entry.key.startswith(kind)]


def _read(value: bytes) -> Review:
    return msgspec.json.decode(value, type=Review)


def reason_of(said: str) -> str:
    """Why somebody rejected it, as a sentence that follows another one; empty without a reason."""
    return f" Their reason: {said}" + ("" if said[-1:] in ".!?" else ".") if said else ""
