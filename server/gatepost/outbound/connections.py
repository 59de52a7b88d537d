"""Connection pools per tenant: a connection never carries another tenant's requests."""

from collections.abc import Callable
from typing import NamedTuple

import httpx2

from gatepost_authz.pinning import PinningTransport

IDLE_POOLS, IDLE_CONNECTIONS = 64, 500
"""
The number of pools whose connections stay open between requests, and of those connections in all:
half of the most descriptors that are left for such uses (`DescriptorLimits`).
"""


class PoolKey(NamedTuple):
    """The requests that share connections."""

    tenant: str
    secure: bool
    """Whether the connections are encrypted."""
    upstream: str = ""
    """The id of a registered MCP server; empty for the tools of the tenant."""


class TenantConnections:
    """The connections of one tenant, and the number of requests that use them."""

    def __init__(self, transport: PinningTransport) -> None:
        self.transport = transport
        self.users = 0
        self.idle = 0
        """The number of open connections while it has no users."""


class ConnectionPools:
    """Opens pools at first use, closes those above the limits, and all of them when retired."""

    def __init__(self, make: Callable[[PoolKey], PinningTransport]) -> None:
        self._make = make
        self._lines: dict[PoolKey, TenantConnections] = {}
        self._idle = 0
        """The number of connections of all pools without users."""
        self._retired = self._is_closed = False

    def take(self, key: PoolKey) -> TenantConnections:
        """
        Return the connections of a pool, which stay open until `give_back`.

        Raises ConnectError after `aclose`: nothing would close a further pool.
        """
        if self._is_closed:
            raise httpx2.ConnectError("the connections were closed")
        # Removed and inserted again, so that the mapping is in the order of use.
        line = self._lines.pop(key, None) or TenantConnections(self._make(key))
        self._lines[key] = line
        line.users += 1
        self._count_idle(line, 0)
        return line

    def give_back(self, line: TenantConnections) -> None:
        """Note that a request is over, and close the connections above the limits."""
        line.users -= 1
        if not line.users:
            self._count_idle(line, line.transport.open_connections)
        self._close_unused()

    @property
    def closed(self) -> bool:
        """Return whether it is retired and all pools are closed."""
        return self._retired and not self._lines

    def retire(self) -> None:
        """Close the unused pools now, and the others as soon as they are unused."""
        self._retired = True
        self._close_unused()

    async def aclose(self) -> None:
        """Close everything."""
        self._is_closed = True
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await line.transport.aclose()

    def _count_idle(self, line: TenantConnections, idle: int) -> None:
        self._idle += idle - line.idle
        line.idle = idle

    def _close_unused(self) -> None:
        for key in self._surplus():
            line = self._lines.pop(key)
            self._count_idle(line, 0)
            line.transport.close()

    def _surplus(self) -> list[PoolKey]:
        """
        Return the unused pools to close: of the tenant with most pools, or with most connections.

        Of several such pools, the least recently used one is closed first.
        """
        pools = len(self._lines) - (0 if self._retired else IDLE_POOLS)
        idle = self._idle - IDLE_CONNECTIONS
        surplus: list[PoolKey] = []
        if pools <= 0 and idle <= 0:
            return surplus
        unused = {key: line.idle for key, line in self._lines.items() if not line.users}
        while unused and (pools > 0 or idle > 0):
            # Else a tenant with many upstreams would close the connections of all other tenants.
            kept: dict[str, int] = {}
            for key, connections in unused.items():
                kept[key.tenant] = kept.get(key.tenant, 0) + (1 if pools > 0 else connections)
            tenant = max(kept, key=kept.__getitem__)
            key = next(key for key in unused if key.tenant == tenant)
            pools, idle = pools - 1, idle - unused.pop(key)
            surplus.append(key)
        return surplus
