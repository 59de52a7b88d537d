"""Each tool of scripts does and refuses what its page says, by both protocols."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.packs.conftest import PackCaller, by_mcp, by_rest
from tests.packs.scripts.test_rejected import ScriptServer, agent, open_script_server, script_server
from tests.support.client import modern_request

__all__ = ["agent", "script_server"]  # fixtures

PENDING_PATTERN = (
    "Error: Script '{}' is pending approval. An administrator must review and approve this script "
    "before it can be executed."
)


class ScriptStep(NamedTuple):
    """A call, and what comes of it."""

    tool: str
    arguments: dict[str, Any]
    answer: Any


def run_result(value: Any, printed: str = "") -> dict[str, Any]:
    return {"value": value, "printed": printed}


def run(name: str, function: str | None = None, *args: Any) -> tuple[str, dict[str, Any]]:
    return "script_run", {"name": name, "function": function, "args": list(args)}


LONDON = {"city": "London", "temp_c": 15.5, "condition": "Cloudy"}
WORKING_SCRIPTS = [
    ScriptStep(*run("weather", "get_weather", "London"), run_result(LONDON)),
    ScriptStep(*run("weather.star", "get_weather", "London"), run_result(LONDON)),
    ScriptStep("script_run", {"name": "weather"}, run_result([], "asked for 0\n")),
    ScriptStep(
        *run("weather", None, "Rome", "Oslo"), run_result(["Rome", "Oslo"], "asked for 2\n")
    ),
    *[
        ScriptStep(*run("values", "echo", value), run_result(value))
        for value in (None, True, 0, -1.5, 2**70, "", "ä😀\n", [], [[1]], {"a": {"b": [None]}})
    ],
    ScriptStep(*run("tools", None, "fs_write_text", {"path": "a", "text": "x"}), run_result("ok")),
    ScriptStep(*run("tools", "attempt", "fs_list", {}), run_result({"ok": []})),
]


def step_id(step: ScriptStep) -> Any:
    return pytest.param(step, id=f"{step.tool} {json.dumps(step.arguments)}"[:90])


@pytest.mark.requirement("P10", "P11")
@pytest.mark.parametrize("step", [step_id(step) for step in WORKING_SCRIPTS])
@by_mcp
def test_an_allowed_script_returns_its_value_and_its_output(
    agent: PackCaller, step: ScriptStep
) -> None:
    """Values are JSON both ways, and the script can call other tools."""
    reply = agent.call(step.tool, **step.arguments)

    assert (reply.failure, reply.value) == (None, step.answer)


FAILING_SCRIPTS = [
    ScriptStep(*run("unknown"), ("not_found", r"^Error: script 'unknown' not found$")),
    *[
        ScriptStep(*run(name), ("not_found", rf"^Error: script '{re.escape(name)}' not found$"))
        for name in ("../weather", "operator/weather", "", ".", "notes.txt", "a" * 65)
    ],
    ScriptStep(*run("exec-0123456789abcdef"), ("not_found", "not found")),
    ScriptStep(*run("a" * 201), ("validation", "name")),
    ScriptStep("script_run", {}, ("validation", "name")),
    ScriptStep("script_run", {"name": "weather", "args": "London"}, ("validation", "args")),
    ScriptStep(
        *run("new_feature"),
        ("denied", f"^{re.escape(PENDING_PATTERN.format('new_feature.star'))}$"),
    ),
    ScriptStep(
        *run("weather", "no"), ("not_found", r"no function 'no'. It has: get_weather, main\.")
    ),
    *[
        ScriptStep(*run("weather", name), ("not_found", "has no function"))
        for name in ("_hidden", "print", "call", "try_call", "get_weather ", "json.encode")
    ],
    ScriptStep(*run("broken"), ("validation", r"'broken.star' failed:\n(.|\n)*Parse error")),
    ScriptStep(*run("binary"), ("validation", "not UTF-8 text")),
    ScriptStep(*run("weather", "get_weather"), ("validation", "Missing parameter `city`")),
    ScriptStep(*run("weather", "get_weather", 1, 2, 3), ("validation", "positional")),
    ScriptStep(
        *run("tools", None, "no_tool", {}), ("validation", "There is no tool named 'no_tool'")
    ),
    ScriptStep(
        *run("tools", None, "fs_read_text", {"path": "no"}), ("validation", "does not exist")
    ),
    ScriptStep(*run("tools", None, "fs_read_text", {}), ("validation", "path")),
    ScriptStep("script_exec", {}, ("validation", "code")),
    ScriptStep(
        "script_exec", {"code": "#" * 100_001}, ("validation", r"packs\.scripts\.max_code_bytes")
    ),
    ScriptStep(
        "script_exec",
        {"code": "1 + 1"},
        ("denied", r"^Error: Script 'exec-[0-9a-f]{16}\.star' is pending approval\. An admin"),
    ),
]


@pytest.mark.requirement("P10", "P11")
@pytest.mark.parametrize("step", [step_id(step) for step in FAILING_SCRIPTS])
@by_rest
def test_a_failure_explains_the_problem_to_the_model(
    script_server: ScriptServer, agent: PackCaller, step: ScriptStep
) -> None:
    """Documented errors have the page's text; no failure shows a path of the machine."""
    kind, says = step.answer

    reply = agent.call(step.tool, **step.arguments)

    assert reply.failure is not None
    assert re.search(says, reply.failure), reply.failure
    assert reply.kind in (None, kind)
    assert str(script_server.folder) not in reply.failure


