"""A configuration that names a description serves a tool for each of its operations."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gatepost.tools.offers.offer import Tool
from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.packs.openapi.test_tools import DOCUMENTS, Petstore, petstore
from tests.support.issuers import AsgiServer
from tests.support.measuring import each
from tests.support.server import check_problems

__all__ = ["petstore"]  # fixtures

pytestmark = pytest.mark.requirement("X7")

PETSTORE_2, PETSTORE_3 = str(DOCUMENTS / "petstore_2_0.json"), str(DOCUMENTS / "petstore_3_0.yaml")


@pytest.fixture(scope="module")
def server(petstore: Petstore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """Yield a server with both petstores, one whole from a file, one in part by URL."""
    new = {"document": f"{petstore.url}/api/v3/openapi.yaml", "prefix": "new_"}
    apis = {
        "old": {"document": PETSTORE_2, "base_url": f"{petstore.url}/v2"},
        "new": new | {"tags": ["pet", "store"], "paths": ["/pet/*"], "methods": ["get"]},
    }
    network = {"allow_hosts": [petstore.place]}
    packs = {"openapi": {"apis": apis}}
    folder = tmp_path_factory.mktemp("offering")
    with open_server(folder, [], packs=packs, network=network) as server:
        yield server


@pytest.fixture
def tools(server: PackServer) -> dict[str, Tool]:
    return {tool.name: tool for tool in server.toolbox.tools}


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_each_operation_is_a_tool(server: PackServer, protocol: Any) -> None:
    """Filtered by tag, path and method; the tools to load others are not there."""
    names = server.agent(protocol).listed()

    assert [name for name in names if name.startswith("new_")] == [
        "new_find_pets_by_status",
        "new_find_pets_by_tags",
        "new_get_pet_by_id",
    ]
    assert len([name for name in names if not name.startswith("new_")]) == 20
    assert {"add_pet", "upload_file", "create_users_with_array_input"} <= set(names)


def test_arguments_are_the_operations_own(tools: dict[str, Tool]) -> None:
    """Types, limits, allowed values and descriptions; a body's members are arguments."""
    order = tools["get_order_by_id"].input_schema
    pet = tools["add_pet"].input_schema
    schema = tools["find_pets_by_status"].input_schema
    users = tools["create_users_with_array_input"].input_schema

    assert order["properties"]["orderId"] == {
        "type": "integer",
        "format": "int64",
        "minimum": 1,
        "maximum": 10,
        "description": "ID of pet that needs to be fetched",
    }
    assert set(pet["properties"]) == {"id", "category", "name", "photoUrls", "tags", "status"}
    assert pet["required"] == ["name", "photoUrls"]
    assert pet["properties"]["status"]["enum"] == ["available", "pending", "sold"]
    assert pet["properties"]["category"]["properties"]["name"] == {"type": "string"}
    assert schema["properties"]["status"]["items"]["default"] == "available"
    assert list(users["properties"]) == ["body"]
    assert users["properties"]["body"]["type"] == "array"
    assert tools["upload_file"].input_schema["properties"]["file"]["type"] == ["object", "string"]


HINTS = {
    "get_pet_by_id": (True, False, True),
    "add_pet": (False, False, False),
    "update_pet": (False, True, True),
    "delete_pet": (False, True, True),
}


