"""Test packs in memory: a whole server without sockets, and clients with callers of your choice."""

from gatepost.testing.local_client import CallRefused, CallResult, LocalClient, LocalTask
from gatepost.testing.local_server import LocalServer, WaitingApproval, serving

__all__ = [
    "CallRefused",
    "CallResult",
    "LocalClient",
    "LocalServer",
    "LocalTask",
    "WaitingApproval",
    "serving",
]
