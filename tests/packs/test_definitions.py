"""Each tool is offered as the page that it comes from describes it."""

from importlib import import_module
from typing import Any, NamedTuple

import pytest

from gatepost.tools.offers.offer import Tool
from gatepost_packs import BUILT_IN
from gatepost_packs.gitlab.settings import SPEC_URL
from tests.packs.conftest import PackServer
from tests.support.measuring import each

MUST = object()
"""In place of a default: the argument must be given."""


class DocumentedTool(NamedTuple):
    """A tool as its page has it: type and default of each parameter, hints, scopes."""

    pack: str
    parameters: dict[str, tuple[str, Any]]
    hints: str
    scope: str | None
    row: str
    """The requirement that names it."""


READS, WRITES = "TFTF", "FTTF"
"""readOnly, destructive, idempotent, openWorld."""

FETCHES = "TFTT"
"""The document calls searching GitLab's description closed: GitLab itself is not asked."""
RUNS = "FTFT"

PAGES: dict[str, DocumentedTool] = {
    "openapi_load": DocumentedTool(
        "openapi",
        {
            "name": ("string", MUST),
            "spec_url": ("string?", None),
            "spec_content": ("string?", None),
            "auth_header": ("string?", None),
            "auth_header_name": ("string", "Authorization"),
            "base_url_override": ("string?", None),
        },
        "FFTT",
        "openapi:load",
        "X7",
    ),
    "openapi_list_apis": DocumentedTool("openapi", {}, READS, "openapi:read", "X7"),
    "openapi_list_endpoints": DocumentedTool(
        "openapi",
        {
            "name": ("string", MUST),
            "filter": ("string?", None),
            "tag": ("string?", None),
            "limit": ("integer", 50),
            "offset": ("integer", 0),
        },
        READS,
        "openapi:read",
        "X7",
    ),
    "openapi_get_operation": DocumentedTool(
        "openapi",
        {"name": ("string", MUST), "path": ("string", MUST), "method": ("string", MUST)},
        READS,
        "openapi:read",
        "X7",
    ),
    "openapi_call": DocumentedTool(
        "openapi",
        {
            "name": ("string", MUST),
            "path": ("string", MUST),
            "method": ("string", MUST),
            "path_params": ("object?", None),
            "query_params": ("object?", None),
            "headers": ("object?", None),
            "body": ("any", None),
            "timeout_s": ("integer", 30),
            "max_response_bytes": ("integer", 100000),
        },
        "FTFT",
        "openapi:call",
        "X7",
    ),
    "calendar_read": DocumentedTool(
        "calendar",
        {
            "start": ("string", MUST),
            "end": ("string", MUST),
            "calendar": ("string?", None),
            "query": ("string?", None),
            "limit": ("integer", 100),
        },
        "TFTT",
        "calendar:read",
        "P7",
    ),
    "chat_send": DocumentedTool(
        "chat",
        {
            "channel": ("string", MUST),
            "message": ("string", MUST),
            "title": ("string?", None),
        },
        "FFFT",
        "chat:send",
        "P6",
    ),
    "fs_list": DocumentedTool("filesystem", {"path": ("string", ".")}, READS, "files:read", "X1"),
    "fs_read_text": DocumentedTool(
        "filesystem",
        {"path": ("string", MUST), "max_bytes": ("integer", 200000)},
        READS,
        "files:read",
        "X1",
    ),
    "fs_write_text": DocumentedTool(
        "filesystem",
        {"path": ("string", MUST), "text": ("string", MUST), "mkdirs": ("boolean", True)},
        WRITES,
        "files:write",
        "X1",
    ),
    "fs_delete": DocumentedTool(
        "filesystem",
        {"path": ("string", MUST), "recursive": ("boolean", False)},
        WRITES,
        "files:write",
        "X1",
    ),
    "workspace_read": DocumentedTool(
        "workspace",
        {"path": ("string", MUST), "max_bytes": ("integer", 200000)},
        READS,
        "files:read",
        "P3",
    ),
    "workspace_write": DocumentedTool(
        "workspace",
        {"path": ("string", MUST), "content": ("string", MUST), "mkdirs": ("boolean", True)},
        WRITES,
        "files:write",
        "P3",
    ),
    "workspace_list": DocumentedTool(
        "workspace",
        {"path": ("string", "."), "recursive": ("boolean", False), "limit": ("integer", 1000)},
        READS,
        "files:read",
        "P3",
    ),
    "memory_read": DocumentedTool(
        "memory", {"name": ("string?", None)}, READS, "memory:read", "P4"
    ),
    "memory_write": DocumentedTool(
        "memory",
        {"name": ("string", MUST), "content": ("string", MUST), "append": ("boolean", False)},
        "FTFF",
        "memory:write",
        "P4",
    ),
    "github_list_issues": DocumentedTool(
        "github",
        {
            "repo": ("string", MUST),
            "state": ("string", "open"),
            "labels": ("array", []),
            "limit": ("integer", 30),
            "page": ("integer", 1),
        },
        "TFTT",
        "github:read",
        "P8",
    ),
    "github_create_issue": DocumentedTool(
        "github",
        {
            "repo": ("string", MUST),
            "title": ("string", MUST),
            "body": ("string", ""),
            "labels": ("array", []),
            "assignees": ("array", []),
        },
        "FFFT",
        "github:write",
        "P8",
    ),
    "gitlab_request": DocumentedTool(
        "gitlab",
        {
            "endpoint": ("string", MUST),
            "token": ("string", MUST),
            "path": ("string", MUST),
            "method": ("string", "GET"),
            "params": ("object?", None),
            "json_body": ("any", None),
            "form": ("object?", None),
            "headers": ("object?", None),
            "files": ("array?", None),
            "timeout_s": ("integer", 30),
            "max_bytes": ("integer", 200_000),
            "include_text": ("boolean", True),
            "include_base64": ("boolean", False),
        },
        "FTFT",
        "gitlab:request",
        "X4",
    ),
    "gitlab_tool_help": DocumentedTool("gitlab", {}, READS, "gitlab:read", "X6"),
    "git": DocumentedTool(
        "git", {"args": ("array", MUST), "timeout_s": ("integer", 120)}, "FTFF", "git:run", "X2"
    ),
    "ssh_public_key": DocumentedTool("ssh", {}, READS, "git:read", "X3"),
    "gitlab_openapi_spec": DocumentedTool(
        "gitlab",
        {
            "spec_url": ("string", SPEC_URL),
            "offset": ("integer", 0),
            "max_bytes": ("integer", 200000),
            "refresh": ("boolean", False),
        },
        FETCHES,
        "gitlab:read",
        "X5",
    ),
    "gitlab_openapi_paths": DocumentedTool(
        "gitlab",
        {
            "spec_url": ("string", SPEC_URL),
            "filter_text": ("string?", None),
            "limit": ("integer", 200),
            "offset": ("integer", 0),
            "refresh": ("boolean", False),
        },
        READS,
        "gitlab:read",
        "X5",
    ),
    "gitlab_openapi_operation": DocumentedTool(
        "gitlab",
        {
            "path": ("string", MUST),
            "method": ("string", MUST),
            "spec_url": ("string", SPEC_URL),
            "refresh": ("boolean", False),
        },
        READS,
        "gitlab:read",
        "X5",
    ),
    "script_list": DocumentedTool("scripts", {}, READS, "scripts:read", "P10"),
    "script_run": DocumentedTool(
        "scripts",
        {"name": ("string", MUST), "function": ("string?", None), "args": ("array", [])},
        RUNS,
        "scripts:run",
        "P10",
    ),
    "script_exec": DocumentedTool(
        "scripts", {"code": ("string", MUST)}, RUNS, "scripts:exec", "P10"
    ),
    "script_reload": DocumentedTool("scripts", {}, "FFTF", "scripts:run", "P10"),
    "vault_read": DocumentedTool("vault", {"path": ("string", MUST)}, READS, "vault:read", "P5"),
    "vault_write": DocumentedTool(
        "vault",
        {
            "path": ("string", MUST),
            "content": ("string", MUST),
            "front_matter": ("object?", None),
            "append": ("boolean", False),
        },
        "FTFF",
        "vault:write",
        "P5",
    ),
    "vault_list": DocumentedTool(
        "vault",
        {
            "folder": ("string", "."),
            "tag": ("string?", None),
            "limit": ("integer", 200),
            "offset": ("integer", 0),
        },
        READS,
        "vault:read",
        "P5",
    ),
    "vault_search": DocumentedTool(
        "vault",
        {"query": ("string", MUST), "tag": ("string?", None), "limit": ("integer", 20)},
        READS,
        "vault:read",
        "P5",
    ),
    "web_fetch": DocumentedTool(
        "web",
        {
            "url": ("string", MUST),
            "format": ("string", "markdown"),
            "max_chars": ("integer", 20000),
            "offset": ("integer", 0),
        },
        "TFTT",
        "web:fetch",
        "P9",
    ),
}
"""Every tool's page by its name."""


