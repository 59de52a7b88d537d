"""Each tenant's own connections: what one opened never carries another's requests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gatepost_authz.pinning import GuardedTransport

KEPT = 32
"""Tenants whose connections stay open between their requests."""

Key = tuple[str, bool]
"""A tenant, and whether its connections are encrypted."""


class Line:
    """The connections of one tenant, and how many requests use them."""

    def __init__(self, transport: GuardedTransport) -> None:
        self.transport = transport
        self.users = 0


class Lines:
    """Opens on first use, closes what has not been used for longest, and all when retired."""

    def __init__(self, make: Callable[[str, bool], GuardedTransport]) -> None:
        self._make = make
        self._lines: dict[Key, Line] = {}
        self._retired = False

    @asynccontextmanager
    async def of(self, tenant: str, *, secure: bool) -> AsyncIterator[GuardedTransport]:
        """The transport of a tenant, which stays open for the time of the block."""
        key = (tenant, secure)
        # Taken out and put back: the order of the mapping is that of use.
        line = self._lines.pop(key, None) or Line(self._make(tenant, secure))
        self._lines[key] = line
        line.users += 1
        try:
            yield line.transport
        finally:
            line.users -= 1
            await self._tidy()

    @property
    def closed(self) -> bool:
        """Whether it was retired and nothing is open any longer."""
        return self._retired and not self._lines

    async def retire(self) -> None:
        """Close what nobody uses now, and the rest as soon as nobody does."""
        self._retired = True
        await self._tidy()

    async def aclose(self) -> None:
        """Close everything."""
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await line.transport.aclose()

    async def _tidy(self) -> None:
        over = len(self._lines) - (0 if self._retired else KEPT)
        idle = [key for key, line in self._lines.items() if not line.users]
        # Gone from the mapping before anything waits: nobody gets a transport that closes.
        surplus = [self._lines.pop(key) for key in idle[: max(over, 0)]]
        for line in surplus:
            await line.transport.aclose()
