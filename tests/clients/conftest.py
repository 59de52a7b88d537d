"""The official Python client, and two `gatepost dev`: as it comes, and with tools of every kind."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import anyio
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from pydantic import FileUrl

from tests.architecture.source import ROOT
from tests.support import commands
from tests.support.commands import Gatepost
from tests.support.programs import BrowserUser
from tests.support.sign_in import RecordedExchanges, Wallet, provider_for, sdk_client

FIXTURES = (ROOT / "tests/mcp/fixture_tools.py", ROOT / "tests/support/client_requests.py")
SHORT_POLLS = """
from gatepost import Pack
from gatepost.runtime import services

pack = Pack("short_polls")
made = services.TaskLimits
services.TaskLimits = lambda **limits: made(**{**limits, "poll_interval_s": 0.1})
"""
"""In the server alone: it asks clients to poll a task ten times a second."""


class GatedEndpoint(NamedTuple):
    """An endpoint with something of every kind behind its gate, and a key to it."""

    url: str
    token: str
    folder: Path
    """Where its state is, for further tokens."""

    @property
    def bearer(self) -> dict[str, str]:
        """Return the header that opens the gate."""
        return {"Authorization": f"Bearer {self.token}"}


@pytest.fixture(scope="package")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatepost]:
    with commands.dev(tmp_path_factory.mktemp("dev")) as running:
        yield running


@pytest.fixture(scope="package")
def gated_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedEndpoint]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "short_polls.py").write_text(SHORT_POLLS, encoding="utf-8")
    files = (*FIXTURES, folder / "short_polls.py")
    tools = [argument for file in files for argument in ("--tools", str(file))]
    with commands.dev(folder, *tools) as running:
        yield GatedEndpoint(running.url, commands.token(folder, "--tenant", "acme"), folder)


ANSWER_WITHIN_S = 60


async def run_python_client(
    url: str, person: BrowserUser, *, mode: str, csv: dict[str, Any]
) -> dict[str, Any]:
    """Sign in, list, call, step up, refresh; answers the report that the other clients answer."""
    wallet, wire = Wallet(), RecordedExchanges()
    auth = provider_for(url, wallet, person)
    with anyio.fail_after(ANSWER_WITHIN_S):
        async with sdk_client(url, auth, mode, wire) as client:
            report = await _use(client, csv)
            # The SDK refreshes by the clock alone: make it believe that the token has run out.
            auth.context.token_expiry_time = 1.0
            report["after_refresh"] = await _text(client, "echo", {"text": "again"})
    assert wallet.tokens is not None
    return {
        **report,
        "callbacks": len(person.asked),
        "granted": wallet.tokens.scope,
        "exchanges": wire.exchanges,
    }


async def _use(client: Client, csv: dict[str, Any]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append({"progress": progress, "total": total})

    report: dict[str, Any] = {
        "protocol": client.protocol_version,
        "tools": [tool.name for tool in (await client.list_tools()).tools],
        "echo": await _text(client, "echo", {"text": "grüß Gott"}),
        "whoami": (await client.call_tool("whoami", {})).structured_content,
    }
    arguments = {"steps": 3, "delay_s": 0.02}
    await client.call_tool("count_slowly", arguments, progress_callback=step)
    report["progress"] = steps
    report["saved"] = await _text(client, "save_csv", csv)
    return report


async def _text(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return "".join(getattr(block, "text", "") for block in result.content)


CSV = {
    "filename": "invoices.csv",
    "rows": [{"date": "2026-07-28", "amount": 12.5, "vendor": "Grüßner & Söhne"}],
}


FORM = {"username": "ann", "email": "ann@example.com"}


Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers what a task asks for: a method and its parameters to its result."""


FINAL_STATUSES = {"completed", "failed", "cancelled"}


