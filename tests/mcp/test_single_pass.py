"""Reading a usual request in one pass gives the same result as reading it in parts."""

import json

import pytest
from msgspec import UNSET

from gatepost.mcp.jsonrpc import IncomingMessage, JsonRpcError, read
from gatepost.mcp.request import read_params, read_whole
from gatepost.mcp.revisions import MODERN
from tests.support.measuring import each

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
PARAMS = {"name": "echo", "arguments": {"text": "hello", "deep": [[{"a": 1}]]}, "_meta": META}


def body(**more: object) -> bytes:
    """Return the usual request with these members changed; None omits one."""
    message = {**CALL, "params": PARAMS, **more}
    return json.dumps({k: v for k, v in message.items() if v is not None}).encode()


def nested_body(levels: int) -> bytes:
    nested = "[" * levels + "]" * levels
    return body(params={**PARAMS, "arguments": {"x": 0}}).replace(
        b'"x": 0', f'"x": {nested}'.encode()
    )


IN_ONE_PASS = {
    "a call": body(),
    "a text for an id": body(id="a-b c"),
    "an escaped id": body(id='\u00e9"'),
    "the largest id": body(id=2**63),
    "a list": body(method="tools/list", params={"_meta": META, "cursor": "x"}),
    "an unknown method": body(method="no/such"),
    "more members than the server reads": body(more={"a": [1]}),
    "a null that counts as nothing": body(
        method="tools/list", params={"_meta": META, "cursor": None}
    ),
    "text that is not ASCII": json.dumps(
        {**CALL, "params": {**PARAMS, "arguments": {"text": "h\u00e9llo"}}}, ensure_ascii=False
    ).encode(),
    "members twice": body()[:-1] + b', "id": 2}',
    "blanks": b"  \r\n" + body() + b"\n",
    "as deep as may be": nested_body(58),
    "JSON in a text": body(
        params={**PARAMS, "arguments": {"text": json.dumps([{"a": [[["b"]]]}] * 999), "x": [[]]}}
    ),
}
IN_PARTS = {
    "a batch": b"[" + body() + b"]",
    "a notification": body(id=None),
    "no id at all": body(id=None, method="notifications/x"),
    "null for an id": body().replace(b'"id": 1', b'"id": null'),
    "an object for an id": body(id={}),
    "an id that is too long": body(id="x" * 2000),
    "no version": body(jsonrpc=None),
    "another version": body(jsonrpc="1.0"),
    "a number for a version": body(jsonrpc=2),
    "no method": body(method=None),
    "an empty method": body(method=""),
    "a number for a method": body(method=1),
    "no parameters": body(params=None),
    "null for parameters": body().replace(json.dumps(PARAMS).encode(), b"null"),
    "a list for parameters": body(params=[1]),
    "parameters of the wrong types": body(params={**PARAMS, "name": 1}),
    "no meta": body(params={"name": "echo"}),
    "a session's meta": body(params={**PARAMS, "_meta": {"progressToken": 1}}),
    "another revision": body(
        params={
            **PARAMS,
            "_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2025-11-25"},
        }
    ),
    "a text for meta": body(params={**PARAMS, "_meta": "x"}),
    "a response": json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode(),
    "a request that is a response": body(result={}),
    "a request that is an error": body(error={"code": 1, "message": "x"}),
    "no JSON": body()[:-1],
    "two documents": body() + body(),
    "nothing": b"",
    "a number": b"1",
    "text that is no UTF-8": body().replace(b"hello", b"h\xe9llo"),
    "a half of a pair": body().replace(b"hello", b"h\xed\xa0\x80"),
    "too deep": nested_body(70),
    "far too deep": nested_body(100_000),
}


@pytest.mark.requirement("J-01", "P1")
@each("data", IN_ONE_PASS.values(), ids=IN_ONE_PASS.keys())
def test_one_pass_parsing_agrees_with_parsing_in_parts(data: bytes) -> None:
    """The id, method and parameters are the same."""
    usual = read_whole(data, bounded=False)
    message = read(data)

    assert usual is not None
    assert isinstance(message, IncomingMessage)
    assert (usual[0].id, usual[0].method) == (message.id, message.method)
    assert usual[1] == message.id
    assert message.refusal is None
    assert (usual[2], None) == read_params(message.params)


@pytest.mark.requirement("J-01", "P1")
@each("data", IN_PARTS.values(), ids=IN_PARTS.keys())
def test_an_unusual_message_is_parsed_in_parts(data: bytes) -> None:
    """The one-pass parser returns None for it."""
    assert read_whole(data, bounded=False) is None
    try:
        message = read(data)
    except JsonRpcError:
        return
    if isinstance(message, list) or message.refusal is not None:
        return
    params, refusal = read_params(message.params)
    modern = params.meta is not UNSET and params.meta.version == MODERN
    assert refusal is not None or message.id is None or message.method is None or not modern
