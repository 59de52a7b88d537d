"""Which scripts an administrator let run, and which wait for one; the same at every replica."""

import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from gatepost.packs.scripts.script import Place, Script
from gatepost.stores.api import Entries

SUBJECT = "scripts"
APPROVED, WAITING = "approved:", "waiting:"


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was approved, or waits to be."""

    name: str
    digest: str
    content: str
    """All of it: who decides must see it, also on a machine without its file."""
    place: Place
    by: str
    """Who approved it, or whose call asked for it first."""
    at: float
    """Seconds since the epoch."""


class Approvals:
    """
    The approvals of one tenant.

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

    async def submit(self, scripts: Sequence[Script], *, by: str, most: int) -> None:
        """
        Let them wait for an administrator, so that at most *most* of the tenant's do.

        The oldest make room, and an older version of the same file goes: it cannot run any more.
        """
        fresh = [one for one in scripts if one.text is not None and not await self._waits(one)]
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
            value = self._review(script, by)
            await self._entries.put(WAITING + script.digest, value, now=self._clock(), revision=0)

    async def _waits(self, script: Script) -> bool:
        return await self._entries.get(WAITING + script.digest) is not None

    async def waiting(self) -> list[Review]:
        """What waits for an administrator, the oldest first."""
        return sorted(await self._all(WAITING), key=lambda one: (one.at, one.name))

    async def all_approved(self) -> list[Review]:
        """What may run, by name."""
        return await self._all(APPROVED)

    async def approve(self, script: Script, *, by: str) -> None:
        """Let exactly this script run; ValueError when nobody could have read it."""
        review = self._review(script, by)
        await self._entries.put(APPROVED + script.name, review, now=self._clock())
        await self._entries.delete(WAITING + script.digest)

    async def drop(self, digest: str) -> bool:
        """Let a content wait no more; whether it did."""
        return await self._entries.delete(WAITING + digest)

    async def revoke(self, name: str) -> Literal["approved", "waiting"] | None:
        """Nothing of that name may run, or waits, any more; what there was."""
        was = await self._entries.delete(APPROVED + name)
        waited = [one for one in await self.waiting() if one.name == name]
        for review in waited:
            await self._entries.delete(WAITING + review.digest)
        if was:
            return "approved"
        return "waiting" if waited else None

    def _review(self, script: Script, by: str) -> bytes:
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
            )
        )

    async def _all(self, kind: str) -> list[Review]:
        entries = await self._entries.all()
        return [_read(entry.value) for entry in entries if entry.key.startswith(kind)]


def _read(value: bytes) -> Review:
    return msgspec.json.decode(value, type=Review)
