"""What a process needs to serve, and what may keep it from that."""

import signal
import socket
from collections.abc import Callable, Sequence

import msgspec
from starlette.routing import Route

from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.runtime.http_server import ListenError
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost.tools.authoring.lifespan import LifespanFailed

START_ERRORS = (KeyRingError, LifespanFailed, ListenError, StoreRefused, StoreUnavailable)
"""What may keep a server from serving; the text of each is for the operator."""

RereadConfiguration = Callable[[], tuple[Config, LoadedPacks] | None]
"""Reads the configuration again; None if it has errors, which it has reported."""


def nothing(part: str) -> None:
    """Do nothing after a part of the start."""


class ServerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a process needs to serve."""

    config: Config
    loaded_packs: LoadedPacks
    keyring: KeyRing
    sock: socket.socket
    reread: RereadConfiguration | None = None
    """Called at `reload_signal`; None if there is no file to read again."""
    reload_signal: signal.Signals = signal.SIGHUP
    """With another signal, SIGHUP ends the server. Several workers always reload at SIGHUP."""
    development_issuer: Sequence[Route] = ()
    metrics: socket.socket | None = None
    """The address of `/metrics`; None: it is not served."""
    shared_metrics: SharedMetrics = msgspec.field(default_factory=SharedMetrics)
    """Memory for the metrics of every worker."""
    part_done: Callable[[str], object] = nothing
    """Called with the name of each part of the start after it has run."""