@pytest.mark.parametrize("name", HINTS)
def test_hints_follow_the_method(tools: dict[str, Tool], name: str) -> None:
    """Read-only, destructive, idempotent; the world is open."""
    hints = tools[name].annotations

    assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint) == HINTS[name]
    assert hints.open_world_hint is True


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_the_petstore_is_served(server: PackServer, petstore: Petstore, protocol: Any) -> None:
    """JSON, form and file; the answer is structured where the description says how."""
    agent = server.agent(protocol)
    pet = {"id": 8, "name": "Fluffy", "photoUrls": ["a"], "status": "pending"}
    added = agent.call("add_pet", **pet)
    read = agent.call("new_get_pet_by_id", petId=8)
    answer = agent.call("find_pets_by_status", status=["pending", "sold"])
    renamed = agent.call("update_pet_with_form", petId=8, name="Bello")
    sent = {"filename": "a.png", "data_base64": "iVBORw==", "content_type": "image/png"}
    upload = agent.call("upload_file", petId=8, file=sent, additionalMetadata="x")
    deleted = agent.call("delete_pet", petId=8, api_key="k")
    missing = agent.call("get_pet_by_id", petId=8)

    assert json.loads(added.text) == pet
    # The new description is relative to where it was fetched from: the same store.
    assert read.value == pet
    assert json.loads(answer.text) == [pet]
    assert json.loads(renamed.text)["name"] == "Bello"
    assert upload.value["message"] == "x: a.png image/png 4 bytes"
    assert deleted.failure is None
    assert petstore.asked[-2]["headers"]["api_key"] == "k"
    assert missing.kind in (None, "not_found")
    assert missing.failure == "GET /pet/{petId} answered 404: Pet not found"


def test_arguments_that_violate_the_schema_are_never_sent(
    server: PackServer, petstore: Petstore
) -> None:
    """The schema says what is allowed."""
    agent, before = server.agent("rest"), len(petstore.asked)
    failures = [
        agent.call("add_pet", name="x").failure,
        agent.call("add_pet", name="x", photoUrls=[], status="dead").failure,
        agent.call("get_order_by_id", orderId=11).failure,
        agent.call("get_pet_by_id", petId="8/../9").failure,
        agent.call("get_pet_by_id", petId=8, other=1).failure,
    ]

    assert all(failures)
    assert len(petstore.asked) == before


ANSWERS: dict[str, tuple[int, dict[str, str], Any, str, str]] = {
    "bad": (400, {}, {"message": "No."}, "validation", "answered 400: No."),
    "fields": (
        422,
        {},
        {"detail": [{"loc": ["body", "age"], "msg": "too young"}]},
        "validation",
        "age: too young",
    ),
    "token": (401, {}, {"error": {"message": "Who?"}}, "denied", "401: Who?"),
    "right": (403, {}, "plain words", "denied", "403: plain words"),
    "gone": (410, {}, None, "not_found", "answered 410"),
    "clash": (409, {}, {"title": "Taken", "status": 409}, "conflict", "409: Taken"),
    "often": (429, {"Retry-After": "7"}, {}, "rate_limit", "answered 429"),
    "down": (503, {"Retry-After": "9"}, {"error": "x"}, "upstream_unavailable", "503: x"),
    "broken": (500, {}, None, "upstream_unavailable", "answered 500"),
    "page": (502, {}, "<html>secret</html>", "upstream_unavailable", "answered 502."),
    "moved": (307, {"Location": "/x"}, None, "not_found", "it has moved"),
    "odd": (200, {}, {"id": "seven"}, "internal", r"was done \(200\).*seven"),
}


@contextmanager
def unreliable_api(folder: Path) -> Iterator[PackServer]:
    """Serve an API whose operations each answer differently."""
    seen: list[dict[str, str]] = []

    async def answer(request: Request) -> Response:
        status, headers, body, *_ = ANSWERS[request.path_params["name"]]
        seen.append(dict(request.headers))
        content = Response(body, status) if isinstance(body, str) else JSONResponse(body, status)
        content.headers.update(headers)
        return content

    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    responses = {"200": {"content": {"application/json": {"schema": schema}}}}
    paths = {
        f"/{name}": {"post": {"operationId": name, "responses": responses}} for name in ANSWERS
    }
    description = {"openapi": "3.1.0", "info": {}, "paths": paths}
    (folder / "moody.json").write_text(json.dumps(description))
    host = AsgiServer(Starlette(routes=[Route("/{name}", answer, methods=["POST"])])).start()
    api = {
        "document": str(folder / "moody.json"),
        "base_url": host.url,
        "auth": "secret:MOODY",
        "auth_header": "X-Key",
        "scopes": ["moody:use"],
    }
    network = {"allow_hosts": [host.url.removeprefix("http://")]}
    packs = {"openapi": {"apis": {"moody": api}}}
    try:
        with open_server(folder, [], packs=packs, network=network) as server:
            yield server
    finally:
        host.stop()
    assert all(headers["x-key"] == "the-moody-secret" for headers in seen)


