"""A secret that is split over members or blocks shows in no copy, and the rest stays as it was."""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.redaction.conftest import KEPT_TEXT
from tests.support.client import MODERN_REVISION, RestClient, modern_request
from tests.support.issuers import Idp
from tests.support.measuring import each, eventually, formatted_logs
from tests.support.server import Server, issuer_settings, running_server

META = "io.modelcontextprotocol/"
TASKS = {"extensions": {META + "tasks": {}}, "elicitation": {}}

SECRETS = {
    "acme": {
        "API_KEY": 's3cr3t-Kéy/with"quotes\\\\+%41&x',
        "PIN": "8642753108642753",
        "TOKEN": "correct-horse-battery-staple",
    },
    "zeta": {"OTHER": "zeta-has-another-secret"},
}


class EchoServer(Server):
    """The server, its tenants' secrets, and every way to make it say something."""

    @cached_property
    def agent_tokens(self) -> dict[str, str]:
        """Return an agent's token for each tenant."""
        return {name: self.token(org_id=name) for name in (*SECRETS, "bare")}

    def put(self, tenant: str, name: str, value: str) -> None:
        """Set a secret in the running server."""
        self.run(self.services.secrets.put(tenant, name, value))

    def mcp(self, method: str, *, tenant: str = "acme", level: str = "debug", **params: Any) -> str:
        """Return the whole answer to one request of 2026-07-28, events included."""
        fields, body = modern_request(method, params)
        message = json.loads(body)
        message["params"]["_meta"] |= {
            "progressToken": 1,
            META + "logLevel": level,
            META + "clientCapabilities": TASKS,
        }
        sent = json.dumps(message).encode()
        answer = self.client.send("POST", None, fields, sent, token=self.agent_tokens[tenant])
        return answer.body.decode()

    def call(
        self, tool: str, *, tenant: str = "acme", level: str = "debug", **arguments: Any
    ) -> str:
        """Call a tool by MCP."""
        return self.mcp("tools/call", tenant=tenant, level=level, name=tool, arguments=arguments)

    def old(self, tool: str, **arguments: Any) -> str:
        """Call a tool within a session of 2025-06-18."""
        client, token = self.client, self.agent_tokens["acme"]
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        fields = [("Accept", "application/json, text/event-stream")]
        fields.append(("Mcp-Session-Id", client.open(token)))
        return client.send("POST", None, fields, body.encode(), token=token).body.decode()

    def rest(self, tool: str, *fields: tuple[str, str], **arguments: Any) -> str:
        """Call a tool by plain REST."""
        rest_client = RestClient(self, self.agent_tokens["acme"])
        return rest_client.call(tool, arguments, *fields).raw.body.decode()

    def task(self, **arguments: Any) -> str:
        """Return the answer about a task after it has ended."""
        started = json.loads(self.call("last", **arguments))["result"]
        name = started["task"]["taskId"] if "task" in started else started["taskId"]

        eventually(lambda: '"working"' not in self._about(name), within=10)
        return self._about(name)

    def _about(self, name: str) -> str:
        fields, _ = modern_request("tasks/get", {"taskId": name})
        meta = {META + "protocolVersion": MODERN_REVISION, META + "clientCapabilities": TASKS}
        params = {"taskId": name, "_meta": meta}
        message_body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}
        body = json.dumps(message_body).encode()
        token = self.agent_tokens["acme"]
        return self.client.send("POST", None, fields, body, token=token).body.decode()


@contextmanager
def echo_server() -> Iterator[EchoServer]:
    """Serve with the secrets of both tenants."""
    settings: Mapping[str, Any] = {
        "tools": {"packs": [], "load": ["tests.redaction.conftest"]},
        "tenancy": {"create_on_first_use": True},
        "log": {"level": "debug"},
    }
    with (
        Idp() as idp,
        running_server(idp, [issuer_settings(idp)], kind=EchoServer, **settings) as server,
    ):
        for tenant, secrets in SECRETS.items():
            for name, value in secrets.items():
                server.put(tenant, name, value)
        yield server


def texts(answer: str) -> str:
    """Return all strings and names of an answer or its events, with the base64 texts decoded."""
    texts: list[str] = []
    lines = [line.removeprefix("data:") for line in answer.splitlines()]
    for line in lines:
        if line.strip().startswith(("{", "[")):
            _gather(json.loads(line), texts)
    return "\n~\n".join(texts)


