"""A secret that is split over members or blocks shows in no copy, and the rest stays as it was."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.redaction.echo_server import SECRETS, EchoServer, opened, overheard, texts
from tests.secrets.conftest import SAID
from tests.support.measuring import each

NAMES = ("PIN", "TOKEN")
INNOCENT = st.sampled_from(
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
OTHERS = st.none() | st.booleans() | st.integers(0, 9) | INNOCENT
FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with opened() as server:
        yield server


class SplitSecret:
    """Leaves in a row, one secret split over some of them, and what must become of each."""

    def __init__(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        value = SECRETS["acme"][name]
        marks = f"[REDACTED:{name}]"
        cuts = sorted(data.draw(st.sets(st.integers(1, len(value) - 1), min_size=1, max_size=4)))
        self.pieces = [value[a:b] for a, b in zip([0, *cuts], [*cuts, len(value)], strict=True)]
        before, behind = data.draw(INNOCENT), data.draw(INNOCENT)
        told, clean = [*self.pieces], [marks] * len(self.pieces)
        told[0], clean[0] = before + told[0], before + clean[0]
        told[-1], clean[-1] = told[-1] + behind, clean[-1] + behind
        first, last = (data.draw(st.lists(OTHERS, max_size=3)) for _ in range(2))
        self.value = value
        self.leaves: list[tuple[Any, Any]] = [
            *((one, one) for one in first),
            *zip(told, clean, strict=True),
            *((one, one) for one in last),
        ]


def shaped(data: st.DataObject, leaves: list[tuple[Any, Any]], depth: int = 0) -> tuple[Any, Any]:
    """An object or list that holds these leaves in their order, told and clean."""
    told: list[Any] = []
    clean: list[Any] = []
    rest = [*leaves]
    while rest:
        many = data.draw(st.integers(1, len(rest)))
        inner, rest = rest[:many], rest[many:]
        if many > 1 and depth < 3 and data.draw(st.booleans()):
            each = shaped(data, inner, depth + 1)
            told.append(each[0])
            clean.append(each[1])
        else:
            told += [one for one, _ in inner]
            clean += [one for _, one in inner]
    if depth and data.draw(st.booleans()):
        return told, clean
    return tuple({f"k{at}": one for at, one in enumerate(each)} for each in (told, clean))  # type: ignore[return-value]


def result(answer: str) -> dict[str, Any]:
    """The result of a call by MCP, as an answer or as the last event of a stream."""
    lines = [line.removeprefix("data:") for line in answer.splitlines()]
    whole = [json.loads(line) for line in lines if line.strip().startswith("{")]
    return dict(whole[-1]["result"])


@pytest.mark.requirement("P13")
@FEW
@given(st.data())
def test_neither_copy_shows_a_secret_split_over_members(
    server: EchoServer, data: st.DataObject
) -> None:
    """Text, structured value and the answer by REST say the same, with the secret's parts gone."""
    told, clean = shaped(data, SplitSecret(data).leaves)

    for answer in (server.call("give", value=told), server.old("give", value=told)):
        shown = result(answer)
        assert shown["structuredContent"] == clean
        assert json.loads(shown["content"][0]["text"]) == clean
    assert json.loads(server.rest("give", value=told)) == clean


@pytest.mark.requirement("P13")
@FEW
@given(st.data())
def test_no_block_shows_a_part_of_a_secret(server: EchoServer, data: st.DataObject) -> None:
    """Texts among other blocks, and a copy that the author wrote in another way."""
    told, clean = shaped(data, SplitSecret(data).leaves)
    texts = [(one, other) for one, other in SplitSecret(data).leaves if isinstance(one, str)]

    shown = result(server.call("give_apart", value=told, texts=[one for one, _ in texts]))

    first, *others = [block["text"] for block in shown["content"] if block["type"] == "text"]
    assert shown["structuredContent"] == json.loads(first) == clean
    assert others == [other for _, other in texts]
    assert {block["name"] for block in shown["content"] if "name" in block} <= {"innocent"}


SPLIT = [
    ({"authorization": "Bearer {}", "accept": "application/json"}, "TOKEN"),
    ({"authorization": "Bearer {}", "accept": "application/json"}, "PIN"),
    ({"rows": ["Bearer {}", "application/json"]}, "PIN"),
]


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(("value", "name"), SPLIT)
def test_neighbours_of_a_credential_stay(server: EchoServer, value: Any, name: str) -> None:
    """What follows a secret behind `Bearer` in another member is no part of it."""
    written = json.dumps(value)
    told = json.loads(written.replace("{}", SECRETS["acme"][name]))
    clean = json.loads(written.replace("{}", f"[REDACTED:{name}]"))

    shown = result(server.call("give", value=told))

    assert shown["structuredContent"] == json.loads(shown["content"][0]["text"]) == clean
    assert json.loads(server.rest("give", value=told)) == clean


MIXED = [
    ({"correct-horse": "-battery-staple"}, {"[REDACTED:TOKEN]": "[REDACTED:TOKEN]"}),
    ({"a": "86427", "b": 53108642, "c": "753"}, dict.fromkeys("abc", "[REDACTED:PIN]")),
    ({"a": 86427531, "b": 8642753}, None),
]


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(("told", "clean"), MIXED)
def test_names_and_numbers_are_parts_as_well(server: EchoServer, told: Any, clean: Any) -> None:
    """A secret may go on from a name to its value, and over a number between two strings."""
    shown = result(server.call("give", value=told))

    assert shown["structuredContent"] == json.loads(shown["content"][0]["text"]) == (clean or told)


def read(server: EchoServer, text: str) -> str:
    SAID[0] = text
    return server.mcp("resources/read", uri="parrot://said")


def listed(server: EchoServer, text: str) -> str:
    SAID[0] = text
    return server.mcp("resources/list")


def logged(server: EchoServer, text: str) -> str:
    with overheard("json") as log:
        server.call("crash", text=text)
    return log.getvalue()


def replayed(server: EchoServer, text: str) -> str:
    key = ("Idempotency-Key", f"split-{hash(text)}")
    server.rest("say_once", key, text=text)
    return server.rest("say_once", key, text=text)


PLACES: dict[str, Callable[[EchoServer, str], str]] = {
    "text": lambda server, text: server.call("say", text=text),
    "text in a session": lambda server, text: server.old("say", text=text),
    "string of a structured value": lambda server, text: server.call("say_rows", text=text),
    "failure": lambda server, text: server.call("fail_plainly", text=text),
    "REST failure": lambda server, text: server.rest("fail_plainly", text=text),
    "progress": lambda server, text: server.call("report_once", text=text),
    "question": lambda server, text: server.call("ask_plainly", text=text),
    "task": lambda server, text: server.task(text=text),
    "resource": read,
    "list of resources": listed,
    "REST text": lambda server, text: server.rest("say", text=text),
    "outcome of an earlier call": replayed,
    "log": logged,
}


@pytest.mark.requirement("P13")
@each("place", PLACES)
def test_a_text_that_is_json_is_read_like_one(server: EchoServer, place: str) -> None:
    """Wherever a tool writes a document into a text, and within another one."""
    document = {"a": "correct-horse", "n": 7, "b": ["-battery-staple"], "c": "application/json"}
    for told in (document, {"inner": json.dumps(document)}):
        answer = texts(PLACES[place](server, json.dumps(told)))

        assert "correct-horse" not in answer
        assert "-battery-staple" not in answer
        assert "[REDACTED:TOKEN]" in answer
        assert "application/json" in answer
