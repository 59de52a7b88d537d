"""What results of upstreams become; nothing in them is believed."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.tools.schemas.raw_schema import checker
from gatepost.upstreams.calls.outcome import (
    Malformed,
    completion_outcome,
    prompt_outcome,
    resource_outcome,
    tool_outcome,
)
from gatepost.upstreams.connection import UpstreamResult
from tests.upstreams.calls.test_calls import CRM

PIXEL = "iVBORw0KGgo="
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


def content_of(*blocks: dict[str, Any]) -> list[Any]:
    return [*tool_outcome(CRM, UpstreamResult({"content": [*blocks]})).content]


@pytest.mark.requirement("E5")
def test_known_blocks_pass_natively_and_are_marked() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "hello"},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "t"}},
        {"type": "resource_link", "uri": "a://b", "name": "b"},
    ]

    outcome = tool_outcome(CRM, UpstreamResult({"content": blocks}))

    assert [*outcome.content] == blocks
    assert outcome.untrusted == "upstream crm"


@pytest.mark.requirement("E10")
def test_empty_texts_are_left_out() -> None:
    """E10: some servers end each answer with one."""
    blocks = (
        {"type": "text", "text": ""},
        {"type": "text", "text": "a"},
        {"type": "text", "text": ""},
    )

    assert content_of(*blocks) == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "video", "data": PIXEL},
        {"type": "image", "data": "no base64!", "mimeType": "image/png"},
        {"type": "image", "data": PIXEL, "mimeType": "image/png\r\nX: y"},
        {"type": "resource", "resource": {"uri": "a://b"}},
    ],
)
def test_an_unsupported_block_becomes_a_text_that_names_it(block: dict[str, Any]) -> None:
    (shown_block,) = content_of(block)

    assert shown_block["type"] == "text"
    assert block["type"] in shown_block["text"]


def test_foreign_members_are_dropped_but_for_those_of_mcp_apps() -> None:
    block = {
        "type": "text",
        "text": "a",
        "x": 1,
        "_meta": {"ui": {"resourceUri": "ui://a"}, "b": 1},
    }

    (shown_block,) = content_of(block)

    assert shown_block == {"type": "text", "text": "a", "_meta": {"ui": {"resourceUri": "ui://a"}}}


def test_a_structured_answer_is_checked_against_its_schema() -> None:
    check = checker({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}})
    outcome = tool_outcome(
        CRM, UpstreamResult({"content": [], "structuredContent": {"n": 1}}), check
    )

    assert bytes(outcome.structured) == b'{"n":1}'
    assert outcome.content[0]["text"] == '{"n":1}'
    for bad in ({"structuredContent": {"n": "1"}}, {}):
        with pytest.raises(Malformed, match="output schema"):
            tool_outcome(CRM, UpstreamResult({"content": [], **bad}), check)


def test_an_error_of_a_tool_is_its_own_kind_of_failure() -> None:
    """E12: it counts neither as an outage nor against the output schema."""
    value = {"content": [{"type": "text", "text": "no such row\u202e"}], "isError": True}
    outcome = tool_outcome(CRM, UpstreamResult(value), checker({"type": "object"}))

    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.message) == ("tool_error", "no such row")
    assert outcome.untrusted == "upstream crm"


def test_results_of_resources_prompts_and_completions_are_read() -> None:
    read = {"contents": [{"uri": "a://b", "text": "t", "_meta": {"ui": {"csp": {}}}}]}
    got = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}
    values = [str(number) for number in range(150)]

    resource = resource_outcome(CRM, UpstreamResult(read), {"a://b": "ours://b"})
    prompt = prompt_outcome(CRM, UpstreamResult(got))
    completion = completion_outcome(CRM, UpstreamResult({"completion": {"values": values}}))

    assert [*resource.content] == [{"uri": "ours://b", "text": "t", "_meta": {"ui": {"csp": {}}}}]
    assert [*prompt.content] == got["messages"]
    assert bytes(completion.structured).count(b",") == 100
    assert b'"hasMore":true' in bytes(completion.structured)


@given(
    st.dictionaries(
        st.sampled_from(["content", "contents", "messages", "completion", "isError"]), JSON
    )
)
def test_a_result_of_any_shape_is_read_or_refused(value: Any) -> None:
    for read in (tool_outcome, resource_outcome, prompt_outcome, completion_outcome):
        with suppress(Malformed):
            read(CRM, UpstreamResult(value))
