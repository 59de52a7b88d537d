"""The end of a tenant: all of it goes, whatever runs or interrupts, and nothing of others."""

import asyncio
import os
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gatepost.runtime.erasure import PASSES, ErasureBlocked, TenantErasure
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.workspace.ownership import PRIVATE
from tests.conftest import ROWS_BY_TABLE, store_records
from tests.policy.conftest import LATER_S, TASKS, OpenRequests, RevocationReplicas, wait_for_end
from tests.support.replicas import ReplicaClient

pytestmark = pytest.mark.requirement("CO4")


def fill(root: Path, tenant: str) -> None:
    """Write files, folders, a link to outside the workspace, and the files beside the workspace."""
    for folder in (root / tenant / "a" / "b", root / PRIVATE / tenant / "memory"):
        folder.mkdir(parents=True)
        (folder / "note").write_bytes(b"12345")
    (root / tenant / "link").symlink_to(root.parent)
    (root / PRIVATE / tenant / ".usage").write_bytes(b"")


class TwoTenants:
    """Two tenants' folders and records, without a server."""

    def __init__(self, root: Path) -> None:
        self.root, self.records, self.shared_store = root, MemoryRecords(), MemorySharedStore()
        self.told: list[str] = []
        self.pauses = 0

    async def erase(self, tell: Any = None) -> None:
        erasure = TenantErasure("acme", self.records, self.shared_store, self.root)
        await erasure.run(tell or self.told.append, self.pause)

    async def pause(self, seconds: float) -> None:
        self.pauses += 1

    async def is_gone(self) -> bool:
        """Tell whether nothing of acme is left; check that all of globex is there."""
        places = (self.root / "acme", self.root / PRIVATE / "acme")
        assert (self.root / "globex" / "a" / "b" / "note").read_bytes() == b"12345"
        assert (self.root / PRIVATE / "globex" / "memory" / "note").exists()
        assert await self.records.tenant_data.count("globex") == ROWS_BY_TABLE
        assert sorted(os.listdir(self.root)) == [
            name for name in (PRIVATE, "acme", "globex") if (self.root / name).exists()
        ]
        return not any(map(os.path.lexists, places)) and not await self.records.tenant_data.count(
            "acme"
        )


@pytest.fixture
async def erased_tenant(tmp_path: Path) -> TwoTenants:
    scene = TwoTenants(tmp_path / "workspaces")
    for tenant in ("acme", "globex"):
        fill(scene.root, tenant)
        await store_records(scene.records, tenant)
    return scene


async def test_the_data_to_erase_is_counted_first(erased_tenant: TwoTenants) -> None:
    """Counting changes nothing."""
    erasure = TenantErasure(
        "acme", erased_tenant.records, erased_tenant.shared_store, erased_tenant.root
    )
    counts = await erasure.inventory()

    assert counts.records == ROWS_BY_TABLE
    assert counts.files.files == 7
    assert "7 files and folders" in counts.lines()[-1]
    assert counts == await erasure.inventory()


async def test_an_erasure_removes_all_data_of_its_tenant_only(erased_tenant: TwoTenants) -> None:
    """A second erasure removes nothing."""
    await erased_tenant.erase()
    assert await erased_tenant.is_gone()
    assert erased_tenant.told[0] == f"removed {sum(ROWS_BY_TABLE.values())} records"

    erased_tenant.told.clear()
    await erased_tenant.erase()
    assert erased_tenant.told == []


async def test_a_tenant_without_data_can_be_erased(tmp_path: Path) -> None:
    """The tenant has no folder, and the erasure makes none."""
    scene = TwoTenants(tmp_path / "nowhere")
    await scene.erase()

    assert not scene.root.exists()


class Interrupted(Exception):
    """Interrupt the erasure, as a signal would."""


@pytest.mark.parametrize("at", [1, 2])
async def test_an_interrupted_erasure_is_completed_by_the_next_one(
    erased_tenant: TwoTenants, at: int
) -> None:
    """It finds what the first one had moved aside."""
    lines = 0

    def stop(line: str) -> None:
        nonlocal lines
        lines += 1
        if lines == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        await erased_tenant.erase(stop)
    aside = erased_tenant.root / PRIVATE / "acme" / "erased.0123456789abcdef.partial"
    (aside / "deep" / "er").mkdir(parents=True, exist_ok=True)
    (aside / ".0123456789abcdef.partial").write_bytes(b"x")

    await erased_tenant.erase()
    assert await erased_tenant.is_gone()


async def test_an_erasure_repeats_while_a_call_still_writes(erased_tenant: TwoTenants) -> None:
    """A call that is being stopped writes once more: the next pass comes for it."""

    async def pause(seconds: float) -> None:
        if erased_tenant.pauses == 0:
            fill(erased_tenant.root, "acme")
        erased_tenant.pauses += 1

    await TenantErasure(
        "acme", erased_tenant.records, erased_tenant.shared_store, erased_tenant.root
    ).run(print, pause)
    assert erased_tenant.pauses == 2
    assert await erased_tenant.is_gone()


