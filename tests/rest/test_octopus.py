"""What Octopus does with a tool server, in its order: one promise of the seed page per test."""

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from gatepost.app import build_app
from gatepost.check.pack_loading import load
from gatepost.config.settings import Config
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.calls.registry import Registry
from tests.rest import conftest as tools
from tests.rest.conftest import RUNS, TOOLS
from tests.support.client import RestClient, challenge_of
from tests.support.connections import HOST, ask
from tests.support.issuers import Idp
from tests.support.server import issuer_settings, running_server


@pytest.mark.requirement("O1")
def test_o1_tools_are_an_array_of_descriptors_that_the_token_may_see(
    rest_client: RestClient,
) -> None:
    """Each has name, description, input schema and, if any, output schema."""
    tools = {tool["name"]: tool for tool in rest_client.tools().json}
    create, search = tools["create_ticket"], tools["search_tickets"]

    assert set(create) == {"name", "description", "inputSchema", "outputSchema"}
    assert set(search) == {"name", "description", "inputSchema"}
    assert create["description"] == "Create a new support ticket. Returns its number."
    assert create["inputSchema"]["properties"]["priority"]["enum"] == [
        "low", "normal", "high", "urgent",
    ]  # fmt: skip
    assert create["inputSchema"]["required"] == ["subject"]
    assert not any("$defs" in json.dumps(tool) for tool in tools.values())


@pytest.mark.requirement("O1")
def test_o1_a_tool_beyond_the_token_is_not_listed_and_unknown(idp: Idp) -> None:
    """If the caller cannot obtain its scope, the tool does not exist for this caller."""
    with running_server(
        idp, [issuer_settings(idp)], tools={"load": [TOOLS]}, scopes={"obtainable": []},
        tenancy={"create_on_first_use": True},
    ) as server:  # fmt: skip
        without, holder = (
            RestClient(server),
            RestClient(server, server.token(scope="tickets:close")),
        )

        assert "close_ticket" not in without.names()
        assert "close_ticket" in holder.names()
        unknown = without.call("nothing_at_all")
        hidden = without.call("close_ticket", {"ticket_id": 1})
        assert hidden.error == unknown.error == (404, "not_found")
        assert (
            hidden.json["message"].replace("close_ticket", "nothing_at_all")
            == (unknown.json["message"])
        )


@pytest.mark.requirement("O2")
def test_o2_requests_and_results_have_no_envelope(rest_client: RestClient) -> None:
    """No envelope around either, whatever the client's defaults leave out."""
    answer = rest_client.call("create_ticket", {"subject": "No access", "priority": "high"})

    assert (answer.status, answer.json["status"]) == (200, "open")
    assert set(answer.json) == {"ticket_id", "status", "note"}


@pytest.mark.requirement("O2")
@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("echo", {"text": "hello"}, {"result": "hello"}),
        ("count_words", {}, {"result": [1, 2]}),
        (
            "draw",
            {},
            {
                "result": "Found 1 diagram",
                "images": [{"mime_type": "image/png", "data": tools.PIXEL}],
                "content": [{"type": "resource_link", "uri": "https://example.com/a", "name": "a"}],
            },
        ),
    ],
)
def test_o2_a_result_that_is_no_object_is_wrapped(
    rest_client: RestClient, tool: str, arguments: dict[str, Any], result: dict[str, Any]
) -> None:
    """Text, pictures and other blocks each have their member."""
    answer = rest_client.call(tool, arguments)

    assert (answer.status, answer.json) == (200, result)


TYPED_ANSWERS = {
    "count_open": (5, "5"),
    "list_open": (
        [{"ticket_id": 1, "status": "open", "note": None}],
        '[{"ticket_id":1,"status":"open","note":null}]',
    ),
}


@pytest.mark.requirement("O1", "O2", "TL-08")
@pytest.mark.parametrize("tool", TYPED_ANSWERS)
def test_o2_a_number_or_a_list_keeps_its_type(rest_client: RestClient, tool: str) -> None:
    """The schema in both lists says so, over both protocols."""
    value, text = TYPED_ANSWERS[tool]
    client = rest_client.server.client
    descriptor = next(offer for offer in rest_client.tools().json if offer["name"] == tool)
    answer = rest_client.call(tool)
    over_mcp = json.loads(client.call(rest_client.token, tool).body)["result"]

    assert (answer.status, answer.json) == (200, {"result": value})
    assert over_mcp["structuredContent"] == {"result": value}
    assert over_mcp["content"] == [{"type": "text", "text": text}]
    jsonschema_rs.Draft7Validator(descriptor["outputSchema"]).validate(answer.json)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.Draft7Validator(descriptor["outputSchema"]).validate({"result": text})


