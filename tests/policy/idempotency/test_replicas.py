"""Two servers on one database and one Valkey, one of which is killed in the middle (O12)."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gatepost.tools.context.idempotency_key import IDEMPOTENCY
from tests.support import tools as process_tools
from tests.support.client import exchange, modern_request, request, result
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.replicas import ReplicaProcesses

pytestmark = pytest.mark.requirement("O12")

ANSWER_S = 30
SHORT_LEASES = """
from gatepost.policy.idempotency import execution
from tests.support.tools import effects_pack

execution.LEASE_S, execution.RENEW_S = 3.0, 1.0
"""
"""Tools of servers with short leases: the test must not wait for real ones."""


class ReplicaPair(ReplicaProcesses):
    """Two replicas, and the folder in which their tools leave marks."""

    def __init__(self, idp: Idp, folder: Path, storage: Mapping[str, str]) -> None:
        (folder / "short_leases.py").write_text(SHORT_LEASES, encoding="utf-8")
        super().__init__(idp, folder, storage, tools=folder / "short_leases.py")
        self._pool = ThreadPoolExecutor(8)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run both replicas during a block; end every waiting call after it."""
        with super().running(), self._pool:
            try:
                yield
            finally:
                self.go()

    def begin(self, at: int, tool: str, what: str, key: str) -> "Future[str]":
        """Begin a call at one of the two replicas; return the future text of its answer."""
        return self._pool.submit(self._call, at, tool, what, key)

    def call(self, at: int, tool: str, what: str, key: str) -> str:
        """Make a call at one of the two and wait for it; return its answer's text."""
        return self.begin(at, tool, what, key).result(ANSWER_S)

    def _call(self, at: int, tool: str, what: str, key: str) -> str:
        named, body = modern_request("tools/call", {"name": tool, "arguments": {"what": what}})
        head = [
            ("Host", f"127.0.0.1:{self.port}"),
            ("Connection", "close"),
            ("Authorization", f"Bearer {self.token()}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            (IDEMPOTENCY.decode(), key),
        ]
        data = request("POST", "/mcp", [*head, *named], body)
        answer = exchange(self.ports[at], data, timeout=ANSWER_S)
        text: str = result(answer)["content"][0]["text"]
        return text

    def effects(self) -> list[str]:
        path = self.folder / process_tools.EFFECTS_FILE
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        (self.folder / process_tools.GO_FILE).touch()


@pytest.fixture
def pair(
    idp: Idp, tmp_path: Path, valkey: str, request: pytest.FixtureRequest
) -> Iterator[ReplicaPair]:
    database = "sqlite:///gatepost.db"
    if request.param == "postgresql":
        database = request.getfixturevalue("migrated_postgres")
    pair = ReplicaPair(idp, tmp_path, {"database": database, "shared": valkey})
    with pair.running():
        yield pair


@pytest.mark.parametrize("pair", ["sqlite", "postgresql"], indirect=True)
def test_two_processes_run_a_call_once_and_outlive_a_crash(pair: ReplicaPair) -> None:
    """Calls are coalesced across processes; answers stay, and an interrupted call is reported."""
    calls = [pair.begin(at, "act", "shared", "k1") for at in (0, 1, 1, 0)]
    eventually(pair.effects, within=10)
    pair.go()
    assert {call.result(ANSWER_S) for call in calls} == {"shared 1"}
    (pair.folder / process_tools.GO_FILE).unlink()

    lost = [pair.begin(0, tool, tool, "k2") for tool in ("act", "put")]
    eventually(lambda: len(pair.effects()) == 3, within=10)
    pair.kill(0)
    for call in lost:
        with pytest.raises((ConnectionError, TimeoutError)):
            call.result(ANSWER_S)

    # Both retries wait for the lease of the dead process at the same time.
    again = [pair.begin(1, tool, tool, "k2") for tool in ("act", "put")]
    assert pair.call(1, "act", "shared", "k1") == "shared 1"
    eventually(lambda: pair.effects().count("put") == 2, within=ANSWER_S)
    pair.go()
    assert "It is unknown" in again[0].result(ANSWER_S)
    assert again[1].result(ANSWER_S) == "put 2"
    assert sorted(pair.effects()) == ["act", "put", "put", "shared"]

    pair.restart(0)
    assert pair.call(0, "act", "shared", "k1") == "shared 1"
    assert pair.call(0, "put", "put", "k2") == "put 2"
    assert "It is unknown" in pair.call(0, "act", "act", "k2")
    assert "other arguments" in pair.call(0, "act", "changed", "k1")
    assert len(pair.effects()) == 4
