"""Run programs of the system so that they reach only what they are given."""

from gatepost.sandbox.child import SYSTEM, Confined, ForkingProgram, ProcessResult, confines, run
from gatepost.sandbox.fork_server_client import NotForked
from gatepost.sandbox.launcher import LAUNCHER

__all__ = [
    "LAUNCHER",
    "SYSTEM",
    "Confined",
    "ForkingProgram",
    "NotForked",
    "ProcessResult",
    "confines",
    "run",
]
