"""Links records to chains with the key ring, for stores that do so after they have written them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from gatepost.audit.chain import WriteAttempt, is_proven, proven, suspicion
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditRow, ChainHead, ChainKey, Segment
from gatepost.storage.audit_segments import rows_of

Listener = Callable[[str, Sequence[AuditRow]], object]
"""Receives durable records of a tenant."""


class RingLinker(msgspec.Struct, eq=False):
    """Implement `Linker`; *listener* receives all records of this process in the event loop."""

    keyring: KeyRing
    listener: Listener | None = None
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop, once it runs."""
    known: dict[ChainKey, ChainHead] = {}
    """The last head of each chain that this process has written."""

    def begin(self) -> WriteAttempt:
        """Implement `Linker`."""
        return WriteAttempt(self.keyring, self.known, after=self._committed)

    def prove(self, head: ChainHead) -> ChainHead:
        """Implement `Linker`."""
        return proven(head, self.keyring)

    def proves(self, head: ChainHead) -> bool:
        """Implement `Linker`."""
        return is_proven(head, self.keyring)

    def doubt(self, head: ChainHead) -> str:
        """Implement `Linker`."""
        return suspicion(head, None, self.keyring)

    def _committed(self, attempt: WriteAttempt) -> None:
        self.known |= attempt.heads
        attempt.report()
        if self.listener is None or self.loop is None:
            return
        made = [*attempt.others]
        made += [
            (chain[0], segments)
            for chain, segments in attempt.segments.items()
            if chain not in attempt.left
        ]
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self._tell, made)

    def _tell(self, made: Sequence[tuple[str, Sequence[Segment]]]) -> None:
        if self.listener is None:
            return
        for tenant, segments in made:
            self.listener(tenant, [row for one in segments for row in rows_of(one)])
