"""What another system is still to be told, in this process's memory."""

from collections.abc import Mapping

from msgspec.structs import replace

from gatepost.stores.notices import Notice


class MemoryNotices:
    """See `Notices`."""

    def __init__(self) -> None:
        self.held: dict[str, Notice] = {}

    async def add(self, notice: Notice) -> bool:
        """See `Notices`."""
        return self.held.setdefault(notice.id, notice) is notice

    async def remove(self, taken: Notice) -> bool:
        """See `Notices`."""
        if not self._has(taken):
            return False
        del self.held[taken.id]
        return True

    async def put_off(self, taken: Notice, until: float) -> bool:
        """See `Notices`."""
        if not self._has(taken):
            return False
        self.held[taken.id] = replace(self.held[taken.id], due_at=until)
        return True

    async def shed(self, most: int) -> list[str]:
        """See `Notices`."""
        newest = sorted(self.held.values(), key=lambda one: (one.made_at, one.id), reverse=True)
        gone = [one.id for one in newest[most:]]
        for notice_id in gone:
            del self.held[notice_id]
        return gone

    def due(self, now: float) -> list[Notice]:
        """Those that may be taken."""
        alive = [one for one in self.held.values() if one.expires_at > now]
        first: dict[str, int] = {}
        for one in alive:
            first[one.about] = min(one.place, first.get(one.about, one.place))
        return [one for one in alive if one.due_at <= now and one.place == first[one.about]]

    def _has(self, taken: Notice) -> bool:
        kept = self.held.get(taken.id)
        return kept is not None and (kept.holder, kept.tries) == (taken.holder, taken.tries)


def claimed(
    stores: Mapping[str, MemoryNotices], now: float, until: float, holder: str, most: int
) -> list[tuple[str, Notice]]:
    """See `Records.claim_notices`."""
    due = [(tenant, one) for tenant, store in stores.items() for one in store.due(now)]
    due.sort(key=lambda one: one[1].due_at)
    taken = [
        (tenant, replace(one, due_at=until, tries=one.tries + 1, holder=holder))
        for tenant, one in due[:most]
    ]
    for tenant, one in taken:
        stores[tenant].held[one.id] = one
    return taken
