"""SIGHUP at moments when a server cannot reload: while it loads, starts programs or stops."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runtime.test_serve import write_config
from tests.support.commands import Gatepost, running
from tests.support.processes import python_environment


@contextmanager
def serving(folder: Path, pack: str, workers: int, valkey: str) -> Iterator[Gatepost]:
    """Run `gatepost serve` with a pack during a block."""
    (folder / "hangups.py").write_text(pack)
    write_config(folder, workers, valkey, 'tools.load = ["./hangups.py"]\n')
    with running("serve", cwd=folder) as gatepost:
        yield gatepost


RELOADED_WHILE_IT_LOADS = """
import os, signal, sys

def on_event(event, arguments):
    if event == "import" and arguments[0] == "gatepost.serve":
        os.kill(os.getpid(), signal.SIGHUP)

sys.addaudithook(on_event)
from gatepost.cli.main import main
main(["serve"], prog_name="gatepost")
"""
"""The command, reloaded while it loads its modules; that is nearly all of the time of its start."""


def test_a_reload_does_not_end_a_server_that_loads_its_modules(tmp_path: Path) -> None:
    """The command goes on until it finds that there is no configuration."""
    done = subprocess.run(
        [sys.executable, "-c", RELOADED_WHILE_IT_LOADS],
        cwd=tmp_path,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode > 0, done.stderr


RELOADING_PACK = """
import os
import signal
import time
from pathlib import Path

from gatepost import Pack

pack = Pack("reloading")


@pack.lifespan
async def reload_now():
    if not Path("reloaded").exists():
        Path("reloaded").touch()
        os.kill(os.SERVER(), signal.SIGHUP)
        time.sleep(1)
    yield
"""
"""A pack that reloads the server while it starts."""


@pytest.mark.parametrize(("workers", "server"), [(1, "getpid"), (2, "getppid")])
def test_a_reload_does_not_end_a_server_that_starts(
    tmp_path: Path, workers: int, server: str, valkey: str
) -> None:
    """It reloads once it can, with any number of workers."""
    pack = RELOADING_PACK.replace("SERVER", server)

    with serving(tmp_path, pack, workers, valkey) as gatepost:
        gatepost.wait_for("configuration_reloaded")

        assert gatepost.stop() == 0


CHILD_PACK = """
import subprocess
from pathlib import Path

from gatepost import Pack

pack = Pack("children")


@pack.lifespan
async def start_child():
    with Path("status").open("w") as status:
        subprocess.run(["cat", "/proc/self/status"], stdout=status, check=True)
    yield
"""
"""A pack that starts a program, which writes down the signals that it has blocked."""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_program_that_a_pack_starts_can_be_hung_up(
    tmp_path: Path, workers: int, valkey: str
) -> None:
    """A signal that is blocked when a program starts stays blocked in it."""
    with serving(tmp_path, CHILD_PACK, workers, valkey):
        status = (tmp_path / "status").read_text()

    assert "SigBlk:\t0000000000000000" in status


STOPPING_PACK = """
import os
import signal
from pathlib import Path

from gatepost import Pack

pack = Pack("stopping")


@pack.lifespan
async def reload_at_the_end():
    yield
    os.kill(os.SERVER(), signal.SIGHUP)
    Path("closed").touch()
"""
"""A pack that reloads the server while it stops."""


@pytest.mark.parametrize(("workers", "server"), [(1, "getpid"), (2, "getppid"), (2, "getpid")])
def test_a_reload_does_not_end_a_server_that_stops(
    tmp_path: Path, workers: int, server: str, valkey: str
) -> None:
    """Its last records are written, and its packs closed."""
    pack = STOPPING_PACK.replace("SERVER", server)

    with serving(tmp_path, pack, workers, valkey) as gatepost:
        assert gatepost.stop() == 0

    assert (tmp_path / "closed").exists()
