"""A server that is killed in the middle of writing leaves old or new content, never half."""

import sys
from pathlib import Path

import pytest

from gatepost.workspace import Workspaces
from tests.support.processes import Process, python_environment

SIZE = 1_000_000

WRITER = f"""
import asyncio, sys
from pathlib import Path
from gatepost.workspace import Workspaces

async def main():
    acme = Workspaces(Path(sys.argv[1])).for_tenant("acme")
    while True:
        for letter in (b"a", b"b"):
            await acme.write("folder/same", letter * {SIZE})
            await acme.append("log", letter * 1000)
            await acme.write("gone/x/y", letter)
            await acme.delete("gone", recursive=True)
            print(letter.decode(), flush=True)

asyncio.run(main())
"""


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8])
async def test_a_kill_leaves_whole_files_and_a_correct_usage_count(
    tmp_path: Path, rounds: int
) -> None:
    """After SIGKILL during a write, the next server finds no half-written file."""
    root = tmp_path / "workspaces"
    writer = Process([sys.executable, "-c", WRITER, str(root)], env=python_environment())
    for _ in range(rounds):
        writer.next_line()
    writer.kill()
    file_bytes = (root / "acme/folder/same").read_bytes()
    log = (root / "acme/log").read_bytes()
    spaces = Workspaces(root)
    usage = await spaces.for_tenant("acme").usage()
    spaces.close()
    entries_left = list((root / "acme").rglob("*"))

    assert file_bytes in (b"a" * SIZE, b"b" * SIZE)
    assert len(log) % 1000 == 0
    assert not [path for path in entries_left if path.name.endswith(".partial")]
    assert usage.files == len(entries_left)
    assert usage.bytes == sum(path.stat().st_size for path in entries_left if path.is_file())