async def test_a_process_that_never_stops_writing_is_reported(erased_tenant: TwoTenants) -> None:
    """The erasure gives up after some passes, so that the operator can look for the process."""

    async def pause(seconds: float) -> None:
        erased_tenant.pauses += 1
        await store_records(erased_tenant.records, "acme")

    with pytest.raises(ErasureBlocked):
        await TenantErasure(
            "acme", erased_tenant.records, erased_tenant.shared_store, erased_tenant.root
        ).run(print, pause)
    assert erased_tenant.pauses == PASSES


async def test_a_tenant_is_erased_while_it_calls(replicas: RevocationReplicas) -> None:
    """Its calls end at both replicas, all its data is removed, and its records still verify."""
    root = replicas.folder / "workspaces"
    before = await asyncio.to_thread(replicas.commands.run, "tenant", "erase", "globex")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(replicas.client(org_id="globex"))
        victims = [OpenRequests(replicas, client, at) for at in (0, 1)]
        bystander = OpenRequests(replicas, await stack.enter_async_context(replicas.client()), 1)
        await asyncio.gather(*(caller.open(stack) for caller in (*victims, bystander)))
        for tenant in ("globex", "acme"):
            fill(root, tenant)

        result = await asyncio.to_thread(replicas.commands.run, "tenant", "erase", "globex")
        assert result.code == 1
        assert tasks_in(result.out) == tasks_in(before.out) + len(victims)
        assert "--yes" in result.err
        assert not any(call.done() for call in victims[0].calls.values())

        output = await replicas.commands.order(
            "tenant", "erase", "globex", "--yes", "--reason", "contract ended"
        )
        assert "files and folders" in output.out
        assert "erased the details of" in output.out
        for victim in victims:
            await wait_for_end(victim.listener)
            await victim.answers()
        assert not (root / "globex").exists()
        assert not (root / PRIVATE / "globex").exists()
        assert (root / "acme" / "a" / "b" / "note").exists()
        again = await asyncio.to_thread(replicas.commands.run, "tenant", "erase", "globex")
        assert "has no data except" in again.out
        verified = await replicas.commands.order("audit", "verify")
        assert "globex: " in verified.out

        await replicas.commands.order("tenant", "resume", "globex")
        await assert_tenant_is_new(replicas, victims, client)
        await bystander.let_go()
        assert {status for status, _ in (await bystander.answers()).values()} == {200}


def tasks_in(output: str) -> int:
    """Return how many tasks the command counts; tasks of other tests belong to the tenant, too."""
    match = re.search(r"(\d+) tasks", output)
    return 0 if match is None else int(match[1])


async def assert_tenant_is_new(
    replicas: RevocationReplicas, victims: list[OpenRequests], client: ReplicaClient
) -> None:
    """Check that old tokens, tasks and sessions open nothing and that new ones do."""

    async def is_open() -> bool:
        head = client.mirrors("server/discover", None)
        answers = [
            await client.send(client.modern("server/discover", None), head, at=at) for at in (0, 1)
        ]
        return {answer.status_code for answer in answers} == {401}

    await replicas.until(is_open)
    async with replicas.client(org_id="globex", iat=int(time.time()) + LATER_S) as later:
        assert (await later.say()).isdigit()
        assert (await later.within(victims[0].session, "ping")).status_code == 404
        params = {"taskId": victims[0].task}
        with pytest.raises(AssertionError, match="Unknown task"):
            await later.ask("tasks/get", params, capabilities=TASKS)


async def test_one_person_is_erased_and_no_other(replicas: RevocationReplicas) -> None:
    """Their tasks, details and tokens are removed at once; the tenant continues."""
    issuer = replicas.issuer
    async with AsyncExitStack() as stack:
        leaves = await stack.enter_async_context(replicas.client(sub="dave"))
        stays = OpenRequests(
            replicas, await stack.enter_async_context(replicas.client(sub="erin")), 0
        )
        await stays.open(stack)
        name = replicas.name()
        replicas.let_go(name)
        params = {"name": "rebuild", "arguments": {"name": name}}
        await leaves.ask("tools/call", params, at=1, capabilities=TASKS)

        arguments = ("tenant", "erase", "acme", "--subject", "dave")
        alone = await asyncio.to_thread(replicas.commands.run, *arguments, "--yes")
        assert (alone.code, "must be given together" in alone.err) == (2, True)
        counted = await asyncio.to_thread(replicas.commands.run, *arguments, "--issuer", issuer)
        assert (counted.code, "about this person: 1 tasks" in counted.out) == (1, True)
        output = await replicas.commands.order(*arguments, "--issuer", issuer, "--yes")
        assert "removed 1 records" in output.out
        assert "erased the details of 1 audit records" in output.out

        head = leaves.mirrors("server/discover", None)
        answer = await leaves.send(leaves.modern("server/discover", None), head, at=1)
        assert answer.status_code == 401
        assert (
            "dave" not in (await replicas.commands.order("audit", "export", "--tenant", "acme")).out
        )
        assert "acme: " in (await replicas.commands.order("audit", "verify")).out
        assert not any(call.done() for call in stays.calls.values())
        await stays.let_go()
        assert {status for status, _ in (await stays.answers()).values()} == {200}
