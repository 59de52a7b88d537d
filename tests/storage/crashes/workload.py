"""
What one process does until it is killed: a call, its approval, its effect, its answer.

It is a whole server: real stores, the real stages, the real socket; a client and an approver live
in the same process, so that a kill takes everything away at once. What it was told for certain it
writes to a pipe, which outlives it.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec
import sqlalchemy
import uvloop
from sqlalchemy import event
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gatepost import CallContext, Pack
from gatepost.app import challenge_of, mcp
from gatepost.audit.checkpoints import public_keys
from gatepost.audit.verify import verify
from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.http.deadlines import Deadlines
from gatepost.http.scope import REQUEST_ID
from gatepost.policy.approvals import waiting_call
from gatepost.policy.approvals.approval_request import ApprovalRequest, Undecidable
from gatepost.policy.idempotency import execution
from gatepost.rest.exchange import RestExchange, RestLimits
from gatepost.rest.routes import RestRoutes
from gatepost.runtime.http_server import bind, listen_config
from gatepost.runtime.services import Services
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditRow
from gatepost.storage.errors import StoreUnavailable
from gatepost_authz.middleware import CALLER
from gatepost_authz.protected_resource import Resource, SiblingPaths
from tests.support.endpoint import META, VERSION, a_caller, message

EFFECTS = Path("effects")
TENANT = "acme"
APPROVER = a_caller(subject="boss", roles=frozenset({"approver"}))
LOOK_EVERY_S = 0.02
"""More often, and most of what is killed would be a look."""
MAX_TRIES = 400

pack = Pack("crashes")


@pack.tool(timeout_s=10)
async def take_effect(ctx: CallContext, key: str) -> str:
    """Write a line that outlives this process; a second line for a key breaks the promise."""
    line = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(line, f"{key}\n".encode())
        os.fsync(line)
    finally:
        os.close(line)
    return f"done {key}"


class WorkOrder(msgspec.Struct, frozen=True):
    """What a process is to do."""

    number: int
    keys: list[str]
    """Keys that begin with `r` are sent as idempotency keys; others differ by arguments alone."""
    way: Literal["mcp", "rest"]
    """A call that is held, or one that comes again and again."""
    statement: int = 0
    """At which statement of its database it dies; 0: not by itself."""
    after: bool = False
    """Whether that statement was carried out before."""


class CrashWorker:
    """One process's server, its client, and its approver."""

    def __init__(
        self, config: Config, services: Services, order: WorkOrder, report_descriptor: int
    ) -> None:
        self.order, self.services, self._report_descriptor = order, services, report_descriptor
        self._numbers = count(1)
        resource, challenge = Resource(config.resource), challenge_of(config)
        self._endpoint = mcp(config, services, resource, challenge)
        exchange = RestExchange(
            challenge=challenge,
            resource_of=SiblingPaths(resource),
            limits=RestLimits(),
            requests=services.runner.requests,
        )
        self._routes = RestRoutes(services.runner, services.registry, exchange)
        self._sock = bind("127.0.0.1", 0)
        self._serves = listen_config(self._app, Deadlines())
        self._serves.load()

    async def run(self) -> None:
        """Do the work for each key; return when every call was answered."""
        loop, state = asyncio.get_running_loop(), ServerState()
        server = await loop.create_server(
            lambda: self._serves.http_protocol_class(
                config=self._serves, server_state=state, app_state={}
            ),
            sock=self._sock,
        )
        self.tell("ready")
        approver = asyncio.create_task(self._approve())
        try:
            await asyncio.gather(*map(self._call, self.order.keys))
        finally:
            approver.cancel()
            server.close()

    def tell(self, what: str, **more: Any) -> None:
        """Record what is certain now; a line is written whole or not at all."""
        line = json.dumps({"what": what, "number": self.order.number, **more}) + "\n"
        os.write(self._report_descriptor, line.encode())

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        scope[CALLER] = a_caller()
        scope[REQUEST_ID] = headers[b"x-number"].decode()
        if scope["path"] == "/mcp":
            await self._endpoint(scope, receive, send)
        else:
            scope["path_params"] = {"name": "take_effect"}
            await self._routes.call_tool(scope, receive, send)

    async def _call(self, key: str) -> None:
        ask = self._held if self.order.way == "mcp" else self._repeated
        await ask(key, [("Idempotency-Key", key)] if key.startswith("r") else [])

    async def _held(self, key: str, marks: list[tuple[str, str]]) -> None:
        meta = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}}
        params = {"name": "take_effect", "arguments": {"key": key}, "_meta": meta}
        headers = [
            ("MCP-Protocol-Version", VERSION),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "take_effect"),
            *marks,
        ]
        request_id, _, body = await self._post("/mcp", message("tools/call", params), headers)
        events = [line for line in body.splitlines() if line.startswith(b"data: ")]
        result = json.loads(events[-1][6:] if events else body)["result"]
        done = not result["isError"]
        self.tell("answered", key=key, id=request_id, done=done, text=result["content"][0]["text"])

    async def _repeated(self, key: str, marks: list[tuple[str, str]]) -> None:
        for _ in range(MAX_TRIES):
            body = json.dumps({"key": key}).encode()
            request_id, status, said = await self._post("/tool/take_effect/call", body, marks)
            if status != 503:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self.tell("answered", key=key, id=request_id, done=status == 200, text=said.decode())

    async def _post(
        self, path: str, body: bytes, headers: list[tuple[str, str]]
    ) -> tuple[str, int, bytes]:
        request_id = f"{self.order.number}-{os.getpid()}-{next(self._numbers)}"
        fields = [
            ("Host", "localhost"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            ("X-Number", request_id),
            *headers,
        ]
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in fields) + "\r\n"
        reader, writer = await asyncio.open_connection(*self._sock.getsockname())
        async with aclosing(_ClosingWorker(writer)):
            writer.write(head.encode() + body)
            answer = await reader.read(-1)
        first, _, rest = answer.partition(b"\r\n\r\n")
        return request_id, int(first.split()[1]), rest

    async def _approve(self) -> None:
        service = self.services.approvals
        while True:
            with suppress(StoreUnavailable):
                for request in await service.waiting(TENANT):
                    # Another approver may have decided first, in this process or another.
                    with suppress(Undecidable):
                        await service.approve(TENANT, request.id, APPROVER)
                        self.tell("approved", id=request.id)
            await asyncio.sleep(LOOK_EVERY_S)


