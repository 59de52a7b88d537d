"""A script that reaches a limit ends with a sentence, and other callers are served meanwhile."""

import re
import threading
from collections.abc import Iterator

import pytest

from tests.packs.conftest import PackCaller
from tests.packs.scripts.test_process import children_of, is_alive
from tests.packs.scripts.test_rejected import ScriptServer, agent, open_script_server
from tests.support.client import ToolResult
from tests.support.commands import running
from tests.support.measuring import each, eventually

__all__ = ["agent"]  # a fixture

pytestmark = pytest.mark.requirement("P10")


@pytest.fixture(scope="module")
def script_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    """Yield a server that runs any code long enough to reach each limit but those of time."""
    folder = tmp_path_factory.mktemp("limits")
    with open_script_server(
        folder, exec="free", timeout_s=60.0, cpu_s=30, queue_per_tenant=1
    ) as script_server:
        yield script_server


@pytest.fixture(scope="module")
def short_limit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    """Yield a server that runs any code for a short time only."""
    folder = tmp_path_factory.mktemp("hasty")
    low = {"exec": "free", "timeout_s": 2.5, "cpu_s": 1}
    with open_script_server(folder, **low) as script_server:
        yield script_server


def in_function(*lines: str) -> str:
    return "def f():\n" + "".join(f"  {line}\n" for line in lines) + "f()"


BUSY_SCRIPT = in_function("x = 3", "for i in range(60): x = x * x")
SLOW_CALL = "call('count_slowly', steps = 9, delay_s = 9)"
LONG_LOOP = "for i in range(1000000000): pass"
GROWING_LOOP = "for i in range(1000000): {}"
SCRIPT_ENDINGS = [
    ("a long loop", in_function(LONG_LOOP), "validation", "max_steps"),
    (
        "nested loops",
        in_function("for a in range(10**5 * 10 // 10): pass"),
        "validation",
        "Parse|failed",
    ),
    (
        "a loop over a loop",
        in_function("for a in range(1000000):", "  for b in range(1000000): pass"),
        "validation",
        "max_steps",
    ),
    (
        "a list that doubles",
        in_function("x = [1]", GROWING_LOOP.format("x = x + x")),
        "validation",
        "memory_mb",
    ),
    (
        "a text that doubles",
        in_function("x = 'a'", GROWING_LOOP.format("x = x + x")),
        "validation",
        "memory_mb",
    ),
    (
        "many small things",
        in_function("x = []", GROWING_LOOP.format("x.append([i] * 9)")),
        "validation",
        "memory",
    ),
    (
        "a dict that grows",
        in_function("x = {}", GROWING_LOOP.format("x[i] = str(i) * 9")),
        "validation",
        "memory",
    ),
    ("a range as a list", "list(range(1000000000))", "validation", "memory_mb"),
    ("a repeated text", "'x' * 2000000000", "validation", "memory_mb"),
    ("a repeated list", "[0] * 2000000000", "validation", "memory_mb"),
    ("a text that is too long", "'x' * (1 << 40)", "validation", "too big"),
    ("a huge shift", "1 << 1000000000", "validation", "overflow"),
    (
        "calls without end",
        "def f(n):\n  return f(n - 1) + f(n - 1) if n else 0\nf(100)",
        "timeout|validation",
        "cpu_s|max_steps|timeout_s",
    ),
    ("recursion", "def f(n):\n  return f(n + 1)\nf(0)", "validation", "overflow|recursion"),
    (
        "a flood of lines",
        in_function("for i in range(1000000): print('x' * 1000)"),
        "validation",
        "output",
    ),
    ("one huge line", in_function("print('x' * 10000000)"), "validation", "max_output_bytes"),
    ("a huge value", "'x' * 10000000", "validation", "max_output_bytes"),
    (
        "data nested deeply",
        in_function("a = []", GROWING_LOOP.format("a = [a]"), "return a"),
        "validation",
        "levels",
    ),
    (
        "data nested a little",
        in_function("a = []", "for i in range(100): a = [a]", "return a"),
        "validation",
        "levels",
    ),
    (
        "a deep text of data",
        in_function("a = []", GROWING_LOOP.format("a = [a]"), "return str(a)"),
        "",
        "too deeply",
    ),
    (
        "data that holds itself",
        in_function("a = []", "a.append(a)", "return a"),
        "validation",
        "Cycle",
    ),
    ("brackets", "[" * 20_000 + "]" * 20_000, "validation", "too deeply"),
    ("parentheses", "(" * 40_000, "validation", "Parse|too deeply"),
    ("calls of tools", "[call('fs_list') for i in range(100)]", "validation", "max_calls"),
    ("a value that is no data", "lambda: 1", "validation", "JSON"),
    (
        "a number of many digits",
        in_function("x = 3", "for i in range(16): x = x * x", "return x"),
        "",
        "JSON",
    ),
    ("a failure of its own", "fail('x' * 100000)", "validation", "fail: x"),
    (
        "a tool's answer that is too deep to send",
        "call('echo', text = [[1]])",
        "validation",
        "text",
    ),
]


