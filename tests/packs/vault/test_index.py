"""The index follows every change of the files, helps no other tenant, and costs little."""

import asyncio
import concurrent.futures
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gatepost.tools.context.client import NO_CLIENT, Client
from gatepost.tools.context.interfaces import FileHead, FolderListing
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.workspace import TenantWorkspace, Workspaces
from gatepost_packs.vault import lookup
from gatepost_packs.vault.settings import VaultSettings
from gatepost_packs.vault.tools import Hits, vault_list, vault_read, vault_search
from tests.support.commands import tenant_folder
from tests.support.endpoint import a_caller
from tests.support.processes import Process, python_environment

pytestmark = pytest.mark.requirement("P5")

OLD_TIME = 1_700_000_000


class VaultTestSettings:
    """The pack's settings."""

    def __init__(self, **settings: Any) -> None:
        self._settings = VaultSettings(**settings)

    def settings(self, kind: type[Any]) -> Any:
        return self._settings


class VaultTools:
    """One tenant's vault on the disk, and its tools; counts the notes they read."""

    def __init__(self, spaces: Workspaces, root: Path, tenant: str = "acme") -> None:
        self.vault = tenant_folder(root, tenant) / "vault"
        self.index = root / ".gatepost" / tenant / ".made/vault.sqlite"
        self.read: list[str] = []
        self.reading = asyncio.Event()
        self.listings = 0
        """How often the files were listed."""
        self.listed = asyncio.Event()
        self.listing: asyncio.Event | None = None
        """Cleared: a list of the files is not returned yet."""
        self._space = Counting(spaces.for_tenant(tenant), self)
        self.told = VaultTestSettings()

    @property
    def ctx(self) -> CallContext:
        return self.ctx_of(NO_CLIENT)

    def ctx_of(self, client: Client) -> CallContext:
        """Return the context of a call by that client."""
        tool_services: Any = self.told
        space: Any = self._space
        return CallContext(
            caller=a_caller(),
            request_id="1",
            workspace=space,
            services=tool_services,
            client=client,
        )

    def put(self, path: str, text: str, *, at: float = OLD_TIME) -> Path:
        file = self.vault / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (at, at))
        return file

    async def search(self, query: str, **more: Any) -> list[str]:
        """Return the paths found; `read` then contains the paths that were read for it."""
        self.read.clear()
        hits: Hits = await vault_search(self.ctx, query, **more)
        return [hit.path.removeprefix("/vault/") for hit in hits.hits]


