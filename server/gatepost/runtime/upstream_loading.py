"""Load the modules for upstreams when a configuration has upstreams, and not before."""

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from gatepost.background import started
from gatepost.config.settings import Config
from gatepost.mcp.change_notifications import ChangePubSub
from gatepost.telemetry.metrics import Meter
from gatepost.tools.context.interfaces import SignedHeaders
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.tools.offers.tenant_offers import OfferSource
from gatepost_authz.caller import TenantContext

if TYPE_CHECKING:
    from gatepost.runtime.upstreams import UpstreamParts, UpstreamServices


class UpstreamLoader:
    """
    The upstreams of a process, if its configuration has any; a reload may add the first ones.

    Without upstreams, neither their modules nor their background tasks exist.
    """

    def __init__(
        self, parts: "UpstreamParts", pubsub: ChangePubSub, suspended: Callable[[], Set[str]]
    ) -> None:
        self._parts, self._pubsub, self._suspended = parts, pubsub, suspended
        self._services: UpstreamServices | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_running = False

    @property
    def services(self) -> "UpstreamServices":
        """Return the services; RuntimeError if no configuration of this process had upstreams."""
        if self._services is None:
            raise RuntimeError("the configuration has no upstreams")
        return self._services

    async def signed_headers(
        self, ctx: CallContext, name: str, url: str, *, refused: SignedHeaders | None
    ) -> SignedHeaders:
        """Implement `ToolCredentials`."""
        if self._services is None:
            raise ToolFailure("denied", f"There is no table credentials.{name}.")
        return await self._services.signed_headers(ctx, name, url, refused=refused)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the servers of the configuration."""
        if self._services is None:
            return frozenset()
        return frozenset(server.name for server in self._services.configured.settings)

    def prepare(self, config: Config) -> None:
        """Load what the configuration needs; the tables of the one before stay in force."""
        if self._services is None and (config.has_upstreams or config.credentials):
            module = import_module("gatepost.runtime.upstreams")
            notifications = module.ClientNotifications(self._pubsub)
            self._services = module.UpstreamServices(
                self._parts, config, clients=notifications, suspended=self._suspended
            )
            if self._is_running:
                self._start()

    def apply(self, config: Config) -> tuple[str, ...]:
        """Use the tables of a configuration, and return their references to secrets."""
        if self._services is None:
            return ()
        self._services.apply(config)
        return tuple(self._services.configured.references())

    def source(self, config: Config) -> OfferSource | None:
        """Return the offers of upstreams, if the configuration lets any tenant have some."""
        return self.services.offers if config.has_upstreams else None

    def end(self, is_ended: Callable[[TenantContext], bool]) -> None:
        """End what runs for callers whose access has ended, and what suspended tenants have."""
        if self._services is not None:
            self._services.end(is_ended)

    async def sample(self, meter: Meter) -> None:
        """Count the calls and failures of upstreams, for `/metrics`."""
        if self._services is not None:
            await self._services.metrics(meter)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the catalogues of served tenants fresh during the block."""
        self._is_running = True
        if self._services is not None:
            self._start()
        try:
            yield
        finally:
            self._is_running = False
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """End the calls, close the connections, and end the renewals of tokens."""
        if self._services is not None:
            await self._services.aclose()

    def _start(self) -> None:
        self._task = started("upstreams", self._run)

    async def _run(self) -> None:
        async with self.services.running():
            await asyncio.Event().wait()
