"""
The Inspector's command line against `gatepost dev`, in each era it speaks.

What the CLI cannot do, in any era: answer an elicitation or a sampling (it declares neither, and is
told so), complete, subscribe, listen. `node`, which comes with it, keeps a connection and can do
all of that but samplings. Skills are of the modern era alone.
"""

import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import GatedEndpoint
from tests.support import programs
from tests.support.processes import Process
from tests.support.programs import Inspector, Program, command, environment, loaded

ERAS = ["legacy", "modern"]
"""Where `auto` ends up is shown once; from there on it is the modern era."""
LEGACY_ERA = pytest.param("legacy", marks=pytest.mark.slow)
"""Every run starts Node; the official clients and the suite ask the same of older revisions."""
SKILL = "skill://conformance_resources/greet-visitor"
TASKS = "io.modelcontextprotocol/tasks"


MCPDO = "node_modules/@modelcontextprotocol/inspector/clients/mcpdo/build/mcp-bin.js"


MCPDO_WITHIN_S = 60


class Mcpdo:
    """Runs against one daemon of our own."""

    def __init__(self, program: Program, env: Mapping[str, str]) -> None:
        self.program, self.environment = program, env

    def run(self, *arguments: str) -> Any:
        """Return what one run that succeeds prints."""
        done = self.program.run("--format", "json", *arguments, within_s=MCPDO_WITHIN_S)
        assert done.code == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def connect(self, name: str, url: str, bearer: Mapping[str, str], *, era: str) -> Any:
        """Open a connection by which later runs go; what it shows of itself."""
        (header,) = (f"{header}: {value}" for header, value in bearer.items())
        where = (url, "--transport", "http", "--era", era, "--connection", name)
        return self.run("connect", *where, "--header", header)

    def answered(self, connection: str, call: tuple[str, ...], *answer: str) -> str:
        """Call a tool that asks a question, answer it, and say what the tool does then."""
        pending = self.run("--connection", connection, "tools/call", *call)["elicitationPending"]
        result = self.run(
            *("--connection", connection, "elicitation/respond", pending["elicitationId"]), *answer
        )
        return str(result["content"][0]["text"])

    @contextmanager
    def watching(self, connection: str, uri: str) -> Iterator[Process]:
        """Print the changes of a document until the block ends."""
        words = ("--format", "json", "--connection", connection, "resources/subscribe", uri)
        process = Process(command(MCPDO, *words), env=self.environment)
        try:
            process.wait_for('"subscribed"')
            yield process
        finally:
            process.kill()


@contextmanager
def mcpdo_daemon() -> Iterator[Mcpdo]:
    """Run a daemon, which the first run starts and the end of the block stops."""
    # The path of a socket must be short; the daemon takes its leave in the folder that goes.
    with tempfile.TemporaryDirectory(prefix="mcpdo-", ignore_cleanup_errors=True) as home:
        env = {
            **environment(),
            "HOME": home,
            "MCP_INSPECTOR_DAEMON_DIR": f"{home}/d",
            "MCP_INSPECTOR_DAEMON_TOKEN": secrets.token_urlsafe(32),
            "MCP_INSPECTOR_SECRET_STORE": "memory",
        }
        with loaded(MCPDO, env) as program:
            mcpdo = Mcpdo(program, env)
            try:
                yield mcpdo
            finally:
                mcpdo.run("daemon", "stop")


@pytest.fixture(scope="module")
def inspector(
    gated_endpoint: GatedEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inspector]:
    home = tmp_path_factory.mktemp("inspector")
    with programs.inspector(gated_endpoint.url, gated_endpoint.bearer, home) as program:
        yield program


@pytest.fixture(scope="module")
def connected(gated_endpoint: GatedEndpoint) -> Iterator[Mcpdo]:
    """Yield connections by the names of their eras."""
    with mcpdo_daemon() as program:
        for era in ERAS:
            output = program.connect(era, gated_endpoint.url, gated_endpoint.bearer, era=era)
            assert output["protocolEra"] == era
        yield program


