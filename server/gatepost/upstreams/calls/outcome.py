"""Turn the results of upstreams into outcomes; no result is trusted."""

import binascii
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.tools.authoring.results import text_of
from gatepost.tools.authoring.schema import ValidateJson
from gatepost.tools.context.content import MIME_TYPE
from gatepost.tools.offers.offer import Failure, Outcome, ToolFailure
from gatepost.upstreams.calls.input_requests import clean
from gatepost.upstreams.connection import UpstreamResult
from gatepost.upstreams.upstream_server import UpstreamServer

ContentBlock = Mapping[str, Any]
"""A function of `raw_schema.checker`, which bounds the time that a hostile schema can cost."""

MAX_BLOCKS = 1_000
MAX_MESSAGE = 4_000
"""The longest sentence of an upstream's failure, in characters."""
MAX_ANNOTATION_BYTES = 1_000
MAX_META_BYTES = 16_384
MAX_VALUES = 100
"""Maximum number of completions that the protocol allows (CompleteResult)."""
UI_KEYS = ("ui", "ui/resourceUri")
"""The members of `_meta` that MCP Apps need; all others are dropped."""

MISMATCH = "its answer does not match the output schema that it declares"

_encode = msgspec.json.encode


class Malformed(Exception):
    """
    A result does not have the form that the protocol requires; the message says what is wrong.
    """


def untrusted(server: UpstreamServer) -> str:
    """Return the label of text that an upstream wrote."""
    return f"upstream {server.name}"


def tool_outcome(
    server: UpstreamServer, result: UpstreamResult, check: ValidateJson | None = None
) -> Outcome:
    """
    Return the outcome of a tool; *check* is that of the definition's output schema.

    Raises Malformed. An error result becomes a failure of the kind "tool_error".
    """
    value, label = result.value, untrusted(server)
    content = blocks(value.get("content", ()))
    if value.get("isError") is True:
        message = clean(text_of(content), MAX_MESSAGE) or f"{server.name} reported an error."
        return Outcome(failure=Failure("tool_error", message), untrusted=label)
    structured = value.get("structuredContent", UNSET)
    if structured is UNSET:
        if check is not None:
            raise Malformed(MISMATCH)
        return Outcome(content, untrusted=label)
    encoded = _encode(structured)
    if check is not None:
        try:
            check(encoded)
        except ToolFailure:
            raise Malformed(MISMATCH) from None
    # Encoded once, and without a reference to the decoded result.
    content = content or ({"type": "text", "text": encoded.decode()},)
    return Outcome(content, Raw(encoded), untrusted=label)


def blocks(content: Any) -> tuple[ContentBlock, ...]:
    """Return the content blocks of a result: empty texts are left out, unknown types named."""
    if not isinstance(content, list | tuple) or len(content) > MAX_BLOCKS:
        raise Malformed(f"`content` is not a list of at most {MAX_BLOCKS} blocks")
    converted = (block_of(block) for block in content)
    return tuple(block for block in converted if block is not None)


def block_of(block: Any) -> ContentBlock | None:
    """Return one content block in MCP's form; None for an empty text."""
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise Malformed("a content block has no type")
    kind = block["type"]
    if kind == "text" and block.get("text") == "":
        return None
    converted = CONVERTERS[kind](block) if kind in CONVERTERS else None
    if converted is None:
        note = f"[A block of the type {clean(kind, 40)!r} was left out: it cannot be shown.]"
        return {"type": "text", "text": note}
    return {**converted, **_annotated(block)}


def _text(block: ContentBlock) -> ContentBlock | None:
    text = block.get("text")
    return {"type": "text", "text": text} if isinstance(text, str) else None


def _media(block: ContentBlock) -> ContentBlock | None:
    # Some servers write the member as the REST protocol does.
    kind = block.get("mimeType", block.get("mime_type"))
    data = block.get("data")
    if not _is_mime(kind) or not _is_base64(data):
        return None
    return {"type": block["type"], "data": data, "mimeType": kind}


def _resource(block: ContentBlock) -> ContentBlock | None:
    inner = block.get("resource")
    contents = contents_of(inner) if isinstance(inner, Mapping) else None
    return None if contents is None else {"type": "resource", "resource": contents}


def _link(block: ContentBlock) -> ContentBlock | None:
    uri, name = block.get("uri"), block.get("name")
    if not isinstance(uri, str) or not isinstance(name, str):
        return None
    link: dict[str, Any] = {"type": "resource_link", "uri": uri, "name": clean(name, 500)}
    for member in ("title", "description"):
        if isinstance(text := block.get(member), str):
            link[member] = clean(text, MAX_MESSAGE)
    if _is_mime(block.get("mimeType")):
        link["mimeType"] = block["mimeType"]
    if type(block.get("size")) is int:
        link["size"] = block["size"]
    return link


