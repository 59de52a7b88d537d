"""What each built-in tool really does is what it declares, and what clients are told of it."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from gatepost.runtime.services import Services
from gatepost.tools.offers.offer import Effects, Tool
from gatepost_packs import BUILT_IN
from tests.architecture.source import ROOT
from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    open_server,
)
from tests.support.client import ToolResult
from tests.support.measuring import each
from tests.support.processes import Process, python_environment

TOOLS: dict[str, Tool] = {
    name: tool
    for row in BUILT_IN.values()
    for name, tool in import_module(row.source).pack.tools.items()
}
LABELS = {
    name: source
    for source, names in re.findall(
        r"^\| `([\w ]+)` \| (.*) \|$",
        (ROOT / "docs/tools.md").read_text().split("\n## ")[1],
        re.MULTILINE,
    )
    for name in re.findall(r"`(\w+)`", names)
}
"""Whose text a tool may answer, as the page's table says."""
WRITING_METHODS = {"POST", "PUT", "PATCH", "DELETE"}
TOKEN = "glpat-" + "x" * 20
ISSUE = {"number": 1, "title": "x", "state": "open", "html_url": "https://x", "updated_at": "x"}
SPEC = {
    "openapi": "3.0.3",
    "info": {"title": "Things", "version": "1"},
    "paths": {
        "/things": {"get": {"responses": {}}, "delete": {"responses": {}}},
    },
}
DERIVED_FOLDERS = {".made", ".usage"}
"""What is made from a tenant's files and may go at any time: an index, a count."""
EVENT = b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nEND:VCALENDAR\r\n"
SCRIPT = """
def main(path):
    return call("fs_write_text", path = path, text = "by a script")
"""
DUMP = """
import json, sqlite3, sys
for tenant in sys.stdin:
    rows = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True).execute(
        "SELECT subject, key FROM entries"
        " WHERE tenant = ? AND subject NOT IN ('callers', 'api_documents')",
        [tenant.strip()],
    )
    print(json.dumps(["/".join(row) for row in rows]), flush=True)
"""


def page(request: RecordedRequest) -> StubResponse:
    """Answer as the system does whose path it is."""
    match request.path.rsplit("/", 1)[-1]:
        case "spec.json":
            return StubResponse(200, SPEC)
        case "issues":
            return (
                StubResponse(200, [ISSUE]) if request.method == "GET" else StubResponse(201, ISSUE)
            )
        case "team.ics":
            return StubResponse(200, EVENT, {"content-type": "text/calendar"})
        case "page":
            return StubResponse(200, b"a page", {"content-type": "text/plain"})
        case "robots.txt":
            return StubResponse(404)
    return StubResponse(200, {})


class PacksUnderTest(NamedTuple):
    """A server with every built-in pack, and the one host outside that its tools may reach."""

    server: PackServer
    outside: HttpServer
    folder: Path
    reader: Process

    def agent(self) -> PackCaller:
        agent = self.server.agent("mcp")
        self.server.put_secrets(
            agent.tenant, self.outside.place, GITLAB_TOKEN=TOKEN, GITHUB_TOKEN=TOKEN
        )
        self.server.put_secrets(agent.tenant, TEAM_CHAT_URL=f"json://{self.outside.place}/hook")
        return agent

    def call(
        self, agent: PackCaller, tool: str, arguments: dict[str, Any], *, fails: bool = False
    ) -> ToolResult:
        """Return a call's result; it must succeed unless *fails*. `{url}` is the outside host."""
        filled = json.loads(json.dumps(arguments).replace("{url}", self.outside.url))
        reply = agent.call(tool, **filled)
        assert fails or reply.failure is None, reply
        return reply

    @property
    def outside_methods(self) -> list[str]:
        """Return the methods of all requests to the outside host; `LOOKUP` for an unknown name."""
        return [request.method for request in self.outside.asked]

    def stored_contents(self, tenant: str) -> dict[str, str]:
        """
        Return what the server stores for a tenant: files by path, entries by key.

        Values of entries are omitted: they are encrypted, differently each time.
        """
        root = self.folder / "workspaces"
        contents = {
            str(path.relative_to(root)): path.read_bytes().hex()
            for path in root.rglob("*")
            if path.is_file()
            and tenant in path.relative_to(root).parts
            and not DERIVED_FOLDERS.intersection(path.parts)
        }
        # Another process: SQLite loses its locks when one process opens a file twice.
        self.reader.write_line(tenant)
        keys = json.loads(self.reader.next_line())
        return contents | dict.fromkeys(keys, "")


