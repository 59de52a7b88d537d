"""Rate limits and fairness of two real servers under load; minutes on a busy machine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import tools as process_tools
from tests.support.client import modern_request
from tests.support.issuers import Idp
from tests.support.replicas import ReplicaProcesses
from tests.support.stores import Postgres, Valkey

pytestmark = [pytest.mark.slow, pytest.mark.requirement("P12")]

WITHIN_S = 120
CALLER, TENANT, TOOL = 10.0, 20.0, 5.0
"""Calls a second; slow, so that there is more demand than that on any machine."""
PAUSE_S = 4
"""What a bucket holds: so long may a machine stand still without anything being lost."""
WINDOW_S = 40.0
WORK_S = 2.0
SHARE_S = 20.0
MAX_TRIES = 3
CONCURRENCY, FLOOD_CALLS, CALM_CALLS = 100, 160, 5


class Customers:
    """Clients of both replicas, each person with a token."""

    def __init__(self, pair: ReplicaProcesses, http: httpx2.AsyncClient) -> None:
        self._pair, self._http = pair, http
        self._tokens: dict[tuple[str, str], str] = {}

    def token(self, tenant: str, person: str) -> str:
        """Return the person's token, made once."""
        token = self._tokens.get((tenant, person))
        if token is None:
            token = self._tokens[tenant, person] = self._pair.token(org_id=tenant, sub=person)
        return token

    async def call(
        self, at: int, tenant: str, person: str, tool: str, arguments: Mapping[str, Any]
    ) -> bool:
        """Tell whether the call was let through."""
        token = self.token(tenant, person)
        fields, body = modern_request("tools/call", {"name": tool, "arguments": arguments})
        head = [*fields, ("Authorization", f"Bearer {token}"), ("Content-Type", "application/json")]
        head.append(("Host", f"127.0.0.1:{self._pair.port}"))
        url = f"http://127.0.0.1:{self._pair.ports[at]}/mcp"
        answer = json.loads((await self._http.post(url, headers=head, content=body)).content)
        if "error" in answer:
            assert answer["error"]["code"] == -32000, answer
            return False
        assert not answer["result"]["isError"], answer
        return True


class LimitedReplicas(ReplicaProcesses):
    """Two replicas and what they did."""

    def done(self, word: str, since: float, until: float) -> int:
        """Return how often this was done in that time."""
        file = self.folder / "marks"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return sum(name == word and since <= float(at) < until for name, at in lines)

    @asynccontextmanager
    async def customers(self) -> AsyncIterator[Customers]:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx2.AsyncClient(timeout=WITHIN_S, limits=limits, trust_env=False) as http:
            yield Customers(self, http)


@contextmanager
def limited_replicas(
    idp: Idp, folder: Path, postgres: Postgres, template: str, valkey: Valkey, **limits: Any
) -> Iterator[LimitedReplicas]:
    """Run two replicas with these limits."""
    with postgres.database(like=template) as database:
        storage = {"database": database, "shared": valkey.url()}
        usual = {"failures_per_second": 0, "requests_per_second": 0} | limits
        pair = LimitedReplicas(
            idp,
            folder,
            storage,
            tools=Path(process_tools.__file__),
            limits=usual,
            audit={"enabled": False},
        )
        with pair.running():
            yield pair


class RepeatingCallers:
    """Callers that try again and again, at both replicas by turns."""

    def __init__(self, customers: Customers, tenant: str, people: int, tool: str) -> None:
        self._customers, self._tenant, self._tool = customers, tenant, tool
        self.people = people
        self.refused_at = 0.0
        """When the last call was refused: at that moment the bucket was empty."""
        self._refused = asyncio.Event()

    async def press(self, number: int) -> None:
        """Call without end as one of them."""
        person, at = f"{self._tool}-{number % self.people}", number
        while True:
            at += 1
            if not await self._customers.call(at % 2, self._tenant, person, self._tool, {}):
                self.refused_at = time.time()
                self._refused.set()
                # Twice what the rate allows: more would only be work for the machine.
                await asyncio.sleep(0.2)

    async def empty(self, after: float) -> float:
        """Return the first moment after that one at which a call was refused."""
        async with asyncio.timeout(WITHIN_S):
            while self.refused_at <= after:
                self._refused.clear()
                await self._refused.wait()
        return self.refused_at


