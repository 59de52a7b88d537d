"""Run programs of the system so that they reach only what they are given."""

from gatepost.sandbox.child import SYSTEM, Confined, ProcessResult, confines, run
from gatepost.sandbox.fork_server_client import NotForked
from gatepost.sandbox.forking_program import ConnectedProcess, ForkingProgram
from gatepost.sandbox.launcher import LAUNCHER

__all__ = [
    "LAUNCHER",
    "SYSTEM",
    "Confined",
    "ConnectedProcess",
    "ForkingProgram",
    "NotForked",
    "ProcessResult",
    "confines",
    "run",
]