class EffectCase(NamedTuple):
    """One call after others that prepare for it, and what it is known to do."""

    tool: str
    arguments: dict[str, Any] = {}
    before: Sequence[tuple[str, dict[str, Any]]] = ()
    changes: bool = False
    destroys: bool = False
    leaves: bool = False
    """It reaches for a host outside."""
    fails: bool = False
    """There is no such host."""


def write(path: str, text: str = "x") -> tuple[str, dict[str, Any]]:
    return "fs_write_text", {"path": path, "text": text}


def git(*args: str) -> tuple[str, dict[str, Any]]:
    return "git", {"args": list(args)}


NOTE = ("vault_write", {"path": "a.md", "content": "milk"})
LOAD_CALL = ("openapi_load", {"name": "things", "spec_url": "{url}/spec.json"})
GITLAB = {"endpoint": "{url}/api/v4", "token": "secret:GITLAB_TOKEN", "path": "/projects"}
PERIOD = {"start": "2024-01-01", "end": "2024-01-02"}
CSV = {"filename": "a", "rows": [{"vendor": "Acme"}]}
CREATE_ISSUE = {"repo": "octo/demo", "title": "x"}
OPERATION = {"name": "things", "path": "/things", "method": "GET"}
SPEC_AT = {"spec_url": "{url}/spec.json"}

