"""The official Python client, and what every client of these tests must show."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qs, parse_qsl, urlsplit

import anyio
import httpx2
from mcp import types
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, FileUrl

from tests.support.browser import BrowserUser

REDIRECT = "http://127.0.0.1:33419/callback"
ANSWER_WITHIN_S = 60


class Wallet:
    """What a client must remember between connections; the SDK calls it a TokenStorage."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class RecordedExchanges:
    """Every request as it went over the wire, secrets left out."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []

    async def record(self, response: httpx2.Response) -> None:
        request = response.request
        form: dict[str, str] = {}
        if request.headers.get("content-type", "").startswith("application/x-www-form"):
            form = dict(parse_qsl(request.content.decode()))
        self.exchanges.append(
            {
                "method": request.method,
                "url": str(request.url),
                "status": response.status_code,
                "grant_type": form.get("grant_type"),
                "resource": form.get("resource"),
                "challenge": response.headers.get("www-authenticate"),
            }
        )


def provider_for(url: str, wallet: Wallet, person: BrowserUser) -> OAuthClientProvider:
    """The SDK's OAuth flow, with *person* at its browser."""
    back: list[str] = []

    async def open_browser(authorize: str) -> None:
        back.append(await anyio.to_thread.run_sync(person.follow, authorize))

    async def callback() -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(back.pop()).query).items()}
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="Gatepost's Python test client",
            redirect_uris=[AnyUrl(REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        ),
        wallet,
        redirect_handler=open_browser,
        callback_handler=callback,
    )


@asynccontextmanager
async def connected(
    url: str, auth: httpx2.Auth | None, mode: str, wire: RecordedExchanges
) -> AsyncIterator[Client]:
    """A client that has settled its era with the server at *url*."""
    hooks = {"response": [wire.record]}
    async with (
        httpx2.AsyncClient(auth=auth, event_hooks=hooks, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def walk_python(
    url: str, person: BrowserUser, *, mode: str, csv: dict[str, Any]
) -> dict[str, Any]:
    """Sign in, list, call, step up, refresh; answers the report that the other clients answer."""
    wallet, wire = Wallet(), RecordedExchanges()
    auth = provider_for(url, wallet, person)
    with anyio.fail_after(ANSWER_WITHIN_S):
        async with connected(url, auth, mode, wire) as client:
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
DEMO_TOOLS = {"echo", "whoami", "save_csv", "delete_csv", "count_slowly"}


def expect_discovery(report: dict[str, Any], url: str) -> None:
    """The client was refused first, followed the challenge, and registered by itself."""
    first, metadata = report["exchanges"][:2]
    assert (first["method"], first["url"], first["status"]) == ("POST", url, 401)
    assert first["challenge"].startswith('Bearer resource_metadata="')
    assert first["challenge"].split('"')[1] == metadata["url"]
    assert metadata["status"] == 200
    assert [each["status"] for each in registrations(report)] == [201]


def registrations(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The POSTs that are neither calls nor token requests."""
    return [
        each
        for each in report["exchanges"]
        if each["method"] == "POST"
        and not each["grant_type"]
        and urlsplit(each["url"]).path.rsplit("/", 1)[-1] in {"register", "reg"}
    ]


def expect_grants(report: dict[str, Any], person: BrowserUser, resource: str) -> None:
    """PKCE with S256 and `resource` went along with everything, and a refresh token was used."""
    for asked in person.asked:
        assert asked["code_challenge_method"] == "S256"
        assert asked["resource"] == resource
    tokens = [each for each in report["exchanges"] if each.get("grant_type")]
    assert {each["status"] for each in tokens} == {200}
    assert {each["resource"] for each in tokens} == {resource}
    assert tokens[-1]["grant_type"] == "refresh_token"
    assert [each["grant_type"] for each in tokens].count("authorization_code") == len(person.asked)


def expect_calls(report: dict[str, Any], *, tenant: str) -> None:
    """The tools are there, they answer, and they know who called."""
    assert set(report["tools"]) >= DEMO_TOOLS
    assert report["echo"] == "grüß Gott"
    assert tenant in str(report["whoami"])
    assert [step["progress"] for step in report["progress"]] == [1, 2, 3]
    assert "invoices.csv" in report["saved"]
    assert report["after_refresh"] == "again"


def expect_step_up(report: dict[str, Any], person: BrowserUser, url: str) -> None:
    """Saving was refused with the scope it needs, and the person was asked for it once more."""
    refused = [each for each in report["exchanges"] if each["status"] == 403]
    assert {each["url"] for each in refused} == {url}, refused
    for each in refused:
        assert 'error="insufficient_scope"' in each["challenge"]
        scope = re.search(r'scope="([^"]*)"', each["challenge"])
        assert scope is not None
        assert "files:write" in scope[1].split()
    assert len(person.asked) == 2
    assert "files:write" in person.asked[-1]["scope"].split()


def expect_no_step_up(report: dict[str, Any], person: BrowserUser) -> None:
    """A client that asked for everything at first was never refused, nor its person asked again."""
    assert 403 not in {each["status"] for each in report["exchanges"]}
    assert len(person.asked) == 1


def expect_all(
    report: dict[str, Any], person: BrowserUser, url: str, *, tenant: str, steps_up: bool = True
) -> None:
    """The whole journey."""
    for exchange in report["exchanges"]:
        exchange.setdefault("grant_type", None)
    expect_discovery(report, url)
    expect_grants(report, person, url)
    expect_calls(report, tenant=tenant)
    if steps_up:
        expect_step_up(report, person, url)
    else:
        expect_no_step_up(report, person)
    assert "files:write" in report["granted"].split()


FORM = {"username": "ann", "email": "ann@example.com"}


Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers what a task asks for: a method and its parameters to its result."""
DONE = {"completed", "failed", "cancelled"}


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
            if task.status in DONE:
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
        """What goes into a field of that name."""
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
        """The answer to what a task asks."""
        assert method == "elicitation/create"
        asked = types.ElicitRequestFormParams.model_validate(params)
        answer = await self.filled_in(None, asked)
        return answer.model_dump(by_alias=True, exclude_none=True)

    def tasks(self, *, patient: bool = True) -> Tasks:
        """The tasks extension with the answers of this client."""
        return Tasks(self.within_task, patient=patient)
