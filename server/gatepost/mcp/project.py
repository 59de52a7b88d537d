"""What came of a request → its result in each revision."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from gatepost.mcp.era import MODERN
from gatepost.mcp.jsonrpc import DENIED, INTERNAL_ERROR, INVALID_PARAMS, RATE_LIMITED, Refused
from gatepost.tools.api import Failure, Outcome

WITHOUT_STRUCTURE = "2025-03-26"

_encode = msgspec.json.encode

_COMPLETE = b'{"resultType":"complete","content":'
_STRUCTURED = b',"structuredContent":'
_NO_ERROR = b',"isError":false'


def call_result(outcome: Outcome, revision: str, tail: bytes) -> bytes:
    """
    Encode an outcome; *tail* are the members that end every modern result.

    What the tool or its arguments got wrong is a result with `isError`, which the model reads and
    can act on. Too many calls are an error of the protocol (design, failure table): Refused.
    """
    if outcome.failure is not None:
        return _failed(outcome.failure, revision, tail)
    if revision == MODERN:
        content = _encode(outcome.content)
        # Joined, not added up: each addition would copy a large answer again.
        if outcome.structured is UNSET:
            return b"".join((_COMPLETE, content, _NO_ERROR, tail, b"}"))
        structured = _encode(outcome.structured)
        return b"".join((_COMPLETE, content, _STRUCTURED, structured, _NO_ERROR, tail, b"}"))
    return _older_result(outcome, revision)


def _older_result(outcome: Outcome, revision: str) -> bytes:
    content = outcome.content
    if revision == WITHOUT_STRUCTURE:
        content = tuple(block(one, revision) for one in content)
    body = b'{"content":' + _encode(content)
    if outcome.structured is not UNSET and revision != WITHOUT_STRUCTURE:
        structured = _encode(outcome.structured)
        if structured[:1] == b"{":
            # Any other value is only in the text: these revisions know objects alone.
            body += _STRUCTURED + structured
    return body + _NO_ERROR + b"}"


def completed(members: bytes, revision: str, tail: bytes, *, ttl_ms: int | None = None) -> bytes:
    """
    A result of these encoded members, in the form of a revision.

    *ttl_ms* says how long a client may keep it, as `private`: it depends on the caller (C-06).
    """
    if revision != MODERN:
        return b"{" + members + b"}"
    hints = b"" if ttl_ms is None else b',"ttlMs":%d,"cacheScope":"private"' % ttl_ms
    return b'{"resultType":"complete",' + members + hints + tail + b"}"


def task_result(outcome: Outcome) -> bytes:
    """The same as the `result` of a task that has ended; raises Refused likewise."""
    return call_result(outcome, MODERN, b"")


def _failed(failure: Failure, revision: str, tail: bytes) -> bytes:
    if failure.kind == "rate_limit":
        raise rate_limited(failure)
    message = failure.message
    if failure.retry_after is not None:
        message += f" Try again in {failure.retry_after:g} seconds."
    content = _encode([{"type": "text", "text": message}])
    if revision == MODERN:
        return _COMPLETE + content + b',"isError":true' + tail + b"}"
    return b'{"content":' + content + b',"isError":true}'


def rate_limited(failure: Failure) -> Refused:
    """HTTP 200: a status in the 400s would read as a login failure or a lost session."""
    seconds = 1 if failure.retry_after is None else max(1, -(-failure.retry_after // 1))
    data: dict[str, Any] = {"retryAfter": int(seconds)}
    if failure.limit is not None:
        data["limit"] = failure.limit
    return Refused(
        RATE_LIMITED,
        failure.message,
        data=data,
        status=200,
        headers=((b"retry-after", b"%d" % int(seconds)),),
    )


def failed(failure: Failure, *, uri: str | None = None) -> Refused:
    """
    What becomes of a failure where no result could tell of it: resources, prompts, completion.

    What the request got wrong is -32602. The rest has HTTP 200, because clients take a 403 for a
    login failure and a 404 for a lost session (design, decision 11).
    """
    if failure.kind == "rate_limit":
        return rate_limited(failure)
    data: dict[str, Any] = {} if uri is None else {"uri": uri}
    if failure.field is not None:
        data["field"] = failure.field
    if failure.retry_after is not None:
        data["retryAfter"] = max(1, int(-(-failure.retry_after // 1)))
    if failure.kind in ("validation", "not_found", "conflict"):
        return Refused(INVALID_PARAMS, failure.message, data=data or None)
    code = DENIED if failure.kind == "denied" else INTERNAL_ERROR
    return Refused(code, failure.message, data=data or None, status=200)


def block(content: Mapping[str, Any], revision: str) -> Mapping[str, Any]:
    """
    A content block as a revision knows it: 2025-03-26 has no links and no dates.

    What was a link is text there, because strict clients refuse what they do not know.
    """
    if revision != WITHOUT_STRUCTURE:
        return content
    if content.get("type") == "resource_link":
        shown = f"{content.get('name', '')} {content.get('uri', '')}".strip()
        return {"type": "text", "text": shown}
    if "lastModified" not in content.get("annotations", {}):
        return content
    kept = {k: v for k, v in content["annotations"].items() if k != "lastModified"}
    return {**content, "annotations": kept}