def test_the_apis_refusals_are_failures(tmp_path: Path) -> None:
    """
    Its status gives the kind of the failure; its own words, but no HTML page, give the message.
    """
    with unreliable_api(tmp_path) as server:
        workers = [
            PackCaller(server, server.root, "acme", protocol, "moody:use")
            for protocol in ("mcp", "rest")
        ]
        without = workers[0].call("bad")
        server.put_secrets("acme", MOODY="the-moody-secret")
        for agent in workers:
            for name, (*_, kind, says) in ANSWERS.items():
                reply = agent.call(name)
                assert reply.kind in (None, kind), (name, reply)
                assert re.search(says, str(reply.failure)), (name, reply)
                assert "secret>" not in str(reply.failure)

    assert "MOODY" in str(without.failure)


BROKEN_TABLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no file": ({"document": "no.json"}, "a.document", "No such file"),
    "no description": ({"document": __file__}, "a.document", "cannot be used: The description"),
    "unreachable": ({"document": "http://127.0.0.1:8081/x"}, "a.document", "cannot be used"),
    "nothing fits": ({"document": PETSTORE_2, "tags": ["no"]}, "a", "no operation of .* matches"),
    "no base": ({"document": PETSTORE_3}, "a.base_url", "does not say where the API is"),
    "literal": ({"document": PETSTORE_2, "auth": "Bearer x"}, "a.auth", "no reference to a secret"),
    "lower case": (
        {"document": PETSTORE_2, "auth": "secret:low"},
        "a.auth",
        "no reference to a secret",
    ),
    "prefix": ({"document": PETSTORE_2, "prefix": "A-"}, "a.prefix", "a-z, 0-9 and _"),
    "header": (
        {"document": PETSTORE_2, "auth_header": "a b"},
        "a.auth_header",
        "not a header name",
    ),
    "base": ({"document": PETSTORE_2, "base_url": "ftp://x"}, "a.base_url", "not an http or https"),
    "scope": ({"document": PETSTORE_2, "scopes": ["a b"]}, "a.scopes", "is not a scope"),
    "timeout": ({"document": PETSTORE_2, "timeout_s": 0}, "a.timeout_s", "above 0"),
    "empty": ({"document": ""}, "a.document", "no description"),
}


@each("name", BROKEN_TABLES)
def test_check_names_the_setting_of_an_invalid_api_once(name: str) -> None:
    """At `gatepost check`, once."""
    api, setting, says = BROKEN_TABLES[name]
    issuers = [{"issuer": "https://id.example", "tenant": {"claim": "org_id"}}]
    reported_problems = check_problems(issuers, packs={"openapi": {"apis": {"a": api}}})
    matching = [problem for problem in reported_problems if problem.id == "config.E060"]

    assert [reported_problem.setting for reported_problem in matching] == [
        f"packs.openapi.apis.{setting}"
    ]
    assert re.search(says, matching[0].message), matching


def test_apis_with_the_same_tool_names_are_reported() -> None:
    """The hint proposes a prefix; the name of a built-in pack is taken, too."""
    issuers = [{"issuer": "https://id.example", "tenant": {"claim": "org_id"}}]
    apis = {
        "a": {"document": PETSTORE_2},
        "b": {"document": PETSTORE_2},
        "git": {"document": PETSTORE_2},
    }
    reported_problems = check_problems(issuers, packs={"openapi": {"apis": apis}})

    assert [problem.id for problem in reported_problems].count("config.E012") == 20
    assert any("built-in pack" in problem.message for problem in reported_problems)
