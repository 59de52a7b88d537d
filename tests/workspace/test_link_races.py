"""Folders and files that turn into links and back while tools use them never lead out."""

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.workspace import TenantWorkspace, Workspaces, kernel_resolves, resolver_of
from tests.support.measuring import eventually

FOREIGN_BYTES, OWN_BYTES = b"theirs", b"ours"
ROUNDS = 15


class Swapper(threading.Thread):
    """Exchanges what stands at *spot* with a link, again and again, until it is told to stop."""

    def __init__(self, path: Path, link: Path) -> None:
        super().__init__(daemon=True)
        self.spot, self.link, self.aside = path, link, path.with_name("aside")
        self.stop = threading.Event()
        self.swaps = 0

    def run(self) -> None:
        while not self.stop.is_set():
            self._move(self.spot, self.aside)
            self._move(self.link, self.spot)
            self._move(self.spot, self.link)
            self._move(self.aside, self.spot)
            self.swaps += 1

    def _move(self, old: Path, new: Path) -> None:
        try:
            os.rename(old, new)
        except OSError:
            return  # a tool removed or made something meanwhile

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        eventually(lambda: self.swaps > 10, within=10)
        yield
        self.stop.set()
        self.join(10)
        assert not self.is_alive()


@pytest.fixture(params=["kernel", "walk"])
def made_workspaces(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workspaces]:
    if request.param == "kernel" and not kernel_resolves():
        pytest.skip("this kernel has no openat2")
    workspaces_made = Workspaces(tmp_path / "workspaces", resolver=resolver_of(request.param))
    yield workspaces_made
    workspaces_made.close()


Action = Callable[[TenantWorkspace, int], Awaitable[Any]]

ACTIONS: list[Action] = [
    lambda acme, _: acme.read("spot/inner", limit=100),
    lambda acme, _: acme.write("spot/inner", OWN_BYTES),
    lambda acme, number: acme.write(f"spot/{number % 5}/new", OWN_BYTES),
    lambda acme, _: acme.append("spot/inner", b"", mkdirs=False),
    lambda acme, _: acme.entries(recursive=True, limit=1000),
    lambda acme, _: acme.stat("spot/inner"),
    lambda acme, _: acme.delete("spot/inner"),
    lambda acme, _: acme.write("spot/inner", OWN_BYTES),
    lambda acme, number: acme.delete(f"spot/{number % 5}", recursive=True),
    lambda acme, _: acme.usage(),
    lambda acme, _: acme.heads(["spot/inner"], limit=100),
    lambda acme, _: acme.edit("spot/inner", lambda old: OWN_BYTES + (old or b"")[:0], limit=100),
    lambda acme, _: acme.folder("spot", "/spot/").read("inner", limit=100),
    lambda acme, _: acme.folder("spot", "/spot/").write("inner", OWN_BYTES),
    lambda acme, _: acme.folder("spot", "/spot/").entries(recursive=True, hidden=False, limit=9),
]


async def action_outcome(acme: TenantWorkspace, action: Action, number: int = 0) -> str:
    """Use the path once during the swaps; return the answer or the kind of the refusal."""
    try:
        return repr(await action(acme, number))
    except ToolFailure as failure:
        return failure.failure.kind


@pytest.mark.requirement("P14", "X1", "P3")
@pytest.mark.parametrize("target", ["neighbour", "outside"])
async def test_a_folder_that_turns_into_a_link_is_not_followed(
    made_workspaces: Workspaces, tmp_path: Path, target: str
) -> None:
    """Reading, writing, making, listing, deleting and counting, while it changes all the time."""
    theirs = tmp_path / ("workspaces/globex" if target == "neighbour" else "outside")
    for path in ("inner", "0/new", "1/kept"):
        (theirs / path).parent.mkdir(parents=True, exist_ok=True)
        (theirs / path).write_bytes(FOREIGN_BYTES)
    acme = made_workspaces.of("acme")
    await acme.write("spot/inner", OWN_BYTES)
    link = tmp_path / "link"
    link.symlink_to(theirs)

    with Swapper(tmp_path / "workspaces/acme/spot", link).running():
        for number in range(ROUNDS):
            for action in ACTIONS:
                attempted = await action_outcome(acme, action, number)
                assert "theirs" not in attempted
                assert "spot/1/kept" not in attempted

    assert sorted(str(p.relative_to(theirs)) for p in theirs.rglob("*") if p.is_file()) == [
        "0/new",
        "1/kept",
        "inner",
    ]
    assert {p.read_bytes() for p in theirs.rglob("*") if p.is_file()} == {FOREIGN_BYTES}


@pytest.mark.requirement("P14")
async def test_a_folder_that_vanishes_during_a_walk_is_a_concurrent_change(
    made_workspaces: Workspaces, tmp_path: Path
) -> None:
    """The walk answers the tenant's own files or a refusal, and never an internal failure."""
    acme = made_workspaces.of("acme")
    await acme.write("spot/inner", OWN_BYTES)
    await acme.write("deep/0/1/2/3/inner", OWN_BYTES)

    with Swapper(tmp_path / "workspaces/acme/deep/0", tmp_path / "outside").running():
        reasons = {
            await action_outcome(acme, lambda acme, _: acme.stat("deep/0/1/2/3/inner"))
            for _ in range(ROUNDS * len(ACTIONS))
        }

    assert all(
        "inner" in failure_reason
        for failure_reason in reasons - {"not_found", "upstream_unavailable"}
    )


async def test_a_path_that_leads_out_is_never_opened(tmp_path: Path) -> None:
    """The kernel's refusal is reported as a concurrent change."""
    if not kernel_resolves():
        pytest.skip("this kernel has no openat2")
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            resolver_of("kernel").open(root, ["..", tmp_path.name], os.O_RDONLY)
    finally:
        os.close(root)


@pytest.mark.requirement("P14")
async def test_a_file_that_turns_into_a_link_is_never_read_through(
    made_workspaces: Workspaces, tmp_path: Path
) -> None:
    """A read returns the tenant's own content, and a write replaces the link."""
    (tmp_path / "theirs").write_bytes(FOREIGN_BYTES)
    acme = made_workspaces.of("acme")
    await acme.write("spot", OWN_BYTES)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "theirs")

    with Swapper(tmp_path / "workspaces/acme/spot", link).running():
        for _ in range(ROUNDS):
            for action in (
                lambda acme, _: acme.read("spot", limit=100),
                lambda acme, _: acme.write("spot", OWN_BYTES),
                lambda acme, _: acme.append("spot", b""),
            ):
                assert "theirs" not in await action_outcome(acme, action)

    assert (tmp_path / "theirs").read_bytes() == FOREIGN_BYTES