@pytest.mark.requirement("O3")
def test_o3_health_needs_no_token(rest_client: RestClient) -> None:
    """A health probe has no token."""
    answer = rest_client.health()

    assert (answer.status, answer.json["status"]) == (200, "ok")
    assert isinstance(answer.json["version"], str)


@pytest.mark.requirement("O4")
@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        ({"subject": "a", "priority": "asap"}, "priority", "'low', 'normal', 'high' or 'urgent'"),
        ({"priority": "low"}, "subject", "`subject` is required."),
        ({"subject": 3}, "subject", "(got 3)"),
        ({"subject": "a", "colour": "red"}, "colour", "it takes: `subject`, `priority`"),
        ({"subject": "a" * 201}, "subject", "at most 200"),
    ],
)
def test_o4_an_invalid_argument_is_named_with_the_allowed_values(
    rest_client: RestClient, arguments: dict[str, Any], field: str, message: str
) -> None:
    """The model reads the message and corrects itself; nothing ran."""
    before = len(RUNS)
    answer = rest_client.call("create_ticket", arguments)

    assert answer.error == (422, "validation_error")
    assert answer.json["field"] == field
    assert field in answer.json["message"]
    assert message in answer.json["message"]
    assert len(RUNS) == before


@pytest.mark.requirement("O5")
def test_o5_a_failing_upstream_has_a_retry_time(rest_client: RestClient) -> None:
    """Body, header and message have it; the agent gets only the message."""
    answer = rest_client.call("search_tickets", {"query": "open"})

    assert answer.error == (503, "upstream_unavailable")
    assert answer.json["retry_after"] == 13
    assert answer.raw.field("retry-after") == "13"
    assert answer.json["message"] == (
        "The ticket API is temporarily unavailable. Try again in 13 seconds."
    )


@pytest.mark.requirement("O5")
def test_o5_without_a_token_there_is_a_challenge(rest_client: RestClient) -> None:
    """The body is that of any error, with the challenge in a header."""
    for refused in (
        rest_client.send("GET", "/tools", token=""),
        rest_client.send("POST", "/tool/echo/call", body=b"{}", token=""),
        rest_client.send("GET", "/tools", token="garbage"),
    ):
        assert refused.error == (401, "invalid_token")
        assert challenge_of(refused.raw).startswith(
            f'Bearer resource_metadata="{rest_client.server.client.metadata_url}"'
        )


@pytest.mark.requirement("O5")
def test_o5_a_missing_scope_is_asked_for_with_all_scopes(rest_client: RestClient) -> None:
    """The call gets the challenge; the REST list leaves the tool out, and `/mcp` lists it."""
    answer = rest_client.call("close_ticket", {"ticket_id": 1})
    holder = RestClient(rest_client.server, rest_client.server.token(scope="tickets:close"))

    assert "close_ticket" not in rest_client.names()
    assert "close_ticket" in holder.names()
    assert "close_ticket" in rest_client.server.client.listed(rest_client.token)
    assert answer.error == (403, "insufficient_scope")
    assert 'scope="tickets:close"' in challenge_of(answer.raw)
    assert answer.json["scopes"] == ["tickets:close"]
    assert "tickets:close" in answer.json["message"]


FAILURE_KINDS = [
    ("validation", 422, "validation_error", {"field"}),
    ("not_found", 404, "not_found", set()),
    ("denied", 403, "denied", set()),
    ("conflict", 409, "conflict", set()),
    ("rate_limit", 429, "rate_limited", {"retry_after"}),
    ("upstream_unavailable", 503, "upstream_unavailable", {"retry_after"}),
    ("timeout", 504, "timeout", set()),
    ("internal", 500, "internal_error", set()),
]


@pytest.mark.requirement("O5")
@pytest.mark.parametrize(("kind", "status", "word", "third"), FAILURE_KINDS)
def test_o5_each_kind_of_failure_has_its_status_and_code(
    rest_client: RestClient, kind: str, status: int, word: str, third: set[str]
) -> None:
    """The failure table of the design, row by row."""
    answer = rest_client.call("fail", {"kind": kind})

    assert answer.error == (status, word)
    assert set(answer.json) == {"error", "message", *third}
    assert (answer.raw.field("retry-after") is not None) == ("retry_after" in third)


@pytest.mark.requirement("O5")
def test_o5_an_unexpected_error_is_reported_without_detail(rest_client: RestClient) -> None:
    """The agent gets an id; the exception stays in the log."""
    answer = rest_client.call("break_down")

    assert answer.error == (500, "internal_error")
    assert answer.raw.field("x-request-id") in answer.json["message"]
    assert b"secret-of-the-tool" not in answer.raw.body


