"""The way to an OpenTelemetry collector, or the one that leads nowhere."""

import ssl
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

from gatepost.config.references import resolve
from gatepost.release import version
from gatepost.settings import Config
from gatepost.stores.audit import Row
from gatepost.telemetry.trace import Tracer


class Outlet(Protocol):
    """What goes to the collector, for one process."""

    @property
    def tracer(self) -> Tracer | None:
        """Makes spans; None where nobody traces."""

    @property
    def dropped(self) -> tuple[int, int]:
        """Spans and log records that the collector did not take."""

    def recorded(self, tenant: str, rows: Sequence[Row], /) -> None:
        """Audit records of a tenant are durable."""

    async def aclose(self) -> None:
        """Send what is left, within seconds, and end."""


class Nowhere:
    """See `Outlet`; there is no collector."""

    tracer: Tracer | None = None
    dropped = (0, 0)

    def recorded(self, tenant: str, rows: Sequence[Row], /) -> None:
        """See `Outlet`."""

    async def aclose(self) -> None:
        """See `Outlet`."""


def connected(
    config: Config,
    tls: Callable[[], ssl.SSLContext],
    listeners: list[Callable[[str, Sequence[Row]], None]],
) -> Outlet:
    """
    The way that the configuration names; nothing is sent yet.

    Where records are sent it joins the *listeners* of the journal.
    """
    settings = config.telemetry
    if not settings.otlp_endpoint:
        return Nowhere()
    # By name, as packs are: what it needs is an extra.
    made: Outlet = import_module("gatepost.telemetry.otlp").Outlet(
        settings,
        {name: resolve(reference) for name, reference in settings.otlp_headers.items()},
        version=version(),
        tls=tls(),
        proxy=config.network.proxy,
    )
    listeners.append(made.recorded)
    return made