class _ClosingWorker:
    """A connection's writer, for `aclosing`."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def aclose(self) -> None:
        self._writer.close()


def shorten_intervals() -> None:
    """Shorten leases and polls, so that the process after a killed one does not wait."""
    execution.LEASE_S, execution.RENEW_S, execution.POLL_S = 0.6, 0.1, 0.02
    waiting_call.POLL_S = 0.02


def work(
    config: Config,
    loaded_packs: LoadedPacks,
    ring: KeyRing,
    order: WorkOrder,
    report_descriptor: int,
) -> None:
    """Run the workload of one process; return only if the process is not killed."""
    shorten_intervals()

    async def main() -> None:
        async with opened(config, loaded_packs, ring) as services:
            statements = _count(order)
            worker = CrashWorker(config, services, order, report_descriptor)
            await worker.run()
            worker.tell("ended", statements=next(statements) - 1)

    uvloop.run(main())


def _count(order: WorkOrder) -> Iterator[int]:
    """Count statements from now on, and die at the one that is ordered."""
    numbers = count(1)

    def step(*_: Any) -> None:
        if next(numbers) == order.statement:
            os.kill(os.getpid(), signal.SIGKILL)

    moment = "after_cursor_execute" if order.after else "before_cursor_execute"
    event.listen(sqlalchemy.Engine, moment, step)
    return numbers


PAGE = 500
RunReports = Sequence[Mapping[str, Any]]
"""What processes knew for certain, in their own words."""


async def broken_promises(services: Services, reports: RunReports) -> list[str]:
    """Return each broken promise as a sentence; *reports* has all since the stores exist."""
    effects = _effects()
    requests = await _requests(services)
    rows = await _rows(services)
    return [
        *_once_for_each_key(effects),
        *_once_for_each_approval(effects, requests),
        *_answered(reports, effects, rows),
        *_decided(reports, requests, rows),
        *_on_record(requests, rows),
        *await _chained(services),
    ]


def _effects() -> Counter[str]:
    return Counter(EFFECTS.read_text().split() if EFFECTS.exists() else ())


def _on_record(requests: Mapping[str, ApprovalRequest], rows: Sequence[AuditRow]) -> list[str]:
    on_record = _approved_on_record(rows)
    return [
        f"the approval {name} counts, and no record says who gave it"
        for name, one in requests.items()
        if one.approvals_given >= one.needed and name not in on_record
    ]


def _once_for_each_key(effects: Counter[str]) -> list[str]:
    return [f"{key} took effect {n} times" for key, n in effects.items() if key[0] == "r" and n > 1]


def _once_for_each_approval(
    effects: Counter[str], requests: Mapping[str, ApprovalRequest]
) -> list[str]:
    approved: Counter[str] = Counter()
    for request in requests.values():
        if request.approvals_given >= request.needed:
            approved[json.loads(request.arguments)["key"]] += 1
    return [
        f"{key} took effect {n} times with {approved[key]} approvals"
        for key, n in effects.items()
        if n > approved[key]
    ]


def _answered(reports: RunReports, effects: Counter[str], rows: Sequence[AuditRow]) -> list[str]:
    calls = {json.loads(row.body).get("request_id"): row for row in rows if row.kind == "call"}
    problems = []
    for one in reports:
        if one["what"] != "answered":
            continue
        row = calls.get(one["id"])
        if row is None:
            problems.append(f"the call {one['id']} was answered and is not on record: {one}")
        elif one["done"] is not (row.outcome == "success"):
            problems.append(f"the call {one['id']} is on record as {row.outcome}: {one}")
        if one["done"] and not effects[one["key"]]:
            problems.append(f"{one['key']} was answered as done and took no effect")
    return problems


def _decided(
    reports: RunReports, requests: Mapping[str, ApprovalRequest], rows: Sequence[AuditRow]
) -> list[str]:
    on_record = _approved_on_record(rows)
    problems = []
    for one in reports:
        if one["what"] != "approved":
            continue
        if one["id"] not in requests:
            problems.append(f"the approval {one['id']} was acknowledged and is gone")
        if one["id"] not in on_record:
            problems.append(f"the approval {one['id']} was acknowledged and is not on record")
    return problems


def _approved_on_record(rows: Sequence[AuditRow]) -> set[str]:
    return {
        json.loads(row.body)["approval"]
        for row in rows
        if row.kind == "approval" and row.outcome == "approved"
    }


async def _chained(services: Services) -> list[str]:
    ring = services.keyring
    found = await verify(services.audit_writer.store, TENANT, public_keys(ring), ring)
    return [] if found.bad_number is None else [f"record {found.bad_number}: {found.problem}"]


async def _rows(services: Services) -> list[AuditRow]:
    tenant_log, rows = services.audit_writer.store.tenant_log(TENANT), list[AuditRow]()
    for writer in await tenant_log.writers():
        after = 0
        while page := await tenant_log.chain(writer).rows(after, PAGE):
            after = page[-1].number
            rows += page
    return rows


async def _requests(services: Services) -> dict[str, ApprovalRequest]:
    service = services.approvals
    found = await service.waiting(TENANT)
    page = await service.history(TENANT, max_requests=PAGE)
    while page:
        found += page
        page = await service.history(TENANT, before=page[-1], max_requests=PAGE)
    return {request.id: request for request in found}