EFFECT_CASES = [
    EffectCase("echo", {"text": "x"}),
    EffectCase("whoami"),
    EffectCase("count_slowly", {"steps": 1, "delay_s": 0}),
    EffectCase("save_csv", CSV, changes=True),
    EffectCase("save_csv", CSV, [("save_csv", CSV)]),
    EffectCase("delete_csv", {"filename": "a"}, [("save_csv", CSV)], changes=True, destroys=True),
    EffectCase("fs_list", {}, [write("a")]),
    EffectCase("fs_read_text", {"path": "a"}, [write("a")]),
    EffectCase(
        "fs_write_text", {"path": "a", "text": "y"}, [write("a")], changes=True, destroys=True
    ),
    EffectCase("fs_delete", {"path": "a"}, [write("a")], changes=True, destroys=True),
    EffectCase("workspace_list", {}, [write("a")]),
    EffectCase("workspace_read", {"path": "a"}, [write("a")]),
    EffectCase("workspace_write", {"path": "a", "content": "y"}, [write("a")], True, True),
    EffectCase("memory_read", {}, [("memory_write", {"name": "a", "content": "x"})]),
    EffectCase(
        "memory_write",
        {"name": "a", "content": "y"},
        [("memory_write", {"name": "a", "content": "x"})],
        changes=True,
        destroys=True,
    ),
    EffectCase("memory_write", {"name": "a", "content": "x", "append": True}, changes=True),
    EffectCase("vault_read", {"path": "a.md"}, [NOTE]),
    EffectCase("vault_list", {}, [NOTE]),
    EffectCase("vault_search", {"query": "milk"}, [NOTE]),
    EffectCase(
        "vault_write", {"path": "a.md", "content": "y"}, [NOTE], changes=True, destroys=True
    ),
    EffectCase(*git("init"), changes=True),
    EffectCase(*git("status"), [git("init"), write("a")]),
    EffectCase(*git("clone", "https://outside.test/x.git"), [git("init")], leaves=True, fails=True),
    EffectCase(
        *git("checkout", "--", "a"),
        [git("init"), write("a"), git("add", "a"), write("a", "y")],
        changes=True,
        destroys=True,
    ),
    EffectCase("ssh_public_key", changes=True),
    EffectCase("ssh_public_key", {}, [("ssh_public_key", {})]),
    EffectCase("gitlab_request", GITLAB, leaves=True),
    EffectCase("gitlab_request", GITLAB | {"method": "DELETE"}, (), True, True, True),
    EffectCase("gitlab_openapi_spec", SPEC_AT, leaves=True),
    EffectCase("gitlab_openapi_paths", SPEC_AT, leaves=True),
    EffectCase(
        "gitlab_openapi_operation", SPEC_AT | {"path": "/things", "method": "GET"}, leaves=True
    ),
    EffectCase("gitlab_tool_help"),
    EffectCase("github_list_issues", {"repo": "octo/demo"}, leaves=True),
    EffectCase("github_create_issue", CREATE_ISSUE, changes=True, leaves=True),
    EffectCase("openapi_load", LOAD_CALL[1], changes=True, leaves=True),
    EffectCase("openapi_load", LOAD_CALL[1], [LOAD_CALL], leaves=True),
    EffectCase("openapi_list_apis", {}, [LOAD_CALL]),
    EffectCase("openapi_list_endpoints", {"name": "things"}, [LOAD_CALL]),
    EffectCase("openapi_get_operation", OPERATION, [LOAD_CALL]),
    EffectCase("openapi_call", OPERATION, [LOAD_CALL], leaves=True),
    EffectCase("openapi_call", OPERATION | {"method": "DELETE"}, [LOAD_CALL], True, True, True),
    EffectCase("web_fetch", {"url": "{url}/page"}, leaves=True),
    EffectCase("chat_send", {"channel": "team", "message": "hello"}, changes=True, leaves=True),
    EffectCase("calendar_read", PERIOD, leaves=True),
    EffectCase("script_list"),
    EffectCase("script_run", {"name": "writes", "args": ["a"]}, [write("a")], True, True),
    EffectCase("script_exec", {"code": "1 + 1"}),
    EffectCase("script_reload", changes=True),
]
UNTRUE_HINTS = {"git", "ssh_public_key", "gitlab_openapi_paths", "gitlab_openapi_operation"}
"""Octoprox's own table says so, and `tools/list` repeats it; the effects are the true ones."""
AS_MUCH_AS_ANY = {"script_run", "script_exec"}
"""They call other tools, so they declare the effects of all."""


@pytest.fixture(scope="module")
def packs_under_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PacksUnderTest]:
    folder = tmp_path_factory.mktemp("effects")
    scripts = folder / "scripts"
    scripts.mkdir()
    (scripts / "writes.star").write_text(SCRIPT)

    async def looked_up(host: str, port: int) -> Sequence[str]:
        outside.asked.append(RecordedRequest("LOOKUP", host, {}, {}, b""))
        raise OSError("no such name")

    def prepare(services: Services) -> None:
        services.outbound.resolver = looked_up

    with HttpServer(page) as outside:
        packs = {
            "github": {"api_url": f"{outside.url}/"},
            "chat": {"channels": {"team": "secret:TEAM_CHAT_URL"}},
            "calendar": {"calendars": {"team": {"url": f"{outside.url}/team.ics"}}},
            "scripts": {"folder": str(scripts), "allow": ["writes"], "exec": "free"},
        }
        settings: dict[str, Any] = {
            "network": {"allow_hosts": [outside.place]},
            "packs": packs,
            "approvals": {"auto_approve": ["*"]},
            "storage": {"database": f"sqlite:///{folder / 'gatepost.db'}"},
        }
        with open_server(folder, list(BUILT_IN), prepare=prepare, **settings) as server:
            command = [sys.executable, "-c", DUMP, str(folder / "gatepost.db")]
            reader = Process(command, env=python_environment())
            try:
                yield PacksUnderTest(server, outside, folder, reader)
            finally:
                reader.kill()