class Counting:
    """A workspace that takes note of the notes it is asked to read."""

    def __init__(self, inner: TenantWorkspace, secrets: VaultTools) -> None:
        self._inner, self._secrets = inner, secrets

    def folder(self, path: str, shown: str) -> "Counting":
        return Counting(self._inner.folder(path, shown), self._secrets)

    async def entries(self, path: str = ".", **options: Any) -> FolderListing:
        self._secrets.listings += 1
        listing = await self._inner.entries(path, **options)
        self._secrets.listed.set()
        if self._secrets.listing is not None:
            await self._secrets.listing.wait()
        return listing

    async def heads(self, paths: Sequence[str], *, limit: int) -> list[FileHead | None]:
        self._secrets.read += paths
        self._secrets.reading.set()
        return await self._inner.heads(paths, limit=limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[VaultTools]:
    spaces = Workspaces(tmp_path)
    yield VaultTools(spaces, tmp_path)
    spaces.close()


async def test_a_search_reads_only_changed_notes_again(secrets: VaultTools) -> None:
    """A search reads only the notes that changed since the last one, however many there are."""
    for number in range(600):
        secrets.put(f"f{number % 7}/n{number}.md", f"Note {number}, word{number}")

    assert await secrets.search("word5") == ["f5/n5.md"]
    assert len(secrets.read) == 600
    assert await secrets.search("word5") == ["f5/n5.md"]
    assert secrets.read == []
    secrets.put("f0/n0.md", "unicorn", at=OLD_TIME + 1)
    assert await secrets.search("unicorn") == ["f0/n0.md"]
    assert secrets.read == ["f0/n0.md"]
    assert (await vault_list(secrets.ctx)).total == 600


async def test_the_next_search_finds_every_change_of_a_file(secrets: VaultTools) -> None:
    """A pull, an editor, a move, a deletion, a folder that goes: none of them tells the index."""
    file = secrets.put("a/one.md", "apple #fruit [[two]]")
    secrets.put("a/two.md", "pear")
    assert await secrets.search("apple") == ["a/one.md"]

    os.utime(
        secrets.put("a/one.md", "grape #fruit"), (OLD_TIME, OLD_TIME)
    )  # as long as before, as old
    assert await secrets.search("apple") == []
    assert await secrets.search("grape", tag="fruit") == ["a/one.md"]
    assert (await vault_read(secrets.ctx, "two")).backlinks == []

    file.rename(secrets.vault / "moved.md")
    assert await secrets.search("grape") == ["moved.md"]
    (secrets.vault / "moved.md").unlink()
    assert await secrets.search("grape") == []
    assert await secrets.search("pear", tag="fruit") == []
    (secrets.vault / "a").rename(secrets.vault.parent / "elsewhere")
    assert (await vault_list(secrets.ctx)).total == 0


async def test_a_file_changed_within_a_clock_tick_is_read_again(secrets: VaultTools) -> None:
    """Two changes within one tick of a clock look like one."""
    soon = 4_000_000_000
    secrets.put("one.md", "apple", at=soon)
    assert await secrets.search("apple") == ["one.md"]
    assert await secrets.search("apple") == ["one.md"]
    assert secrets.read == ["one.md"]
    secrets.put("one.md", "apple", at=OLD_TIME)
    await secrets.search("apple")
    await secrets.search("apple")
    assert secrets.read == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b"no database at all" * 1000),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        lambda file: file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 40_960),
        lambda file: file.unlink(),
        lambda file: change_index(file, "DROP TABLE words"),
        lambda file: change_index(file, "PRAGMA user_version = 99"),
        lambda file: change_index(file, "PRAGMA user_version = 2; DROP TABLE state"),
        lambda file: change_index(file, "DELETE FROM state"),
        lambda file: change_index(file, "DROP TABLE files; CREATE TABLE files (x)"),
        lambda file: (file.unlink(), file.with_name(f"{file.name}-journal").write_bytes(b"x" * 99)),
    ],
    ids=[
        "text",
        "empty",
        "half",
        "garbage",
        "gone",
        "no table",
        "version",
        "older",
        "state",
        "columns",
        "journal",
    ],
)
async def test_a_damaged_index_is_rebuilt(secrets: VaultTools, spoil: Any) -> None:
    """A search answers as before; it only reads the notes again."""
    for number in range(40):
        secrets.put(f"n{number}.md", f"word{number} " + "x y z " * 200)
    assert await secrets.search("word7") == ["n7.md"]
    spoil(secrets.index)

    assert await secrets.search("word8") == ["n8.md"]
    assert len(secrets.read) == 40
    assert await secrets.search("word7") == ["n7.md"]
    assert secrets.read == []


def change_index(file: Path, statements: str) -> None:
    rows = sqlite3.connect(file)
    rows.executescript(statements)
    rows.close()


async def test_an_index_that_cannot_be_made_is_a_failure(secrets: VaultTools) -> None:
    """The model gets a sentence; the tools still read and write files."""
    secrets.put("one.md", "apple")
    secrets.index.parent.mkdir(parents=True)
    (secrets.index / "in the way").mkdir(parents=True)

    with pytest.raises(ToolFailure) as failed:
        await secrets.search("apple")

    assert failed.value.failure.kind == "internal"
    assert "can neither be used nor rebuilt" in failed.value.failure.message


async def test_a_full_index_reports_itself_and_returns_no_outdated_hits(
    secrets: VaultTools,
) -> None:
    """Notes beyond the limit are not found, nor is their former text."""
    secrets.told = VaultTestSettings(index_bytes=1_000_000)
    for number in range(60):
        secrets.put(
            f"n{number:02}.md", f"word{number} " + " ".join(f"w{number}x{n}" for n in range(5000))
        )

    hits = await vault_search(secrets.ctx, "word59")
    listed = await vault_list(secrets.ctx)
    secrets.put("n00.md", "fresh " + " ".join(f"new{n}" for n in range(100_000)), at=OLD_TIME + 5)
    stale = await secrets.search("word0")

    assert hits.hits == []
    assert "the index is full. The operator can raise packs.vault.index_bytes" in hits.remarks[0]
    assert listed.total < 60
    assert secrets.index.stat().st_size <= 1_000_000
    assert stale == []


