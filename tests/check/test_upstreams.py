"""`gatepost check` finds what is wrong with upstreams, agents and credentials, and says where."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.check.pack_loading import LoadedPacks, load
from gatepost.check.problems import problems
from gatepost.config.settings import Config
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost_authz.config import Problem

VALID_UPSTREAM = {"name": "crm", "tenants": ["acme"], "url": "https://crm.example.com/mcp"}
PROGRAM = {"name": "memory", "tenants": ["acme"], "command": "sh"}
CLIENT = {
    "type": "client",
    "tenants": ["acme"],
    "client_id": "gatepost",
    "client_secret": "secret:CRM_SECRET",
    "issuer": "https://login.example.com",
}


def config_of(*upstreams: dict[str, Any], **settings: Any) -> Config:
    usual = {
        "resource": "http://127.0.0.1:8000/mcp",
        "mode": "development",
        "tenancy": {"tenants": ["acme", "globex"], "create_on_first_use": False},
        "tools": {"packs": ["demo"]},
        "upstreams": list(upstreams),
    }
    return msgspec.convert(usual | settings, Config)


def problems_of(*upstreams: dict[str, Any], **settings: Any) -> list[Problem]:
    """Return the problems of upstreams, agents and credentials alone."""
    config = config_of(*upstreams, **settings)
    loaded_packs = load(config.tools, config.packs, config.network)
    return [
        problem for problem in problems(config, loaded_packs) if problem.id[8:10] in {"14", "15"}
    ]


def test_valid_upstream_tables_have_no_problem() -> None:
    """The tables are for HTTP and for a program, with a credential and an agent."""
    assert (
        problems_of(
            {
                **VALID_UPSTREAM,
                "credential": "crm",
                "scopes": {"*": ["crm:read"]},
                "tools": ["*", "!x"],
            },
            {**PROGRAM, "env": {"API_KEY": "secret:KEY", "LEVEL": "debug"}},
            credentials={"crm": CLIENT},
            agents=[{"name": "a", "tenants": ["acme"], "capabilities": ["mcp:crm", "pack:demo"]}],
        )
        == []
    )


WRONG_UPSTREAMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no tenant": ({"tenants": []}, "config.E140", "upstreams[0].tenants"),
    "no tenant id": ({"tenants": ["ACME"]}, "config.E140", "upstreams[0].tenants"),
    "unknown tenant": ({"tenants": ["amce"]}, "config.W145", "upstreams[0].tenants"),
    "empty name": ({"name": ""}, "config.E141", "upstreams[0].name"),
    "long name": ({"name": "n" * 256}, "config.E141", "upstreams[0].name"),
    "plain http": ({"url": "http://crm.example.com/mcp"}, "config.E142", "upstreams[0].url"),
    "url and command": ({"command": "sh"}, "config.E142", "upstreams[0]"),
    "neither": ({"url": ""}, "config.E142", "upstreams[0]"),
    "args of a url": ({"args": ["-x"]}, "config.E142", "upstreams[0].args"),
    "host header": ({"headers": {"Host": "secret:A"}}, "config.E143", "upstreams[0].headers"),
    "authorization": (
        {"headers": {"authorization": "secret:A"}},
        "config.E143",
        "upstreams[0].headers",
    ),
    "value in a header": (
        {"headers": {"X-Key": "the-key-itself"}},
        "config.E143",
        "upstreams[0].headers.X-Key",
    ),
    "value as a key": ({"api_key": "the-key-itself"}, "config.E143", "upstreams[0].api_key"),
    "variable not set": ({"api_key": "env:NOT_SET_X"}, "config.E143", "upstreams[0].api_key"),
    "pattern": ({"tools": ["get *"]}, "config.E144", "upstreams[0].tools"),
    "only exclusions": ({"tools": ["!get_secret"]}, "config.E144", "upstreams[0].tools"),
    "scope": ({"scopes": {"*": ["a b"]}}, "config.E144", "upstreams[0].scopes.*"),
    "excluded scope": ({"scopes": {"!x": ["a"]}}, "config.E144", "upstreams[0].scopes"),
    "rename": ({"renames": {"a": "A B"}}, "config.E144", "upstreams[0].renames.a"),
    "one new name twice": (
        {"renames": {"a": "c", "b": "c"}},
        "config.E144",
        "upstreams[0].renames",
    ),
    "unknown credential": ({"credential": "crn"}, "config.E145", "upstreams[0].credential"),
    "credential and key": (
        {"credential": "crm", "api_key": "secret:A"},
        "config.E145",
        "upstreams[0].credential",
    ),
    "credential of another tenant": (
        {"credential": "crm", "tenants": ["globex"]},
        "config.E145",
        "upstreams[0].credential",
    ),
    "timeout": ({"timeout_s": 0}, "config.E147", "upstreams[0].timeout_s"),
    "concurrency": ({"concurrency": 0}, "config.E147", "upstreams[0].concurrency"),
    "trusted": ({"trusted": True}, "config.W141", "upstreams[0].trusted"),
}


@pytest.mark.parametrize("name", WRONG_UPSTREAMS)
def test_an_invalid_upstream_table_is_reported_with_its_setting(name: str) -> None:
    """Each error has one problem, which repeats no value that may be a secret."""
    change, code, setting = WRONG_UPSTREAMS[name]
    (problem,) = problems_of({**VALID_UPSTREAM, **change}, credentials={"crm": CLIENT})

    assert (problem.id, problem.setting) == (code, setting)
    assert "the-key-itself" not in problem.message + problem.hint


PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "not installed": ({"command": "no-such-program-here"}, "config.E146"),
    "with network": ({"network": True}, "config.W142"),
    "secret in the file": ({"env": {"API_TOKEN": "abc"}}, "config.W143"),
    "key": ({"api_key": "secret:A"}, "config.E142"),
    "variable": ({"env": {"A=B": "c"}}, "config.E143"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_invalid_program_table_is_reported(name: str) -> None:
    """Each error of a stdio server has one problem."""
    change, code = PROGRAMS[name]

    assert [problem.id for problem in problems_of({**PROGRAM, **change})] == [code]


@pytest.mark.parametrize(
    ("arguments", "pinned"),
    [
        (["-y", "@modelcontextprotocol/server-memory"], False),
        (["-y", "@modelcontextprotocol/server-memory@2026.1.26"], True),
        (["server@latest"], False),
        (["--package", "server", "run"], False),
        (["--package=server@1.0.0", "run"], True),
        (["./local"], True),
    ],
)
def test_a_package_without_a_version_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], pinned: bool
) -> None:
    """Each start could run another version of the program."""
    program = tmp_path / "npx"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    ids = [
        problem.id
        for problem in problems_of({**PROGRAM, "command": str(program), "args": arguments})
    ]

    assert ids == ([] if pinned else ["config.W140"])


def test_names_are_unique_for_each_tenant() -> None:
    """Two tenants may use one name; `*` means every tenant."""
    other = {**VALID_UPSTREAM, "tenants": ["globex"]}

    assert problems_of(VALID_UPSTREAM, other) == []
    assert [problem.id for problem in problems_of(VALID_UPSTREAM, VALID_UPSTREAM)] == [
        "config.E141"
    ]
    assert [
        problem.id for problem in problems_of(VALID_UPSTREAM, {**VALID_UPSTREAM, "tenants": ["*"]})
    ] == ["config.E141"]


AGENTS: dict[str, list[dict[str, Any]]] = {
    "unknown pack": [{"name": "a", "tenants": ["acme"], "capabilities": ["pack:demos"]}],
    "unknown server": [{"name": "a", "tenants": ["acme"], "capabilities": ["mcp:crn"]}],
    "no kind": [{"name": "a", "tenants": ["acme"], "capabilities": ["demo"]}],
    "one name twice": [{"name": "a", "tenants": ["acme"]}] * 2,
    "one client twice": [
        {"name": "a", "tenants": ["acme"], "client_id": "c"},
        {"name": "b", "tenants": ["*"], "client_id": "c"},
    ],
}


@pytest.mark.parametrize("name", AGENTS)
def test_an_invalid_agent_table_is_reported(name: str) -> None:
    """Its capabilities must exist, and a client id may have one agent only."""
    assert [problem.id for problem in problems_of(VALID_UPSTREAM, agents=AGENTS[name])] == [
        "config.E149"
    ]


CREDENTIALS: dict[str, dict[str, Any]] = {
    "no tenant": {**CLIENT, "tenants": []},
    "no client id": {**CLIENT, "client_id": ""},
    "no secret": {**CLIENT, "client_secret": ""},
    "secret as text": {**CLIENT, "client_secret": "the-key-itself"},
    "setting of the other type": {**CLIENT, "api_key": "secret:A"},
    "issuer": {**CLIENT, "issuer": "login.example.com"},
    "key and secret": {**CLIENT, "method": "private_key_jwt"},
    "nothing to send": {"type": "static", "tenants": ["acme"]},
    "header": {"type": "static", "tenants": ["acme"], "headers": {"Cookie": "secret:A"}},
    "host": {**CLIENT, "hosts": ["*.example.com"]},
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_an_invalid_credential_is_reported(name: str) -> None:
    """Each error has one problem, which does not repeat the value."""
    (problem,) = problems_of(credentials={"crm": CREDENTIALS[name]})

    assert problem.id == "config.E150"
    assert "the-key-itself" not in problem.message + problem.hint


API = {"document": "petstore.yaml", "base_url": "https://api.example.com/v1", "credential": "crm"}
PACK_CREDENTIALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "right": (API, {"hosts": ["api.example.com"]}, ""),
    "base url of the description": ({**API, "base_url": ""}, {"hosts": ["api.example.com"]}, ""),
    "unknown": ({**API, "credential": "cmr"}, {}, "there is no credential 'cmr'"),
    "no hosts": (API, {}, "names no hosts"),
    "another host": (API, {"hosts": ["example.com"]}, "is not for api.example.com"),
    "another port": (API, {"hosts": ["api.example.com:8443"]}, "is not for api.example.com"),
    "plain http": (
        {**API, "base_url": "http://api.example.com"},
        {"hosts": ["api.example.com"]},
        "is not sent to http://api.example.com",
    ),
}


@pytest.mark.parametrize("name", PACK_CREDENTIALS)
def test_the_credential_setting_of_the_openapi_pack_is_checked(name: str, tmp_path: Path) -> None:
    """`packs.openapi.apis.NAME.credential` must exist and be for the API's host."""
    api, hosts, reason = PACK_CREDENTIALS[name]
    document = tmp_path / "petstore.yaml"
    document.write_text("openapi: 3.1.0", encoding="utf-8")
    config = msgspec.convert(
        {
            "resource": "https://mcp.example.com/mcp",
            "packs": {"openapi": {"apis": {"pets": {**api, "document": str(document)}}}},
            "credentials": {"crm": {**CLIENT, **hosts}},
        },
        Config,
    )
    reported_problems = [
        problem
        for problem in problems(config, LoadedPacks(packs=(), problems=()))
        if problem.setting.startswith("packs.openapi")
    ]

    assert [problem.id for problem in reported_problems] == (["config.E150"] if reason else [])
    assert all(reason in problem.message for problem in reported_problems)
    assert all(
        problem.setting == "packs.openapi.apis.pets.credential" for problem in reported_problems
    )


