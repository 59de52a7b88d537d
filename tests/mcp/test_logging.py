"""Log messages and progress of a modern request: on its own stream, at a bearable pace."""

import asyncio
import json
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.client import StreamClient
from gatepost.storage.rate_limits import LocalLimits
from gatepost.tools.context.client import LEVELS, MAX_LOG_BYTES
from tests.mcp import fixture_tools
from tests.support.client_requests import call_with_responses
from tests.support.endpoint import META, EndpointClient, Response
from tests.support.measuring import functions_called

pack = Pack("talkative")
LOG = META + "logLevel"


class UnserializableValue:
    """Something that JSON cannot say."""

    def __repr__(self) -> str:
        return "a secret"


@pack.tool()
async def speak(ctx: CallContext, fail: bool = False) -> str:
    """Say something at every level."""
    for level in LEVELS:
        await ctx.log(level, {"said": level}, logger="speaker")
    if fail:
        await ctx.log("info", None, logger=None)
        raise RuntimeError("not told")
    return "spoken"


@pack.tool()
async def shout(ctx: CallContext, times: int) -> str:
    """Say the same over and over."""
    for number in range(times):
        await ctx.log("error", number)
    return "hoarse"


@pack.tool()
async def count(ctx: CallContext, most: int) -> str:
    """Report each number."""
    for number in range(1, most + 1):
        await ctx.progress(number, most)
    return "counted"


@pack.tool()
async def say_odd(ctx: CallContext) -> str:
    """Say what cannot be said, and too much."""
    await ctx.log("error", {"odd": UnserializableValue()})
    await ctx.log("error", "x" * MAX_LOG_BYTES)
    return "said"


@pack.tool()
async def mislabel(ctx: CallContext) -> str:
    """Use a level that there is not."""
    await ctx.log("loud", "x")  # type: ignore[arg-type]
    return "never"


@pack.tool()
async def name_a_list(ctx: CallContext) -> str:
    """Name a logger that is no text."""
    await ctx.log("error", "x", logger=["hidden"])  # type: ignore[arg-type]
    return "never"


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient([*pack.tools.values(), *fixture_tools.question_pack.tools.values()])


async def call(
    client: EndpointClient, tool: str, level: Any = "debug", **arguments: Any
) -> Response:
    return await call_with_responses(
        client, tool, arguments, meta={LOG: level, "progressToken": "p"}
    )


def notifications_in(response: Response, method: str = "notifications/message") -> list[Any]:
    return [event["params"] for event in response.events if event.get("method") == method]


@pytest.mark.requirement("LG-01", "LG-02")
async def test_lg_02_logging_is_declared(client: EndpointClient) -> None:
    """Logging is deprecated (LG-01), and kept for tools and clients that use it."""
    discovered = await client.ask("server/discover")

    assert discovered.json["result"]["capabilities"]["logging"] == {}


@pytest.mark.requirement("LG-03")
@pytest.mark.parametrize("level", LEVELS)
async def test_lg_03_messages_at_or_above_the_level_come_before_the_result(
    client: EndpointClient, level: str
) -> None:
    """They are on the stream of the request that asked for them, in order."""
    response = await call(client, "speak", level)

    heard = LEVELS[LEVELS.index(level) :]  # type: ignore[arg-type]
    assert notifications_in(response) == [
        {"level": each, "data": {"said": each}, "logger": "speaker"} for each in heard
    ]
    assert "result" in response.events[-1]


@pytest.mark.requirement("LG-03")
async def test_lg_03_a_client_without_a_log_level_gets_no_log_messages(
    client: EndpointClient,
) -> None:
    """Such a client gets plain JSON."""
    silent = await call_with_responses(client, "speak")
    deaf = await client.ask(
        "tools/call", {"name": "speak"}, meta={LOG: "debug"}, accept="application/json"
    )
    fixture_tool = await call_with_responses(client, "test_logging_tool", capabilities={})

    for response in (silent, deaf, fixture_tool):
        assert response.json["result"]["isError"] is False


@pytest.mark.requirement("LG-04")
@pytest.mark.parametrize("level", ["loud", "", "INFO", "warn"])
async def test_lg_04_an_unknown_level_is_refused(client: EndpointClient, level: str) -> None:
    """The tool does not run."""
    assert (await call(client, "speak", level)).error == (400, -32602)


