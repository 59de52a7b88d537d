"""Signals that reach the parent of the workers at an inconvenient moment."""

import subprocess
import sys

import pytest

from tests.support.processes import python_environment

# Workers that only wait, so that the moment of the signal is exact.
PARENT = """
import os, signal, socket, sys, time, types
from gatepost.runtime.worker_processes import WorkerProcesses

moment = sys.argv[1]
workers, forked, fork, wait = 2, [], os.fork, os.wait

def work(setup, on_ready, number):
    on_ready()
    time.sleep(60)

def fork_and_signal():
    pid = fork()
    forked.append(pid)
    if pid and moment == "fork" and len(forked) == workers:
        os.kill(os.getpid(), signal.SIGTERM)
    return pid

def wait_and_signal():
    ended = wait()
    if moment == "wait" and len(forked) == workers:
        forked.clear()
        os.kill(os.getpid(), signal.SIGTERM)
    return ended

def announce():
    if moment == "wait":
        os.kill(forked[0], signal.SIGKILL)

os.fork, os.wait = fork_and_signal, wait_and_signal
config = types.SimpleNamespace(listen=types.SimpleNamespace(workers=workers))
setup = types.SimpleNamespace(config=config, sock=socket.socket(), reread=None)
WorkerProcesses(setup, announce, work).run()
print("stopped")
"""
WITHIN_S = 20


def ended(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, with the modules of this checkout."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )


@pytest.mark.parametrize("moment", ["fork", "wait"])
def test_a_signal_at_any_moment_stops_all_workers(moment: str) -> None:
    """One signal is enough while a worker is forked, and when one has just ended."""
    parent = ended(PARENT, moment)

    assert (parent.stdout, "Traceback" in parent.stderr) == ("stopped\n", False), parent.stderr


OVERLAPPING = """
import signal, socket
from gatepost.runtime.server_setup import ServerSetup
from gatepost.runtime.worker_processes import WorkerProcesses
from gatepost.secrets.keyring import KeyRing

read = []

def reread():
    read.append(f"configuration {len(read) + 1}")
    configuration = read[-1]
    if len(read) == 1:
        signal.raise_signal(signal.SIGHUP)
    return configuration, None

class Parent(WorkerProcesses):
    def run(self):
        signal.signal(signal.SIGHUP, self._pass_on)
        signal.raise_signal(signal.SIGHUP)
        return self._setup.config

setup = ServerSetup(
    config="old",
    loaded_packs=None,
    keyring=KeyRing.ephemeral(),
    sock=socket.socket(),
    reread=reread,
)
print(Parent(setup, print, print).run())
"""


def test_a_reload_during_a_reload_leaves_the_latest_configuration() -> None:
    """A worker that is replaced begins with it; an earlier one may have issuers since removed."""
    parent = ended(OVERLAPPING)

    assert parent.stdout == "configuration 2\n", parent.stderr
