"""What attacks on erasure found: what was gone from the tables could be read from the files."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from gatepost.cli import erasure
from gatepost.cli.main import main
from gatepost.policy.approvals.approval_request import GrantScope
from gatepost.policy.approvals.grants import revoke_given
from gatepost.policy.approvals.request_lists import erase_decider
from gatepost.storage.backends import open_records
from tests.support.runners import ACME, BOB, CAROL, ApprovalDeployment, text_of

NAME = b"Zelda Quux of Hyrule"
CONFIG = """
resource = "http://127.0.0.1:8000/mcp"
mode = "development"
storage = { database = "sqlite:///gatepost.db" }
tenancy = { tenants = ["acme"] }
issuers = [{ issuer = "http://127.0.0.1:9/main", tenant = { value = "acme" } }]
"""


async def write_entries(folder: Path) -> None:
    """Store a tenant's entries about a person, small and large, in the database file."""
    records = await open_records(f"sqlite:///{folder}/gatepost.db")
    entries = records.for_tenant("acme").entries("notes")
    for number in range(40):
        await entries.put(f"k{number}", NAME * (number * 40 + 1), now=0.0)
    await records.aclose()


def occurrences(folder: Path) -> dict[str, int]:
    """Count how often each file of the database contains the name."""
    return {path.name: path.read_bytes().count(NAME) for path in folder.glob("gatepost.db*")}


def test_erased_data_is_in_no_database_file_while_a_server_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure also clears the write-ahead log of a database that a server has open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(erasure, "PROPAGATION_S", 0.0)
    (tmp_path / "gatepost.toml").write_text(CONFIG, encoding="utf-8")
    asyncio.run(write_entries(tmp_path))
    assert occurrences(tmp_path)["gatepost.db"] > 0

    async def erased_beside_a_server() -> str:
        server = await open_records("sqlite:///gatepost.db")
        await server.for_tenant("acme").entries("notes").put("late", NAME, now=0.0)
        done = await asyncio.to_thread(
            CliRunner().invoke, main, ["tenant", "erase", "acme", "--yes"]
        )
        counts = occurrences(tmp_path)
        await server.aclose()
        assert set(counts.values()) == {0}, counts
        return done.output

    assert "is erased" in asyncio.run(erased_beside_a_server())


async def test_erasing_an_approver_removes_their_name_grants_and_decisions() -> None:
    """Grants of the erased approver end, and their approval of a pending request is dropped."""
    deployment = ApprovalDeployment(require=["act"], rules=[{"tools": ["put"], "approvals": 2}])
    replica = deployment.replica()
    service, ours = replica.service, deployment.records.for_tenant(ACME)
    for what in ("a", "b"):
        request = await replica.asked(what=what)
        await service.approve(
            ACME, request.id, BOB, grant=GrantScope(uses=5), reason="Bob B. says so"
        )
    half = await replica.asked("put", what="c")
    await service.approve(ACME, half.id, BOB)
    refused = await replica.asked(what="d")
    await service.reject(ACME, refused.id, CAROL, "no")

    assert await erase_decider(ours.approvals, BOB.issuer, BOB.subject) == 3
    assert await revoke_given(ours.grants, BOB.issuer, BOB.subject) == 2

    requests = [*await ours.approvals.waiting(9), *await ours.approvals.ended(None, 9)]
    assert len(requests) == 4
    assert not [
        request for request in requests if b"Bob" in request.details or b"bob" in request.details
    ]
    assert await service.granting.all(ACME) == []
    assert (await service.get(ACME, half.id)).approvals_given == 0  # type: ignore[union-attr]
    assert text_of(await replica.call(what="a")) == "a 0 1"
    assert "no" in text_of(await replica.call(what="d"))
    assert await erase_decider(ours.approvals, BOB.issuer, BOB.subject) == 0
    assert await revoke_given(ours.grants, BOB.issuer, BOB.subject) == 0