class Started(types.Result):
    """The result of a call that goes on as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: int | None = None


class TaskMessage(types.Result):
    """What `tasks/get` shows."""

    status: str
    status_message: str | None = None
    # "inputRequests" itself is a word that the SDK keeps to itself in the results of calls alone.
    input_requests: dict[str, dict[str, Any]] | None = None
    result: dict[str, Any] | None = None


class AboutTask(types.RequestParams):
    task_id: str


class Answers(AboutTask):
    input_responses: dict[str, Any]


class GetTask(types.Request[AboutTask, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param: ClassVar[str | None] = "taskId"


class UpdateTask(types.Request[Answers, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param: ClassVar[str | None] = "taskId"


class CancelTask(types.Request[AboutTask, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param: ClassVar[str | None] = "taskId"


class Tasks(ClientExtension):
    """Waits for a task as if it were the call, and answers what it asks for meanwhile."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, answer: Answer, *, patient: bool = True) -> None:
        self.answer, self.patient = answer, patient
        self.statuses: list[str] = []
        """Every status that was seen, in order."""

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Started, resolve=self.resolve)]

    async def resolve(self, started: Started, context: ClaimContext) -> types.CallToolResult:
        about = AboutTask(task_id=started.task_id)
        if not self.patient:
            await context.session.send_request(CancelTask(params=about), types.EmptyResult)
        answered: set[str] = set()
        while True:
            task = await context.session.send_request(GetTask(params=about), TaskMessage)
            self.statuses.append(task.status)
            if task.status in FINAL_STATUSES:
                break
            asked = {k: v for k, v in (task.input_requests or {}).items() if k not in answered}
            if asked:
                given = {
                    key: await self.answer(request["method"], request["params"])
                    for key, request in asked.items()
                }
                answered |= given.keys()
                update = Answers(task_id=started.task_id, input_responses=given)
                await context.session.send_request(UpdateTask(params=update), types.EmptyResult)
            # The server says how often it wants to be asked.
            await anyio.sleep((started.poll_interval_ms or 1000) / 1000)
        if task.result is not None:
            return types.CallToolResult.model_validate(task.result)
        said = types.TextContent(type="text", text=task.status_message or task.status)
        return types.CallToolResult(content=[said], is_error=True)


class ClientAnswers:
    """Answers whatever is asked, and remembers what was."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """The messages of every elicitation, and the address where one had it."""
        self.logged: list[tuple[str, Any]] = []
        """Level and data of every log message."""
        self.heard: list[Any] = []
        """Every notification."""
        self.steps: list[float] = []
        """Every progress."""
        self._moved = anyio.Event()

    async def filled_in(
        self, context: object, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        if isinstance(params, types.ElicitRequestURLParams):
            self.asked.append(params.url)
            return types.ElicitResult(action="accept")
        self.asked.append(params.message)
        content = {name: self.value(name) for name in params.requested_schema["properties"]}
        return types.ElicitResult(action="accept", content=content)

    @staticmethod
    def value(name: str) -> Any:
        """Return the value for a field of that name."""
        return {**FORM, "confirm": True, "ok": True}.get(name, name.title())

    async def sampled(
        self, context: object, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="Grüß Gott")
        return types.CreateMessageResult(role="assistant", model="m-1", content=content)

    async def folders(self, context: object) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///work"))])

    async def logs(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append((params.level, params.data))

    async def hears(self, message: Any) -> None:
        self.heard.append(message)
        self._moved.set()

    async def until(self, kind: type) -> None:
        """Return once a notification of that kind has come."""
        while not any(isinstance(message, kind) for message in self.heard):
            self._moved = anyio.Event()
            await self._moved.wait()

    async def step(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append(progress)

    async def within_task(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer what a task asks."""
        assert method == "elicitation/create"
        asked = types.ElicitRequestFormParams.model_validate(params)
        answer = await self.filled_in(None, asked)
        return answer.model_dump(by_alias=True, exclude_none=True)

    def tasks(self, *, patient: bool = True) -> Tasks:
        """Return the tasks extension with the answers of this client."""
        return Tasks(self.within_task, patient=patient)
