"""Run programs of the system so that they reach only what they are given."""

from gatepost.sandbox.child import LAUNCHER, SYSTEM, Confined, ProcessResult, confines, run

__all__ = [
    "LAUNCHER",
    "SYSTEM",
    "Confined",
    "ProcessResult",
    "confines",
    "run",
]