CONVERTERS: Mapping[str, Callable[[ContentBlock], ContentBlock | None]] = {
    "text": _text,
    "image": _media,
    "audio": _media,
    "resource": _resource,
    "resource_link": _link,
}


def contents_of(resource: Any) -> ContentBlock | None:
    """Return one part of a resource's content; None if it has neither text nor bytes."""
    if not isinstance(resource, Mapping) or not isinstance(resource.get("uri"), str):
        return None
    contents: dict[str, Any] = {"uri": resource["uri"]}
    if _is_mime(resource.get("mimeType")):
        contents["mimeType"] = resource["mimeType"]
    if isinstance(resource.get("text"), str):
        contents["text"] = resource["text"]
    elif _is_base64(resource.get("blob")):
        contents["blob"] = resource["blob"]
    else:
        return None
    if meta := app_meta(resource.get("_meta")):
        contents["_meta"] = meta
    return contents


def app_meta(meta: Any) -> dict[str, Any]:
    """Return the members of a `_meta` that MCP Apps need, if they are small."""
    if not isinstance(meta, Mapping):
        return {}
    ui_meta = {name: meta[name] for name in UI_KEYS if name in meta}
    return ui_meta if len(_encode(ui_meta)) <= MAX_META_BYTES else {}


def resource_outcome(
    server: UpstreamServer, result: UpstreamResult, names: Mapping[str, str] | None = None
) -> Outcome:
    """Return the outcome of a read; *names* has our URI of each URI of the upstream's."""
    contents = result.value.get("contents")
    if not isinstance(contents, list | tuple) or len(contents) > MAX_BLOCKS:
        raise Malformed(f"`contents` is not a list of at most {MAX_BLOCKS} parts")
    renamed_contents = []
    for resource in contents:
        part = contents_of(resource)
        if part is None:
            raise Malformed("a part of the resource has neither text nor bytes")
        renamed_contents.append({**part, "uri": (names or {}).get(part["uri"], part["uri"])})
    return Outcome(tuple(renamed_contents), untrusted=untrusted(server))


def prompt_outcome(server: UpstreamServer, result: UpstreamResult) -> Outcome:
    """Return the outcome of a prompt: its messages."""
    messages = result.value.get("messages")
    if not isinstance(messages, list | tuple) or len(messages) > MAX_BLOCKS:
        raise Malformed(f"`messages` is not a list of at most {MAX_BLOCKS} messages")
    prompt_messages = []
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
            raise Malformed("a message of the prompt has no role")
        block = block_of(message.get("content"))
        if block is not None:
            prompt_messages.append({"role": message["role"], "content": block})
    return Outcome(tuple(prompt_messages), untrusted=untrusted(server))


def completion_outcome(server: UpstreamServer, result: UpstreamResult) -> Outcome:
    """Return the outcome of a completion: its values, at most as many as the protocol allows."""
    completion = result.value.get("completion")
    values = completion.get("values") if isinstance(completion, Mapping) else None
    if not isinstance(completion, Mapping) or not isinstance(values, list | tuple):
        raise Malformed("the completion has no values")
    texts = [clean(value, MAX_MESSAGE) for value in values[:MAX_VALUES] if isinstance(value, str)]
    total = completion.get("total")
    has_more = completion.get("hasMore") is True or len(values) > len(texts)
    answer: dict[str, Any] = {"values": texts, "hasMore": has_more}
    if type(total) is int and total >= len(texts):
        answer["total"] = total
    return Outcome(structured=Raw(_encode(answer)), untrusted=untrusted(server))


def _annotated(block: ContentBlock) -> ContentBlock:
    annotations = block.get("annotations")
    annotated: dict[str, Any] = {}
    if isinstance(annotations, Mapping) and len(_encode(annotations)) <= MAX_ANNOTATION_BYTES:
        annotated["annotations"] = annotations
    if meta := app_meta(block.get("_meta")):
        annotated["_meta"] = meta
    return annotated


def _is_mime(kind: Any) -> bool:
    return isinstance(kind, str) and len(kind) <= 200 and bool(MIME_TYPE.fullmatch(kind))


def _is_base64(data: Any) -> bool:
    if not isinstance(data, str) or len(data) % 4:
        return False
    try:
        binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        return False
    return True