def tool_of(name: str) -> Tool:
    tool: Tool = import_module(BUILT_IN[PAGES[name].pack].source).pack.tools[name]
    return tool


def type_of(schema: dict[str, Any]) -> str:
    """Return the type, as `string` or `array`; `any` without one, with `?` where null may be."""
    if "anyOf" in schema:
        types = [option.get("type", "any") for option in schema["anyOf"]]
        return "|".join(type_ for type_ in types if type_ != "null") + "?" * ("null" in types)
    return str(schema.get("type", "any"))


@each(
    "name", [pytest.param(name, marks=pytest.mark.requirement(PAGES[name].row)) for name in PAGES]
)
def test_a_tool_matches_its_documentation_page(name: str) -> None:
    """Parameters with types and defaults, hints, scopes; every parameter is described."""
    page, tool = PAGES[name], tool_of(name)
    properties = tool.input_schema["properties"]
    hints = tool.annotations

    assert {
        argument: (type_of(schema), schema.get("default", None if "default" in schema else MUST))
        for argument, schema in properties.items()
    } == page.parameters
    assert set(tool.input_schema.get("required", ())) == {
        argument for argument, (_, default) in page.parameters.items() if default is MUST
    }
    assert all(schema["description"] for schema in properties.values())
    assert (
        "".join(
            "FT"[bool(hint)]
            for hint in (
                hints.read_only_hint,
                hints.destructive_hint,
                hints.idempotent_hint,
                hints.open_world_hint,
            )
        )
        == page.hints
    )
    assert None not in (hints.destructive_hint, hints.open_world_hint)
    assert tool.scopes == ({page.scope} if page.scope else set())


@pytest.mark.requirement("P3", "P4", "X1")
@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_every_documented_tool_is_listed(server: PackServer, protocol: Any) -> None:
    """A caller with the scopes sees every tool."""
    served = {name for name, page in PAGES.items() if page.pack in server.packs}

    assert set(server.agent(protocol).listed()) == served


OPENPACT = """
workspace_read workspace_write workspace_list memory_read memory_write
vault_read vault_write vault_list vault_search chat_send calendar_read
github_list_issues github_create_issue web_fetch
script_list script_run script_exec script_reload
"""
OCTOPROX = """
fs_list fs_read_text fs_write_text fs_delete git ssh_public_key
gitlab_request gitlab_openapi_spec gitlab_openapi_paths gitlab_openapi_operation gitlab_tool_help
openapi_load openapi_list_apis openapi_list_endpoints openapi_get_operation openapi_call
"""


@pytest.mark.requirement("X8", "X9")
@each("name", [*OPENPACT.split(), *OCTOPROX.split()])
def test_a_documented_tool_is_served(name: str) -> None:
    """Its page has its parameters, defaults, annotations and scopes."""
    pages: dict[str, Any] = PAGES

    assert name in pages