def case_id(case: EffectCase) -> str:
    return f"{case.tool} {json.dumps(case.arguments)}"[:70]


@pytest.mark.requirement("X8")
@each("case", EFFECT_CASES, ids=case_id)
def test_a_call_does_and_answers_no_more_than_its_tool_declares(
    packs_under_test: PacksUnderTest, case: EffectCase
) -> None:
    """
    A read-only tool changes nothing, and only a destructive one replaces or deletes.

    Its value satisfies the output schema, and text of third parties names its source, as the page
    says.
    """
    tool, agent = TOOLS[case.tool], packs_under_test.agent()
    effects = tool.effects
    for name, arguments in case.before:
        packs_under_test.call(agent, name, arguments)

    before, seen = (
        packs_under_test.stored_contents(agent.tenant),
        len(packs_under_test.outside_methods),
    )
    reply = packs_under_test.call(agent, case.tool, case.arguments, fails=case.fails)
    after, outside_methods = (
        packs_under_test.stored_contents(agent.tenant),
        packs_under_test.outside_methods[seen:],
    )
    packs_under_test.call(agent, case.tool, case.arguments, fails=case.fails or effects.destructive)
    again = packs_under_test.stored_contents(agent.tenant)

    changes = after != before or any(method in WRITING_METHODS for method in outside_methods)
    destroys = any(after.get(name) != content for name, content in before.items())
    destroys = destroys or "DELETE" in outside_methods
    assert (changes, destroys, bool(outside_methods)) == (
        case.changes,
        case.destroys,
        case.leaves,
    ), reply
    assert not (changes and effects.read_only)
    assert not (destroys and not effects.destructive)
    assert not (outside_methods and not effects.open_world)
    assert again == after or not effects.idempotent
    assert tool.output_schema is not None
    if reply.failure is None:
        validator = jsonschema_rs.validator_for(dict(tool.output_schema))
        validator.validate(reply.result["structuredContent"])
    label = reply.result["_meta"].get("io.gatepost/untrusted-content", {})
    assert label.get("source") == LABELS.get(case.tool)


def test_a_script_result_is_labelled_with_the_sources_of_its_calls(
    packs_under_test: PacksUnderTest,
) -> None:
    """This holds for its value and for its failure."""
    agent = packs_under_test.agent()
    packs_under_test.call(agent, *write("a"))
    read = 'text = call("fs_read_text", path = "a")\n'

    answered = packs_under_test.call(agent, "script_exec", {"code": f"{read}text"})
    failed = packs_under_test.call(agent, "script_exec", {"code": f"{read}fail(text)"}, fails=True)

    assert failed.failure is not None
    for reply in (answered, failed):
        label = reply.result["_meta"]["io.gatepost/untrusted-content"]
        assert label["source"] == "workspace files"


@each("name", TOOLS)
def test_a_tool_declares_no_more_than_it_can_do(name: str) -> None:
    """Some call of it changes, destroys or leaves, where it declares so; hints say the same."""
    cases, effects = [case for case in EFFECT_CASES if case.tool == name], TOOLS[name].effects
    hints = TOOLS[name].annotations
    declared = Effects(
        read_only=bool(hints.read_only_hint),
        destructive=bool(hints.destructive_hint),
        idempotent=bool(hints.idempotent_hint),
        open_world=bool(hints.open_world_hint),
    )

    assert (declared == effects) is (name not in UNTRUE_HINTS)
    if name not in AS_MUCH_AS_ANY:
        assert any(case.changes for case in cases) is not effects.read_only
        assert any(case.destroys for case in cases) is effects.destructive
        assert any(case.leaves for case in cases) is effects.open_world