def test_a_credential_without_a_fixed_authorization_server_is_a_warning() -> None:
    """The upstream could name its own server, which would get the secret."""
    without = {name: value for name, value in CLIENT.items() if name != "issuer"}

    assert [problem.id for problem in problems_of(credentials={"crm": without})] == ["config.W144"]


def test_each_tenant_gets_its_own_server_from_a_shared_table() -> None:
    """The id of such a server stays the same."""
    upstreams = ConfiguredUpstreams(config_of({**VALID_UPSTREAM, "tenants": ["*"]}, PROGRAM))
    (first, memory), (second,) = upstreams.servers("acme"), upstreams.servers("globex")

    assert (first.name, second.name, memory.transport) == ("crm", "crm", "stdio")
    assert first.id != second.id
    assert (
        ConfiguredUpstreams(config_of({**VALID_UPSTREAM, "tenants": ["*"]})).servers("acme")[0]
        == first
    )


def test_a_changed_table_or_credential_changes_the_revision() -> None:
    """Connections belong to a revision, so a reload does not keep an old URL or secret."""

    def revision(credential: dict[str, Any], **change: Any) -> int:
        config = config_of(
            {**VALID_UPSTREAM, "credential": "crm", **change}, credentials={"crm": credential}
        )
        return ConfiguredUpstreams(config).servers("acme")[0].revision

    assert revision(CLIENT) == revision(CLIENT)
    assert revision(CLIENT) != revision(CLIENT, url="https://other.example.com/mcp")
    assert revision(CLIENT) != revision({**CLIENT, "client_id": "other"})
