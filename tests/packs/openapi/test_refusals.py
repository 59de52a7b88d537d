"""What agents do wrong, and what the tools of the pack tell them, by both protocols."""

import re
from typing import Any, NamedTuple

import pytest

from tests.packs.conftest import PackCaller, PackServer
from tests.packs.openapi.test_tools import APIS, INLINE_DOCUMENT, Petstore, load, petstore, server
from tests.support.measuring import each

__all__ = ["petstore", "server"]  # fixtures

pytestmark = pytest.mark.requirement("X7")


class Refused(NamedTuple):
    """A call that fails: with what kind, and in which words."""

    tool: str
    arguments: dict[str, Any]
    kind: str
    says: str


def calls(
    path: str = "/list", method: str = "GET", api: str = "echo", **more: Any
) -> dict[str, Any]:
    return {"name": api, "path": path, "method": method, **more}


THING_PATH = "/things/{id}/parts/{part}"
FAILING_CALLS = [
    Refused("openapi_load", {"name": "x"}, "validation", "either spec_url or spec_content"),
    Refused(
        "openapi_load",
        {"name": "x", "spec_url": "http://x", "spec_content": "{}"},
        "validation",
        "either spec_url or",
    ),
    Refused(
        "openapi_load",
        {"name": "../x", "spec_content": INLINE_DOCUMENT},
        "validation",
        "`name` must begin",
    ),
    Refused("openapi_load", {"name": "x", "spec_content": "{]"}, "validation", "not valid JSON"),
    Refused(
        "openapi_load",
        {"name": "x", "spec_content": "a: [1"},
        "validation",
        "not valid YAML at line 2",
    ),
    Refused(
        "openapi_load",
        {"name": "x", "spec_content": "hello: world"},
        "validation",
        "neither `openapi`",
    ),
    Refused(
        "openapi_load",
        {"name": "x", "spec_content": "swagger: '1.2'"},
        "validation",
        "'1.2' is not supported",
    ),
    Refused(
        "openapi_load",
        {"name": "x", "spec_url": "SHOP/broken.json"},
        "validation",
        "not valid JSON",
    ),
    Refused(
        "openapi_load",
        {"name": "x", "spec_url": "SHOP/v2/gone"},
        "validation",
        "Failed to fetch .*404",
    ),
    Refused(
        "openapi_load", {"name": "x", "spec_url": "http://127.0.0.1:8081/x"}, "denied", "127.0.0.1"
    ),
    Refused("openapi_load", {"name": "x", "spec_url": "ftp://x/y"}, "denied", "."),
    Refused(
        "openapi_load",
        {"name": "x", "spec_content": INLINE_DOCUMENT, "base_url_override": "ftp://x"},
        "validation",
        "cannot be called",
    ),
    Refused(
        "openapi_load",
        {"name": "x", "spec_content": INLINE_DOCUMENT, "auth_header_name": "Host"},
        "validation",
        "'Host' is not",
    ),
    Refused(
        "openapi_load",
        {"name": "x", "spec_content": INLINE_DOCUMENT, "auth_header": "Token trun"},
        "validation",
        "has 4 characters besides its scheme",
    ),
    Refused(
        "openapi_list_endpoints",
        {"name": "no"},
        "not_found",
        "API 'no' not found. Loaded are: echo, new, old",
    ),
    Refused("openapi_list_endpoints", {"name": "echo", "limit": 0}, "validation", "limit"),
    Refused("openapi_list_endpoints", {"name": "echo", "offset": -1}, "validation", "offset"),
    Refused("openapi_get_operation", calls(api="no"), "not_found", "API 'no' not found"),
    Refused(
        "openapi_get_operation",
        calls("/pet/7", api="old"),
        "not_found",
        r"Similar paths are: /pet/\{petId\}",
    ),
    Refused(
        "openapi_get_operation", calls("/pets", api="old"), "not_found", "Similar paths are: /pet"
    ),
    Refused(
        "openapi_get_operation",
        calls("/pet", "PATCH", api="old"),
        "not_found",
        "That path has PUT, POST",
    ),
    Refused("openapi_call", calls(api="no"), "not_found", "API 'no' not found"),
    Refused("openapi_call", calls("/nowhere"), "not_found", "There is no GET /nowhere in echo"),
    Refused(
        "openapi_call",
        calls(THING_PATH, path_params={"id": 1}),
        "validation",
        "Missing required path parameters: `part`",
    ),
    Refused(
        "openapi_call",
        calls(THING_PATH),
        "validation",
        "Missing required path parameters: `id`, `part`",
    ),
    Refused(
        "openapi_call",
        calls(THING_PATH, path_params={"id": "", "part": None}),
        "validation",
        "`id`, `part`",
    ),
    Refused(
        "openapi_call",
        calls(THING_PATH, path_params={"id": 1, "part": 2, "x": 3}),
        "validation",
        "no path parameter `x`; it takes: `id`, `part`",
    ),
    *[
        Refused(
            "openapi_call",
            calls(THING_PATH, path_params={"id": step, "part": 2}),
            "validation",
            "must not have",
        )
        for step in ("..", ".", "a/../b", "..\\x", "%2e%2e/x", "a/.")
    ],
    Refused(
        "openapi_call",
        calls(THING_PATH, path_params={"id": {"a": {}}, "part": 2}),
        "validation",
        "not a string, a number",
    ),
    Refused("openapi_call", calls("/form", "POST"), "validation", "POST /form needs a `body`"),
    Refused("openapi_call", calls("/form", "POST", body=[1]), "validation", "must be an object"),
    Refused("openapi_call", calls(body={}), "validation", "takes no `body`"),
    Refused("openapi_call", calls("/text", "POST", body={}), "validation", "must be text"),
    Refused(
        "openapi_call",
        calls(
            "/pet/{petId}/uploadImage",
            "POST",
            api="old",
            path_params={"petId": 1},
            body={"file": {"data_base64": "!"}},
        ),
        "validation",
        "not base64",
    ),
    *[
        Refused("openapi_call", calls(headers={name: value}), "validation", says)
        for name, value, says in (
            ("Host", "evil", "'Host' cannot be given"),
            ("Content-Length", "1", "cannot be given"),
            ("X-Forwarded-For", "10.0.0.1", "cannot be given"),
            ("a b", "x", "cannot be given"),
            ("X-A", "a\r\nX-B: c", "that a header cannot hold"),
        )
    ],
    Refused("openapi_call", calls("/elsewhere"), "denied", "127.0.0.1"),
    Refused("openapi_call", calls(timeout_s=0), "validation", "timeout_s"),
    Refused("openapi_call", calls(max_response_bytes=0), "validation", "max_response_bytes"),
]


@pytest.fixture(scope="module", params=["mcp", "rest"])
def agent_with_apis(
    server: PackServer, petstore: Petstore, request: pytest.FixtureRequest
) -> PackCaller:
    """Return an agent with all three APIs for all refusals, none of which changes a value."""
    agent = server.agent(request.param)
    for name in APIS:
        load(agent, petstore, name)
    return agent


@each("case", FAILING_CALLS, ids=lambda case: f"{case.tool} {case.arguments}"[:90])
def test_a_failure_explains_the_problem_to_the_model(
    agent_with_apis: PackCaller, petstore: Petstore, case: Refused
) -> None:
    """This covers every documented error, and mistakes of an agent."""
    arguments = {
        name: value.replace("SHOP", petstore.url) if isinstance(value, str) else value
        for name, value in case.arguments.items()
    }

    reply = agent_with_apis.call(case.tool, **arguments)

    assert reply.failure is not None, reply
    assert re.search(case.says, reply.failure), reply.failure
    assert reply.kind in (None, case.kind)