@pytest.mark.requirement("LG-06")
async def test_lg_06_log_messages_beyond_the_rate_are_dropped_and_counted(
    client: EndpointClient,
) -> None:
    """A last message tells the client how many were dropped."""
    response = await call(client, "shout", times=20_000)
    messages = notifications_in(response)

    assert 200 <= len(messages) < 10_000
    assert "messages were dropped" in messages[-1]["data"]
    assert messages[-1]["level"] == "warning"


@pytest.mark.requirement("LG-06")
async def test_lg_06_unencodable_and_too_large_log_data_is_replaced(client: EndpointClient) -> None:
    """The message shows the type of such a value, never its text."""
    odd_message, large = notifications_in(await call(client, "say_odd"))

    assert odd_message["data"] == {"odd": "<UnserializableValue>"}
    assert large["data"] == f"A message of {MAX_LOG_BYTES + 2} bytes was dropped: it is too large."


@pytest.mark.requirement("LG-06")
async def test_lg_06_an_unexpected_error_is_not_sent_as_a_log_message(
    client: EndpointClient,
) -> None:
    """The error's text stays in the server's own log."""
    response = await call(client, "speak", "debug", fail=True)

    assert b"not told" not in response.body
    assert notifications_in(response)[-1] == {"level": "info", "data": None}
    assert response.events[-1]["result"]["isError"] is True


async def test_a_logger_name_that_is_no_text_is_an_error(client: EndpointClient) -> None:
    """Only texts are searched for secrets."""
    response = await call(client, "name_a_list", "debug")

    assert response.json["result"]["isError"] is True
    assert "hidden" not in response.body.decode()


async def test_an_unknown_log_level_is_the_authors_error(client: EndpointClient) -> None:
    """The tool fails even where no client listens, so that its author sees the error early."""
    assert (await call_with_responses(client, "mislabel")).json["result"]["isError"] is True


@pytest.mark.requirement("PR-01", "PR-02", "PR-03")
async def test_pr_02_fast_reports_are_thinned_out_and_the_last_one_is_sent(
    client: EndpointClient,
) -> None:
    """Progress still grows up to 100 %, and no report comes after the result."""
    response = await call(client, "count", most=20_000)
    reports = [
        report["progress"] for report in notifications_in(response, "notifications/progress")
    ]

    assert 10 < len(reports) < 10_000
    assert reports == sorted(set(reports))
    assert reports[-1] == 20_000
    assert "result" in response.events[-1]


@pytest.mark.requirement("PR-02")
async def test_pr_02_a_delayed_report_comes_as_soon_as_the_limit_allows() -> None:
    """It does not wait for another report of the tool."""
    sent: list[Any] = []

    class LoggingClient:
        """Takes what is said."""

        def notified(self, message: bytes) -> bool:
            sent.append(json.loads(message)["params"]["progress"])
            return True

        async def notify(self, message: bytes) -> None:
            self.notified(message)

    wire: Any = LoggingClient()
    audience = StreamClient(wire, capabilities={}, token=b"1", level=None)  # type: ignore[arg-type]
    for number in range(100):
        await audience.progress(number, None, None)
    assert sent == list(range(10))
    later = audience._delayed_task
    assert later is not None
    await later

    assert sent[-1] == 99


@pytest.mark.requirement("PR-02", "LG-06")
def test_pr_02_the_progress_limit_is_a_burst_and_then_a_rate() -> None:
    """Unused reports do not add up beyond the burst."""
    now = [0.0]
    limit = LocalLimits.of_rate(10, 3, now[0])

    def take_results(times: int) -> list[bool]:
        return [limit.take(now[0]) for _ in range(times)]

    assert take_results(4) == [True, True, True, False]
    now[0] = 0.25
    assert take_results(3) == [True, True, False]
    now[0] = 60.0
    assert take_results(4) == [True, True, True, False]


@pytest.mark.requirement("LG-06")
def test_lg_06_a_dropped_log_message_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that logs in a loop does not keep the server busy with what no client gets."""
    monkeypatch.setattr("gatepost.mcp.client.MESSAGES_AT_ONCE", 1)
    monkeypatch.setattr("gatepost.mcp.client.MESSAGES_PER_S", 0.01)

    def searches(times: int) -> int:
        client = EndpointClient(pack.tools.values())
        called = functions_called(lambda: asyncio.run(call(client, "shout", times=times)))
        return sum(name.startswith(("Redactor.", "RedactedStream.")) for name in called)

    assert 0 < searches(200) == searches(100)
