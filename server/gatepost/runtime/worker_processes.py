"""Run several processes on one socket: fork them, replace them, and pass signals on."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import msgspec

from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.runtime.server_setup import START_ERRORS, ServerSetup
from gatepost.runtime.signals import RepeatedSignals, is_pending, note_reloads

_log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Work = Callable[[ServerSetup, Callable[[], object], int], None]
"""
Serves in this process, which has that part of the shared metrics; calls the function when it
accepts connections.
"""


class WorkerProcesses:
    """
    Several processes on one socket; each is a whole server.

    They share only the socket and the objects that were loaded before the fork. Sessions are signed
    ids that each of them accepts. A process that dies is replaced, unless it dies before it serves.
    """

    def __init__(self, setup: ServerSetup, announce: Callable[[], object], work: Work) -> None:
        self._setup = setup
        self._announce = announce
        self._work = work
        self._waiting_for: dict[int, int] = {}
        self._members: dict[int, int] = {}
        """Each process and its part of the shared metrics."""
        self._stopping, self._signals = False, RepeatedSignals()
        self._is_reloading = self._is_reload_wanted = False

    def run(self) -> int:
        """Fork, announce, and look after the members until all have ended."""
        before = [signal.signal(number, self._pass_on) for number in SIGNALS]
        if any(map(is_pending, before)):
            self._renew()
        started = [self._fork(worker) for worker in range(self._setup.config.listen.workers)]
        serving = [self._serves(pid) for pid in started]
        if not all(serving):
            self._stop(signal.SIGTERM)
        elif not self._stopping:
            self._announce()
        failed = False
        while self._members:
            pid, status = os.wait()
            worker = self._members.pop(pid)
            failed = failed or (self._stopping and os.waitstatus_to_exitcode(status) != 0)
            if not self._stopping:
                _log.error("worker_replaced")
                if not self._serves(self._fork(worker)):
                    failed = True
                    self._stop(signal.SIGTERM)
        return 1 if failed else 0

    def _fork(self, worker: int) -> int:
        reader, tell = os.pipe()
        sys.stdout.flush()
        # A signal that arrives now is passed on to the new member too.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._become_member(tell, worker)
        os.close(tell)
        self._members[pid] = worker
        self._waiting_for[pid] = reader
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return pid

    def _become_member(self, tell: int, worker: int) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        note_reloads()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = 1
        try:
            self._work(self._setup, lambda: os.write(tell, b"."), worker)
            code = 0
        except START_ERRORS as error:
            _log.error("worker_not_started", extra={"reason": str(error)})
        finally:
            if sys.exc_info()[0] is not None:
                _log.critical("worker_failed", exc_info=True)
            # Not sys.exit, because the parent's open work must not be finished twice.
            os._exit(code)

    def _serves(self, pid: int) -> bool:
        """Wait until the member says that it accepts connections; False when it ended instead."""
        reader = self._waiting_for.pop(pid)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read(1) == b"."

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._renew()
            self._signal(number)
        # A member that has served takes a signal for the end, even while it closes its stores.
        elif not self._signals.is_repeated():
            self._stop(number)

    def _renew(self) -> None:
        """
        Take up what the members take up: with the settings of the start, a member that is forked
        later would accept issuers that are long removed.
        """
        self._is_reload_wanted = True
        if self._is_reloading:
            return  # a further signal: the reload that it has interrupted reads once more
        self._is_reloading = True
        try:
            while self._is_reload_wanted:
                self._is_reload_wanted = False
                self._take_up(self._setup.reread() if self._setup.reread is not None else None)
        finally:
            self._is_reloading = False

    def _take_up(self, changed: tuple[Config, LoadedPacks] | None) -> None:
        if changed is not None:
            self._setup.keyring.reread()
            self._setup = msgspec.structs.replace(
                self._setup, config=changed[0], loaded_packs=changed[1]
            )

    def _stop(self, number: int) -> None:
        self._stopping = True
        # A socket listens as long as one process has it. Clients would wait for a server that is
        # gone, instead of connecting to another one.
        self._setup.sock.close()
        self._signal(number)

    def _signal(self, number: int) -> None:
        for pid in tuple(self._members):
            with suppress(ProcessLookupError):  # `run` is about to take note of its end
                os.kill(pid, number)