@each(("code", "kind", "says"), [pytest.param(*row[1:], id=row[0]) for row in SCRIPT_ENDINGS])
def test_a_script_that_reaches_a_limit_fails_with_the_limits_name(
    script_server: ScriptServer, code: str, kind: str, says: str
) -> None:
    """The limit and the setting that moves it; bounded, whatever the script said."""
    reply = script_server.agent("rest").call("script_exec", code=code)

    assert reply.failure is not None
    assert re.search(says, reply.failure), reply.failure
    assert re.fullmatch(kind or ".*", reply.kind or "")
    assert len(reply.failure) < 12_000


@pytest.mark.parametrize(
    ("code", "says"),
    [
        pytest.param(BUSY_SCRIPT, "cpu_s|timeout_s", id="busy"),
        pytest.param(SLOW_CALL, "timeout_s", id="idle"),
    ],
)
def test_the_time_of_a_script_is_bounded(
    short_limit_server: ScriptServer, code: str, says: str
) -> None:
    """Both its processor time and its duration have a limit."""
    reply = short_limit_server.agent("rest").call("script_exec", code=code)

    assert re.search(says, str(reply.failure))
    assert reply.kind == "timeout"


def test_a_failure_shows_what_the_script_had_printed(script_server: ScriptServer) -> None:
    """The author of the script sees how far it came."""
    code = in_function("print('so far')", LONG_LOOP)

    reply = script_server.agent("mcp").call("script_exec", code=code)

    assert reply.failure is not None
    assert reply.failure.endswith("It had printed:\nso far")


def started_call(
    agent: PackCaller, reply: list[ToolResult], code: str = SLOW_CALL
) -> threading.Thread:
    def call() -> None:
        reply.append(agent.call("script_exec", code=code))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_others_are_answered_while_scripts_run(script_server: ScriptServer) -> None:
    """A tenant holds as many turns as it may, one waits, one is refused; others have theirs."""
    reply: list[ToolResult] = []
    go = script_server.folder / "go"
    code = f"call('held', until = '{go}')"
    threads = [started_call(script_server.agent("rest", "greedy"), reply, code) for _ in range(4)]
    try:
        # The one too many is refused at once.
        eventually(lambda: reply, within=30)
        other = script_server.agent("mcp")
        files = other.call("fs_list")
        script = other.call("script_exec", code="1 + 1")
        still_running = sum(thread.is_alive() for thread in threads)
    finally:
        go.touch()
    for thread in threads:
        thread.join(60)

    assert (reply[0].kind, "queue_per_tenant" in str(reply[0].failure)) == ("rate_limit", True)
    assert files.failure is None
    assert script.value == {"value": 2, "printed": ""}
    assert still_running == 3
    assert [answer.value["value"] for answer in reply[1:]] == ["let go"] * 3


def test_a_server_that_stops_leaves_no_process(script_server: ScriptServer) -> None:
    """Its scripts end after the drain time of their callers."""
    reply: list[ToolResult] = []
    with running("serve", "--config", "gatepost.toml", cwd=script_server.folder) as server:
        agent = script_server.elsewhere("rest", "stopped")
        thread = started_call(agent, reply)
        eventually(lambda: children_of(server.process.pid), within=30)
        (process,) = children_of(server.process.pid)
        server.stop()
        thread.join(30)

    assert not is_alive(process)