async def test_rates_hold_over_two_replicas(
    idp: Idp,
    tmp_path: Path,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> None:
    """Completed calls match the rates by tenant, caller and tool within 1 %."""
    limits = {
        "requests_per_second": CALLER,
        "burst": int(CALLER * PAUSE_S),
        "tenant": {"requests_per_second": TENANT, "burst": int(TENANT * PAUSE_S)},
        "tools": {"rent": {"requests_per_second": TOOL, "burst": int(TOOL * PAUSE_S)}},
    }
    with limited_replicas(
        idp, tmp_path, postgres_server, postgres_template, valkey_server, **limits
    ) as pair:
        async with pair.customers() as customers:
            by = {
                ("sell-acme", TENANT): RepeatingCallers(customers, "acme", 4, "sell"),
                ("sell-globex", CALLER): RepeatingCallers(customers, "globex", 1, "sell"),
                ("rent-globex", TOOL): RepeatingCallers(customers, "globex", 2, "rent"),
            }
            pressing = [
                asyncio.create_task(callers.press(number))
                for callers in by.values()
                for number in range(8)
            ]
            begun = [await callers.empty(0.0) for callers in by.values()]
            ended = [
                await callers.empty(since + WINDOW_S)
                for callers, since in zip(by.values(), begun, strict=True)
            ]
            await end_tasks(pressing)
        for (word, rate), since, until in zip(by, begun, ended, strict=True):
            done = pair.done(word, since, until)
            assert done == pytest.approx(rate * (until - since), rel=0.01), word


async def end_tasks(tasks: list["asyncio.Task[None]"]) -> None:
    """End them; what one of them found wrong is raised."""
    failed = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in failed:
        task.result()


async def test_a_flood_leaves_another_tenant_its_calls(
    idp: Idp,
    tmp_path: Path,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> None:
    """A few connections of another tenant complete at least 90 % of their usual calls."""
    limits = {
        "concurrency": CONCURRENCY,
        "queue": FLOOD_CALLS,
        "queue_s": 30,
        "tenant": {"concurrency": 0},
    }
    with limited_replicas(
        idp, tmp_path, postgres_server, postgres_template, valkey_server, **limits
    ) as pair:
        async with pair.customers() as customers:

            async def press(tenant: str, seconds: float, person: int) -> None:
                while True:
                    arguments = {"seconds": seconds}
                    await customers.call(0, tenant, f"p{person}", "work", arguments)

            async def measured() -> int:
                await asyncio.sleep(3 * WORK_S)  # until all are under way
                since = time.time()
                await asyncio.sleep(SHARE_S)
                return pair.done("work-acme", since, time.time())

            async def alone_and_together() -> tuple[int, int]:
                calm = [asyncio.create_task(press("acme", WORK_S, n)) for n in range(CALM_CALLS)]
                alone = await measured()
                flood = [
                    asyncio.create_task(press("globex", WORK_S * (1 + n / FLOOD_CALLS), n))
                    for n in range(FLOOD_CALLS)
                ]
                together = await measured()
                await end_tasks([*calm, *flood])
                return alone, together

            for person in range(FLOOD_CALLS):
                customers.token("globex", f"p{person}")
            # What else the machine does may fall into the second half only.
            counts = [await alone_and_together()]
            while not is_a_fair_share(*counts[-1]) and len(counts) < MAX_TRIES:
                counts.append(await alone_and_together())

    assert is_a_fair_share(*counts[-1]), counts


def is_a_fair_share(alone: int, together: int) -> bool:
    """Return whether the calm caller completed its calls, and nearly as many beside the flood."""
    return alone >= 0.7 * CALM_CALLS * SHARE_S / WORK_S and together >= 0.9 * alone