def _gather(value: Any, texts: list[str]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            texts.append(name)
            _gather(inner, texts)
    elif isinstance(value, list):
        for inner in value:
            _gather(inner, texts)
    elif value is not None:
        texts.append(str(value))
        try:
            texts.append(base64.b64decode(str(value), validate=True).decode(errors="replace"))
        except (binascii.Error, ValueError):
            return


NAMES = ("PIN", "TOKEN")
INNOCENT_TEXTS = st.sampled_from(
    [
        "application/json",
        "",
        "Bearer ",
        "Authorization: Bearer ",
        "text",
        "a=1&b",
        "été\n",
        "x\\y",
        "0",
    ]
)
OTHER_VALUES = st.none() | st.booleans() | st.integers(0, 9) | INNOCENT_TEXTS
FEW_EXAMPLES = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with echo_server() as server:
        yield server


class SplitSecret:
    """Leaves in a row, one secret split over some of them, and what must become of each."""

    def __init__(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        value = SECRETS["acme"][name]
        marks = f"[REDACTED:{name}]"
        cuts = sorted(data.draw(st.sets(st.integers(1, len(value) - 1), min_size=1, max_size=4)))
        self.pieces = [value[a:b] for a, b in zip([0, *cuts], [*cuts, len(value)], strict=True)]
        before, behind = data.draw(INNOCENT_TEXTS), data.draw(INNOCENT_TEXTS)
        parts, clean = [*self.pieces], [marks] * len(self.pieces)
        parts[0], clean[0] = before + parts[0], before + clean[0]
        parts[-1], clean[-1] = parts[-1] + behind, clean[-1] + behind
        first, last = (data.draw(st.lists(OTHER_VALUES, max_size=3)) for _ in range(2))
        self.value = value
        self.leaves: list[tuple[Any, Any]] = [
            *((piece, piece) for piece in first),
            *zip(parts, clean, strict=True),
            *((piece, piece) for piece in last),
        ]


def shaped_value(
    data: st.DataObject, leaves: list[tuple[Any, Any]], depth: int = 0
) -> tuple[Any, Any]:
    """Return an object or list with these leaves in their order, once original and once clean."""
    shapes: list[Any] = []
    clean: list[Any] = []
    rest = [*leaves]
    while rest:
        many = data.draw(st.integers(1, len(rest)))
        inner, rest = rest[:many], rest[many:]
        if many > 1 and depth < 3 and data.draw(st.booleans()):
            each = shaped_value(data, inner, depth + 1)
            shapes.append(each[0])
            clean.append(each[1])
        else:
            shapes += [part for part, _ in inner]
            clean += [mark for _, mark in inner]
    if depth and data.draw(st.booleans()):
        return shapes, clean
    return tuple({f"k{at}": leaf for at, leaf in enumerate(each)} for each in (shapes, clean))  # type: ignore[return-value]


def result(answer: str) -> dict[str, Any]:
    """Return the result of a call by MCP, as an answer or as the last event of a stream."""
    lines = [line.removeprefix("data:") for line in answer.splitlines()]
    whole = [json.loads(line) for line in lines if line.strip().startswith("{")]
    return dict(whole[-1]["result"])


@pytest.mark.requirement("P13")
@FEW_EXAMPLES
@given(st.data())
def test_no_copy_of_an_answer_shows_a_secret_split_over_members(
    server: EchoServer, data: st.DataObject
) -> None:
    """Text, structured value and the answer over REST agree."""
    value, clean = shaped_value(data, SplitSecret(data).leaves)

    for answer in (server.call("give", value=value), server.old("give", value=value)):
        output = result(answer)
        assert output["structuredContent"] == clean
        assert json.loads(output["content"][0]["text"]) == clean
    assert json.loads(server.rest("give", value=value)) == clean


@pytest.mark.requirement("P13")
@FEW_EXAMPLES
@given(st.data())
def test_no_block_shows_a_part_of_a_secret(server: EchoServer, data: st.DataObject) -> None:
    """Texts among other blocks, and a copy that the author wrote in another way."""
    value, clean = shaped_value(data, SplitSecret(data).leaves)
    texts = [(leaf, other) for leaf, other in SplitSecret(data).leaves if isinstance(leaf, str)]

    output = result(server.call("give_apart", value=value, texts=[text for text, _ in texts]))

    first, *others = [block["text"] for block in output["content"] if block["type"] == "text"]
    assert output["structuredContent"] == json.loads(first) == clean
    assert others == [other for _, other in texts]
    assert {block["name"] for block in output["content"] if "name" in block} <= {"innocent"}


SPLIT_CREDENTIALS = [
    ({"authorization": "Bearer {}", "accept": "application/json"}, "TOKEN"),
    ({"authorization": "Bearer {}", "accept": "application/json"}, "PIN"),
    ({"rows": ["Bearer {}", "application/json"]}, "PIN"),
]


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(("value", "name"), SPLIT_CREDENTIALS)
def test_text_next_to_a_credential_is_not_redacted(
    server: EchoServer, value: Any, name: str
) -> None:
    """Text after `Bearer` in another member is no part of the credential."""
    written = json.dumps(value)
    given_value = json.loads(written.replace("{}", SECRETS["acme"][name]))
    clean = json.loads(written.replace("{}", f"[REDACTED:{name}]"))

    output = result(server.call("give", value=given_value))

    assert output["structuredContent"] == json.loads(output["content"][0]["text"]) == clean
    assert json.loads(server.rest("give", value=given_value)) == clean


MIXED_DOCUMENTS = [
    ({"correct-horse": "-battery-staple"}, {"[REDACTED:TOKEN]": "[REDACTED:TOKEN]"}),
    ({"a": "86427", "b": 53108642, "c": "753"}, dict.fromkeys("abc", "[REDACTED:PIN]")),
    ({"a": 86427531, "b": 8642753}, None),
]


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(("value", "clean"), MIXED_DOCUMENTS)
def test_a_secret_split_over_names_and_numbers_is_redacted(
    server: EchoServer, value: Any, clean: Any
) -> None:
    """Its parts may be a name and its value, or strings with a number between them."""
    output = result(server.call("give", value=value))

    assert (
        output["structuredContent"] == json.loads(output["content"][0]["text"]) == (clean or value)
    )


def read_resource(server: EchoServer, text: str) -> str:
    KEPT_TEXT[0] = text
    return server.mcp("resources/read", uri="parrot://said")


def listed_resources(server: EchoServer, text: str) -> str:
    KEPT_TEXT[0] = text
    return server.mcp("resources/list")


def logged_text(server: EchoServer, text: str) -> str:
    with formatted_logs("json") as log:
        server.call("crash", text=text)
    return log.getvalue()


def replayed_answer(server: EchoServer, text: str) -> str:
    key = ("Idempotency-Key", f"split-{hash(text)}")
    server.rest("say_once", key, text=text)
    return server.rest("say_once", key, text=text)


OUTPUT_CHANNELS: dict[str, Callable[[EchoServer, str], str]] = {
    "text": lambda server, text: server.call("say", text=text),
    "text in a session": lambda server, text: server.old("say", text=text),
    "string of a structured value": lambda server, text: server.call("say_rows", text=text),
    "failure": lambda server, text: server.call("fail_plainly", text=text),
    "REST failure": lambda server, text: server.rest("fail_plainly", text=text),
    "progress": lambda server, text: server.call("report_once", text=text),
    "question": lambda server, text: server.call("ask_plainly", text=text),
    "task": lambda server, text: server.task(text=text),
    "resource": read_resource,
    "list of resources": listed_resources,
    "REST text": lambda server, text: server.rest("say", text=text),
    "outcome of an earlier call": replayed_answer,
    "log": logged_text,
}


@pytest.mark.requirement("P13")
@each("channel", OUTPUT_CHANNELS)
def test_a_secret_split_within_a_json_text_is_redacted(server: EchoServer, channel: str) -> None:
    """The JSON may be a text in the answer or within another JSON text."""
    document = {"a": "correct-horse", "n": 7, "b": ["-battery-staple"], "c": "application/json"}
    for text in (document, {"inner": json.dumps(document)}):
        answer = texts(OUTPUT_CHANNELS[channel](server, json.dumps(text)))

        assert "correct-horse" not in answer
        assert "-battery-staple" not in answer
        assert "[REDACTED:TOKEN]" in answer
        assert "application/json" in answer
