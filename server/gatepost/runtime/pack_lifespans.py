"""Start and stop what packs run beside their calls, also over reloads."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gatepost.background import TaskSet
from gatepost.tools.authoring.lifespan import Lifespan
from gatepost.tools.authoring.pack import Pack


class PackLifespans:
    """The lifespans of all packs of this process."""

    def __init__(self) -> None:
        self._running: list[Lifespan[object]] = []
        self._stopping = TaskSet()

    async def start(self, packs: Iterable[Pack]) -> None:
        """
        Start those that do not run yet; raises LifespanFailed, and then none of these runs.

        They start one after another, in the order of the packs.
        """
        begun_lifespans: list[Lifespan[object]] = []
        started = False
        try:
            for lifespan in (declared for pack in packs for declared in pack.lifespans):
                if lifespan not in self._running:
                    begun_lifespans.append(lifespan)
                    await lifespan.start()
            started = True
            self._running += begun_lifespans
        finally:
            if not started:
                for lifespan in reversed(begun_lifespans):
                    await lifespan.stop()

    def keep_only(self, packs: Iterable[Pack]) -> None:
        """Stop those of other packs, each once no call uses it any more."""
        remaining = {lifespan for pack in packs for lifespan in pack.lifespans}
        for lifespan in [
            running for running in reversed(self._running) if running not in remaining
        ]:
            self._running.remove(lifespan)
            self._stopping.start(lifespan.stop())

    async def aclose(self) -> None:
        """Stop all of them, the last one first."""
        await self._stopping.wait()
        for lifespan in reversed(self._running):
            await lifespan.stop()
        self._running.clear()


@asynccontextmanager
async def lifespans_of(packs: Iterable[Pack]) -> AsyncIterator[PackLifespans]:
    """Run the lifespans of packs during a block; raises LifespanFailed."""
    lifespans = PackLifespans()
    await lifespans.start(packs)
    try:
        yield lifespans
    finally:
        await lifespans.aclose()