@pytest.mark.parametrize(
    ("era", "protocol", "extended"),
    [
        pytest.param("legacy", "2025-11-25", False, marks=pytest.mark.slow),
        pytest.param("auto", "2026-07-28", True, marks=pytest.mark.slow),
        ("modern", "2026-07-28", True),
    ],
)
def test_tools_are_listed_in_strict_mode_and_called(
    inspector: Inspector, era: str, protocol: str, extended: bool
) -> None:
    """`--strict` finds no schema that another client could refuse."""
    about, listed, called, mirrored = inspector.results(
        era,
        ("initialize",),
        ("tools/list", "--strict"),
        ("tools/call", "--tool-name", "weather", "--tool-args-json", '{"city": "Graz"}'),
        ("tools/call", "--tool-name", "test_custom_headers", "--tool-arg", "message=grüß Gott"),
    )

    assert about["protocolVersion"] == protocol
    assert (TASKS in about["capabilities"].get("extensions", {})) is extended
    assert {"weather", "echo", "slow_compute"} <= {tool["name"] for tool in listed["tools"]}
    assert called["structuredContent"] == {"city": "Graz", "degrees": 21.5}
    assert mirrored["content"] == [{"type": "text", "text": "grüß Gott"}]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_resources_and_prompts_are_listed_and_read(inspector: Inspector, era: str) -> None:
    """The resources are fixed and templates; prompts have arguments."""
    resources, templates, document, prompts, prompt = inspector.results(
        era,
        ("resources/list",),
        ("resources/templates/list",),
        ("resources/read", "--uri", "test://template/7/data"),
        ("prompts/list",),
        (
            *("prompts/get", "--prompt-name", "test_prompt_with_arguments"),
            *("--prompt-args", "arg1=a", "arg2=b"),
        ),
    )

    assert "test://static-text" in {each["uri"] for each in resources["resources"]}
    assert "test://template/{id}/data" in {
        each["uriTemplate"] for each in templates["resourceTemplates"]
    }
    assert '"id": "7"' in document["contents"][0]["text"]
    assert "test_prompt_with_arguments" in {each["name"] for each in prompts["prompts"]}
    assert "arg1='a', arg2='b'" in prompt["messages"][0]["content"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_the_exit_code_of_the_inspector_tells_the_kind_of_error(
    inspector: Inspector, gated_endpoint: GatedEndpoint, tmp_path: Path, era: str
) -> None:
    """It is 5 for a tool that is unknown or fails and 3 without a token."""
    unknown, failed = inspector.each(
        era,
        ("tools/call", "--tool-name", "nothing"),
        ("tools/call", "--tool-name", "test_error_handling"),
    )
    with programs.inspector(gated_endpoint.url, {}, tmp_path) as without_token:
        stranger = without_token.ask("tools/list", era=era)

    assert (unknown.code, unknown.error["code"]) == (5, "tool_not_found")
    assert (failed.code, failed.error["code"]) == (5, "tool_is_error")
    assert failed.result["content"][0]["text"] == "This tool fails on purpose."
    assert (stranger.code, stranger.error["code"]) == (3, "auth_required")


def test_the_log_level_of_an_older_session_can_be_set(inspector: Inspector) -> None:
    """Only older revisions have `logging/setLevel`."""
    level = ("logging/setLevel", "--log-level", "warning")

    assert inspector.results("legacy", level) == [{}]
    modern = inspector.ask(*level, era="modern")
    assert modern.code == 1
    assert "not supported by the negotiated protocol version" in modern.error["message"]


@pytest.mark.slow
def test_skills_pass_the_inspectors_verification(inspector: Inspector) -> None:
    """Digests, front matter and folders follow the extension."""
    listed, skill, folder = inspector.each(
        "modern",
        ("skills/list", "--verify", "--require-digests"),
        ("skills/get", "--uri", f"{SKILL}/SKILL.md", "--verify", "--require-digests"),
        ("resources/directory/read", "--uri", SKILL),
    )

    for verified in (listed, skill):
        assert (verified.code, verified.stderr.strip()) == (
            0,
            "Verified 1 skill and 2 files: no conformance errors.",
        )
    assert [child["name"] for child in folder.result["resources"]] == ["SKILL.md", "references"]


@pytest.mark.slow
def test_an_older_session_has_no_skills(inspector: Inspector) -> None:
    """`server/discover` declares extensions, and older sessions do not have it."""
    answer = inspector.ask("skills/list", era="legacy")

    assert (answer.code, answer.error["code"]) == (1, "skills_unsupported")


def test_a_long_call_becomes_a_task_that_the_inspector_awaits(inspector: Inspector) -> None:
    """In the modern revision the Inspector declares tasks; before it, the tool requires them."""
    call = ("tools/call", "--tool-name", "failing_job")
    compute = ("tools/call", "--tool-name", "slow_compute", "--tool-args-json", '{"seconds": 0.1}')

    failed, computed = inspector.each("modern", call, compute)
    before = inspector.ask(*call, era="legacy")

    assert (failed.code, failed.result["content"][0]["text"]) == (5, "The job failed.")
    assert computed.result["content"][0]["text"] == "Computed something in 0.1 seconds."
    assert before.code == 5
    assert "only clients that support tasks" in before.result["content"][0]["text"]


@pytest.mark.parametrize(
    ("era", "code"), [pytest.param("legacy", 5, marks=pytest.mark.slow), ("modern", 1)]
)
def test_a_call_that_needs_elicitation_or_sampling_names_the_capability(
    inspector: Inspector, era: str, code: int
) -> None:
    """The Inspector's command line declares neither of them."""
    form, sampling = inspector.each(
        era,
        ("tools/call", "--tool-name", "link_account"),
        ("tools/call", "--tool-name", "test_sampling", "--tool-arg", "prompt=hello"),
    )

    assert (form.code, sampling.code) == (code, code)
    assert "a client that can do: elicitation" in form.stdout + form.stderr
    assert "a client that can do: sampling" in sampling.stdout + sampling.stderr


def test_an_older_session_resumes_a_stream_that_the_server_closed(inspector: Inspector) -> None:
    """The client sends the id of the last event."""
    (called,) = inspector.results("legacy", ("tools/call", "--tool-name", "test_reconnection"))

    assert called["content"][0]["text"] == "Reconnected."


@pytest.mark.slow
def test_a_small_load_is_carried_without_an_error(inspector: Inspector) -> None:
    """Four of them run at a time."""
    for era in ("legacy", "modern"):
        (load,) = inspector.results(
            era,
            (
                *("tools/call", "--tool-name", "greet", "--tool-arg", "name=Bo"),
                *("--load", "--load-requests", "50", "--load-concurrency", "4"),
            ),
        )
        assert (load["requests"], load["ok"], load["errorMessages"]) == (50, 50, [])


@pytest.mark.parametrize("era", [LEGACY_ERA, "modern"])
def test_mcpdo_answers_elicitations(connected: Mcpdo, era: str) -> None:
    """It answers a form and a URL; in the modern revision a task continues with the answer."""
    form = connected.answered(
        era, ("test_elicitation", 'message:="?"'), "username:=ann", "email:=ann@example.com"
    )
    page = connected.answered(era, ("link_account",), "--done")
    deleted = connected.answered(era, ("confirm_delete", "filename:=a.txt"), "confirm:=true")

    assert form == "accept: username='ann' email='ann@example.com'"
    assert page == "accept"
    assert deleted == "a.txt was deleted."


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_mcpdo_completes_arguments_and_receives_resource_updates(
    connected: Mcpdo, era: str
) -> None:
    """Updates of a document arrive while it is subscribed to."""
    completed = connected.run(
        *("--connection", era, "prompts/complete", "--complete-ref-type", "ref/prompt"),
        *("--complete-ref", "test_prompt_with_arguments"),
        *("--complete-arg-name", "arg1", "--complete-arg-value", "test"),
    )
    with connected.watching(era, "test://watched-resource") as watching:
        connected.run("--connection", era, "tools/call", "touch")
        watching.wait_for('"resources/updated"')

    assert completed["values"] == ["test", "testValue1"]
