"""What an upstream sends is one of three kinds of message, or it is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.upstreams.connection import (
    UpstreamError,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.transport.incoming import (
    MAX_VALUES,
    InvalidMessage,
    UpstreamResponse,
    read_messages,
)

encode = msgspec.json.encode
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=10,
)
MEMBERS = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "code"])


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    """No bytes raise another error."""
    try:
        messages = read_messages(data, batches=True)
    except InvalidMessage:
        return
    assert messages


@given(st.dictionaries(MEMBERS, JSON_VALUES) | JSON_VALUES, st.booleans())
def test_values_are_a_message_or_are_refused(value: Any, versioned: bool) -> None:
    """The members of a message have their declared types."""
    if versioned and isinstance(value, dict):
        value = {**value, "jsonrpc": "2.0"}
    try:
        (message,) = read_messages(encode(value))
    except InvalidMessage:
        return
    if isinstance(message, UpstreamResponse):
        assert message.id is None or isinstance(message.id, int | str)
        assert isinstance(message.outcome, UpstreamResult | UpstreamError)
    else:
        assert isinstance(message.method, str)
        assert isinstance(message.params, dict)


def test_messages_are_read() -> None:
    """There is one case for each kind."""
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"id": 1, "result": {"a": 1}}, UpstreamResponse(1, UpstreamResult({"a": 1}))),
        ({"id": "1", "error": {"code": -1, "message": "m", "data": [2]}},
         UpstreamResponse("1", UpstreamError(-1, "m", [2]))),
        ({"error": {"code": -1, "message": "m"}}, UpstreamResponse(None, UpstreamError(-1, "m"))),
        ({"id": 0, "method": "ping"}, UpstreamRequest(0, "ping", {})),
        ({"method": "n", "params": {"b": 2}}, UpstreamNotification("n", {"b": 2})),
    ]  # fmt: skip
    for value, message in cases:
        assert read_messages(encode({"jsonrpc": "2.0", **value})) == [message]


REFUSED_MESSAGES: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "not JSON"),
    "not UTF-8": (b'{"jsonrpc":"2.0","method":"\xff"}', "not JSON"),
    "another version": (b'{"jsonrpc":"1.0","method":"m"}', "not JSON-RPC"),
    "a batch": (b'[{"jsonrpc":"2.0","method":"m"}]', "not JSON-RPC"),
    "a null id": (b'{"jsonrpc":"2.0","method":"m","id":null}', "id"),
    "both": (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}', "both"),
    "neither": (b'{"jsonrpc":"2.0","id":1}', "neither"),
    "a list as result": (b'{"jsonrpc":"2.0","id":1,"result":[]}', "object"),
    "a text as code": (b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}', "code"),
    "a huge number": (b'{"jsonrpc":"2.0","id":1,"result":{"a":1e999}}', "not JSON"),
    "a long number": (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b}}' % (b"9" * 500_000), "digits"),
    "depth": (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b}}' % (b"[" * 99 + b"]" * 99), "deeply"),
    "values": (b'{"jsonrpc":"2.0","id":1,"result":{"a":[%b0]}}' % (b"0," * MAX_VALUES), "values"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED_MESSAGES.values(), ids=REFUSED_MESSAGES)
def test_an_invalid_message_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    """The reason does not quote the message."""
    with pytest.raises(InvalidMessage, match=reason):
        read_messages(data)