async def test_no_caller_waits_for_another_tenants_index(tmp_path: Path) -> None:
    """Each tenant has its own index next to its workspace."""
    spaces = Workspaces(tmp_path)
    tenants = [VaultTools(spaces, tmp_path, tenant) for tenant in ("acme", "globex")]
    for tenant in tenants:
        tenant.put("same.md", f"apple of {tenant.vault.parent.name}")

    results = await asyncio.gather(*(tenant.search("apple") for tenant in tenants))

    assert results == [["same.md"], ["same.md"]]
    assert all(tenant.index.is_file() for tenant in tenants)
    spaces.close()


async def test_an_index_is_made_outside_the_event_loops_thread(secrets: VaultTools) -> None:
    """No step of it runs on the event loop's own thread."""
    threads: set[str] = set()

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":
            threads.add(threading.current_thread().name)

    AUDITS.append(watch)
    try:
        secrets.put("one.md", "apple")
        await secrets.search("apple")
    finally:
        AUDITS.remove(watch)

    assert threads
    assert threading.current_thread().name not in threads


AUDITS: list[Any] = []
sys.addaudithook(lambda event, args: [hook(event, args) for hook in AUDITS] and None)


async def write_and_find(root: Path, name: str) -> None:
    """Write notes into a folder of the vault, and find each at once."""
    spaces = Workspaces(root)
    vault = VaultTools(spaces, root)
    for number in range(4):
        vault.put(f"{name}/n{number}.md", f"{name}word{number}")
        assert await vault.search(f"{name}word{number}") == [f"{name}/n{number}.md"]
    spaces.close()


async def test_two_processes_share_one_index(secrets: VaultTools, tmp_path: Path) -> None:
    """Each process finds new notes while the other writes; no note is lost or doubled."""
    for number in range(100):
        secrets.put(f"n{number}.md", f"common word{number}")
    others = [
        Process([sys.executable, "-m", __name__, str(tmp_path), name], env=python_environment())
        for name in ("left", "right")
    ]
    try:
        for other in others:
            await asyncio.to_thread(other.process.wait, 60)
            assert other.stop() == 0, other.output
    finally:
        for other in others:
            other.kill()

    assert await secrets.search("leftword3") == ["left/n3.md"]
    assert (await vault_list(secrets.ctx)).total == 108
    rows = sqlite3.connect(secrets.index)
    assert rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert rows.execute("SELECT count(*) FROM words").fetchone() == (108,)
    rows.close()


async def test_a_cancelled_search_leaves_a_sound_index(secrets: VaultTools) -> None:
    """A call that is cancelled leaves its work, and the next one finds a sound index."""
    for number in range(300):
        secrets.put(f"n{number}.md", f"word{number} " + "a b c " * 500)
    search = asyncio.create_task(vault_search(secrets.ctx, "word1"))
    await asyncio.wait_for(secrets.reading.wait(), 10)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search

    assert await secrets.search("word299") == ["n299.md"]


async def test_a_search_sees_one_state_while_notes_are_written(
    secrets: VaultTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts of its hits are still there when it reads them."""
    loop, hits, written = asyncio.get_running_loop(), lookup._hits, threading.Event()
    secrets.put("one.md", "apple before")
    assert await secrets.search("apple") == ["one.md"]

    def meanwhile(*results: Any) -> Any:
        if not written.is_set():
            written.set()
            secrets.put("one.md", "apple after", at=OLD_TIME + 1)
            other = asyncio.run_coroutine_threadsafe(secrets.search("after"), loop)
            # It waits for this search, or is done with it: both are no reason to fail.
            concurrent.futures.wait([other], timeout=0.5)
            others.append(other)
        return hits(*results)

    others: list[concurrent.futures.Future[list[str]]] = []
    monkeypatch.setattr(lookup, "_hits", meanwhile)

    assert await secrets.search("apple") == ["one.md"]
    assert await asyncio.wrap_future(others[0]) == ["one.md"]


async def test_searches_and_writes_at_once_all_succeed(secrets: VaultTools) -> None:
    """A note that is just being read again may be missing; none is found twice, and none fails."""
    for number in range(8):
        secrets.put(f"n{number}.md", "apple 0")
    await secrets.search("apple")

    async def write() -> None:
        for step in range(1, 25):
            for number in range(8):
                secrets.put(f"n{number}.md", f"apple {step}", at=OLD_TIME + step)
            await secrets.search(str(step))

    async def search() -> None:
        for _ in range(40):
            result = await secrets.search("apple", limit=20)
            assert len(set(result)) == len(result) <= 8

    await asyncio.gather(write(), search(), search())


if __name__ == "__main__":
    asyncio.run(write_and_find(Path(sys.argv[1]), sys.argv[2]))