@pytest.mark.requirement("O6")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/tools", b"", 200),
        ("HEAD", "/tools", b"", 200),
        ("DELETE", "/tools", b"", 405),
        ("OPTIONS", "/tools", b"", 405),
        ("GET", "/tool/echo/call", b"", 405),
        ("PUT", "/tool/echo/call", b"{}", 405),
        ("POST", "/tool/echo/call", b"{", 400),
        ("POST", "/tool/echo/call", b"[1]", 422),
        ("POST", "/tool/nothing/call", b"{}", 404),
        ("POST", "/tool/a/b/call", b"{}", 404),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/health", b"", 200),
        ("GET", "/openapi.json", b"", 200),
        ("POST", "/openapi.json", b"{}", 405),
        ("POST", "/favicon.ico", b"{}", 405),
    ],
)
def test_o6_every_answer_is_json(
    rest_client: RestClient, method: str, path: str, body: bytes, status: int
) -> None:
    """Answers to requests that no route serves are JSON, too, as the client checks each type."""
    answer = rest_client.send(method, path, body=body)

    assert answer.status == status
    if status >= 400:
        assert answer.error
        assert (answer.raw.field("allow") is not None) == (status == 405)


@pytest.mark.requirement("O7")
@pytest.mark.parametrize("path", ["/tools", "/tool/echo/call"])
async def test_o7_production_refuses_plain_http(path: str) -> None:
    """This holds also behind an untrusted proxy; development allows loopback."""
    tree = {
        "resource": "https://mcp.example.com/mcp",
        "mode": "production",
        "storage": {"database": "memory:"},
    }
    config = msgspec.convert(tree, Config)
    async with opened(
        config, load(config.tools, config.packs, config.network), KeyRing.ephemeral()
    ) as services:
        app = build_app(config, services)
        claimed = (HOST, (b"x-forwarded-proto", b"https"))
        answers = [
            await ask(app, path, scheme="http"),
            await ask(app, path, scheme="http", headers=claimed),
        ]
        private = await ask(app, path, scheme="https")

    assert [(answer.status, answer.json["error"]) for answer in answers] == [
        (400, "https_required")
    ] * 2
    assert all(answer.headers.get("content-type") == "application/json" for answer in answers)
    assert private.status == 401


@pytest.mark.requirement("O10")
def test_o10_more_than_a_hundred_tools_are_refused_with_an_alternative(
    idp: Idp, tmp_path: Any
) -> None:
    """The client would cut the list at a place of its own; MCP lists them all."""
    many = tmp_path / "many.py"
    many.write_text(
        "from gatepost import CallContext, Pack\n"
        "pack = Pack('many')\n"
        "async def one(ctx: CallContext) -> str:\n"
        "    'One of many.'\n"
        "    return 'ok'\n"
        "for n in range(101):\n"
        "    pack.tool(name=f'tool_{n}', **({'scopes': {'more'}} if n == 100 else {}))(one)\n"
    )
    settings: dict[str, Any] = {
        "tools": {"load": [str(many)]},
        "scopes": {"obtainable": []},
        "tenancy": {"create_on_first_use": True},
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as server:
        few, all_of_them = RestClient(server), RestClient(server, server.token(scope="more"))
        refused = all_of_them.tools()

        assert len(few.names()) == 100
        assert refused.error == (409, "too_many_tools")
        assert "101 tools" in refused.json["message"]
        assert "fewer scopes" in refused.json["message"]
        assert "`tools.packs`" in refused.json["message"]
        assert "capabilities" not in refused.json["message"]
        assert "pack:many (101)" in refused.json["message"]
        assert all_of_them.call("tool_100").json == {"result": "ok"}
        assert len(server.client.listed(all_of_them.token)) == 101


@pytest.mark.requirement("O11")
@pytest.mark.parametrize(
    "name", ["create-ticket", "Create", "a b", "a.b", "ä", "", "a/b", "a" * 65]
)
def test_o11_a_name_outside_the_grammar_is_refused_at_registration(
    rest_client: RestClient, name: str
) -> None:
    """The error has the name, and the route does not know the tool."""
    with pytest.raises(ValueError, match="must be 1 to 64 of a-z, 0-9 and _"):
        Pack("p").tool(name=name)(tools.create_ticket) if name else Registry(
            [msgspec.structs.replace(tools.pack.tools["create_ticket"], name=name)]
        )
    if name.isascii() and name.replace("-", "").isalnum():
        assert rest_client.call(name).error == (404, "not_found")
