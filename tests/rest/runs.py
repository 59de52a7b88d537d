"""What ran, and when; apart from the tools, whose file the server loads a second time."""

import threading

from gatepost import CallContext

RUNS: list[CallContext] = []
"""The contexts of all calls that ran."""

STARTED = threading.Event()
CANCELLED = threading.Event()
GO_ON = threading.Event()