@pytest.mark.requirement("P10")
def test_the_text_of_a_result_is_its_value_and_the_printed_output(
    script_server: ScriptServer,
) -> None:
    """A value that is no text is written as JSON."""
    agent = script_server.agent("mcp")
    value = agent.call("script_run", name="weather", function="get_weather", args=["London"])
    text = agent.call("script_run", name="values", function="text")
    printed = agent.call("script_run", name="weather")

    assert json.loads(value.text) == LONDON
    assert text.text == "Cloudy"
    assert printed.text == "[]\n\nPrinted:\nasked for 0\n"


@pytest.mark.requirement("P10", "P11")
def test_scripts_are_listed_with_their_descriptions(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """The list has the operator's and the tenant's scripts; of one name it has the operator's."""
    script_server.put("mine", "def main(a, b = [1, 2]):\n  pass\n", agent.tenant)
    script_server.put("weather", "mine now", agent.tenant)

    listed = {script["name"]: script for script in agent.call("script_list").value["scripts"]}

    assert sorted(listed) == [
        "binary",
        "broken",
        "mine",
        "new_feature",
        "tools",
        "values",
        "weather",
    ]
    assert listed["weather"] == {
        "name": "weather",
        "description": "Current weather in a city.\nMade up, as it has no network.",
        "functions": [
            {"name": "get_weather", "parameters": ["city", 'units = "c"']},
            {"name": "main", "parameters": ["*cities"]},
        ],
        "approved": True,
        "source": "server",
    }
    assert listed["tools"]["description"] == "Calls other tools."
    assert listed["mine"]["functions"] == [{"name": "main", "parameters": ["a", "b = [1, 2]"]}]
    assert (listed["mine"]["source"], listed["mine"]["approved"]) == ("workspace", False)
    assert listed["new_feature"]["approved"] is False


@pytest.mark.requirement("P10", "P11")
def test_a_reload_lists_new_changed_and_removed_scripts(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """It compares with the last reload of this tenant; unapproved scripts wait from then on."""
    server = ["binary", "broken", "new_feature", "tools", "values", "weather"]
    first = agent.call("script_reload").value
    script_server.put("mine", "1", agent.tenant)
    second = agent.call("script_reload").value
    script_server.put("mine", "2", agent.tenant)
    third = agent.call("script_reload").value
    (script_server.folder / "workspaces" / agent.tenant / "scripts/mine.star").unlink()
    fourth = agent.call("script_reload").value
    waits = {"unapproved": ["new_feature"]}

    assert first == {"new": server, "changed": [], "gone": [], **waits}
    assert second == {
        "new": ["mine"],
        "changed": [],
        "gone": [],
        "unapproved": ["mine", "new_feature"],
    }
    assert third == {
        "new": [],
        "changed": ["mine"],
        "gone": [],
        "unapproved": ["mine", "new_feature"],
    }
    assert fourth == {"new": [], "changed": [], "gone": ["mine"], **waits}
    assert sorted(script_server.waiting(agent.tenant)) == ["mine", "new_feature"]


@pytest.mark.requirement("P10")
def test_a_script_can_call_only_the_tools_of_its_caller(script_server: ScriptServer) -> None:
    """A missing scope gets the challenge of a direct call."""
    poor = script_server.agent("mcp", scopes="scripts:run")
    token = poor.token

    answer = script_server.client.call(
        token, "script_run", {"name": "tools", "args": ["fs_list", {}]}
    )

    assert answer.status == 403
    assert 'scope="files:read"' in (answer.field("www-authenticate") or "")


CALLED_TOOLS = [
    ("asks", "denied", "needs a client that can do: elicitation"),
    ("answers_an_error", "internal", "not in this house"),
    ("no_such_tool", "not_found", "There is no tool named 'no_such_tool'"),
    ("fs_read_text", "validation", "path"),
]


@pytest.mark.requirement("P10")
@pytest.mark.parametrize(
    ("tool", "kind", "expected_text"), CALLED_TOOLS, ids=[row[0] for row in CALLED_TOOLS]
)
def test_a_tool_that_needs_input_or_approval_fails_within_a_script(
    agent: PackCaller, tool: str, kind: str, expected_text: str
) -> None:
    """A script cannot wait for an answer: it would start again and repeat all its calls."""
    reply = agent.call("script_run", name="tools", function="attempt", args=[tool, {}])

    assert reply.failure is None
    assert reply.value["value"]["kind"] == kind
    assert expected_text in reply.value["value"]["error"]


@pytest.mark.requirement("P10")
def test_nested_tool_calls_have_a_maximum_depth(agent: PackCaller) -> None:
    """The failure names the depth."""
    reply = agent.call("deeper")

    assert reply.text.count(">") == 4
    assert "at most 4 deep; deeper was not called" in reply.text


@pytest.mark.requirement("P10")
def test_nested_script_runs_have_a_maximum_depth(agent: PackCaller) -> None:
    """The depth is four, or the number of free turns; no run waits for itself."""
    reply = agent.call("script_run", name="tools", function="again", args=[0])

    assert reply.failure is None
    assert "error" in json.dumps(reply.value)


@pytest.mark.requirement("P10")
def test_progress_is_reported_while_a_script_runs(script_server: ScriptServer) -> None:
    """A client that asked for progress gets it once a second."""
    agent = script_server.agent("mcp")
    arguments = {"name": "tools", "args": ["count_slowly", {"steps": 1, "delay_s": 1.2}]}
    fields, body = modern_request(
        "tools/call", {"name": "script_run", "arguments": arguments}, progress=7
    )

    answer = script_server.client.send("POST", fields=fields, body=body, token=agent.token)

    assert b"tools.star runs: 1 calls of tools, 0 bytes printed" in answer.body
    assert b"Counted to 1" in answer.body


@pytest.mark.requirement("P11")
@pytest.mark.parametrize(("mode", "expected_text"), [("off", "turned off"), ("free", None)])
def test_script_exec_can_be_unrestricted_or_disabled(
    tmp_path: Path, mode: str, expected_text: str | None
) -> None:
    """The operator decides; if it is off, no code runs."""
    with open_script_server(tmp_path, exec=mode) as script_server:
        agent = script_server.agent("rest")
        if mode == "off":
            script_server.approve_code(agent.tenant, "1 + 1")
        reply = agent.call("script_exec", code="1 + 1")

    if expected_text is None:
        assert reply.value == {"value": 2, "printed": ""}
    else:
        assert (reply.kind, expected_text in str(reply.failure)) == ("denied", True)
