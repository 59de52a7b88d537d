"""Build the request of an operation from its arguments."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from gatepost import Sending, Upload
from gatepost_packs.openapi.description.operation import (
    FORM,
    MULTIPART,
    Operation,
    Parameter,
    RequestBody,
    is_json,
)

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
VALUE = re.compile(r"[\x20-\x7e\x80-\xff]{0,4000}")
LITERAL = "/:@!$&'()*+,;=~%-._"
"""Characters that a path keeps unencoded."""

RESERVED_HEADERS = frozenset(
    {
        "host",
        "content-length",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
    }
)
"""Headers that decide how a request is read, or who the sender seems to be."""

SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}


class InvalidArguments(ValueError):
    """Arguments that make no valid request; ``field`` is the invalid one."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class OperationInput(NamedTuple):
    """A caller's arguments for an operation, by their place."""

    path: Mapping[str, Any] = {}
    query: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    cookies: Mapping[str, Any] = {}
    body: Any = None


def request_target(operation: Operation, operation_input: OperationInput) -> str:
    """Return path and query of the request, percent-encoded, to follow the base URL."""
    path = _path(operation, operation_input.path)
    declared = {
        parameter.name: parameter
        for parameter in operation.parameters
        if parameter.where == "query"
    }
    pairs = [
        pair
        for name, value in operation_input.query.items()
        if value is not None
        for pair in _query(name, value, declared.get(name))
    ]
    return f"{path}?{'&'.join(pairs)}" if pairs else path


def request_headers(operation: Operation, operation_input: OperationInput) -> dict[str, str]:
    """Return the caller's headers by lower-case names; raise InvalidArguments."""
    declared = {
        header.name.lower(): header for header in operation.parameters if header.where == "header"
    }
    headers = {}
    for name, value in operation_input.headers.items():
        if value is None:
            continue
        if not TOKEN.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise InvalidArguments(f"The header {name[:100]!r} cannot be given.", "headers")
        parameter = declared.get(name.lower())
        headers[name.lower()] = _header_text(name, _simple(value, parameter, "headers"))
    cookies = [
        f"{_escaped(name)}={_escaped(_scalar(value, 'cookies'))}"
        for name, value in operation_input.cookies.items()
        if value is not None
    ]
    return headers | ({"cookie": "; ".join(cookies)} if cookies else {})


def request_body(
    operation: Operation, operation_input: OperationInput, content_type: str | None
) -> Sending:
    """Return the client options that carry the body, in that media type if one is named."""
    value, body = operation_input.body, operation.body
    method, path = operation.entry.method, operation.entry.path
    if value is None:
        if body is not None and body.required:
            media_types = ", ".join(body.media)
            raise InvalidArguments(f"{method} {path} needs a `body` ({media_types}).", "body")
        return {}
    if body is None:
        if method in ("GET", "HEAD"):
            raise InvalidArguments(f"{method} {path} takes no `body`.", "body")
        body = RequestBody(required=False, media={"application/json": {}})
    return _carried(value, content_type or next(iter(body.media)), body)


def _carried(value: Any, media_type: str, body: RequestBody) -> Sending:
    bare = media_type.partition(";")[0].strip().lower()
    if is_json(bare):
        return {"content": _json(value), "headers": {"content-type": _concrete(media_type)}}
    if bare in (FORM, MULTIPART):
        if not isinstance(value, dict):
            raise InvalidArguments(f"`body` must be an object: it is sent as {bare}.", "body")
        if bare == FORM:
            pairs = [pair for name, item in value.items() for pair in _query(name, item, None)]
            return {"content": "&".join(pairs).encode(), "headers": {"content-type": FORM}}
        return _multipart(value, body.media.get(media_type, {}))
    if not isinstance(value, str):
        raise InvalidArguments(f"`body` must be text: it is sent as {bare}.", "body")
    return {"content": value.encode(), "headers": {"content-type": _concrete(media_type)}}


def _json(value: Any) -> bytes:
    if isinstance(value, str):
        # Models like to send an object as text; for a text schema they send plain words.
        try:
            if isinstance(msgspec.json.decode(value), dict | list):
                return value.encode()
        except (msgspec.DecodeError, RecursionError):
            pass
    return msgspec.json.encode(value)


def _concrete(media_type: str) -> str:
    """Return a media type that can be sent: JSON for a range (`*/*`)."""
    text = "application/json" if "*" in media_type else media_type
    return _header_text("Content-Type", text)


def _multipart(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Sending:
    properties = schema.get("properties")
    described = properties if isinstance(properties, dict) else {}
    form: dict[str, Any] = {}
    uploads: list[Upload] = []
    for name, member in value.items():
        for item in member if isinstance(member, list) else [member]:
            if item is None:
                continue
            upload = _upload(name, item, described.get(name))
            if upload is not None:
                uploads.append(upload)
            else:
                text = item if isinstance(item, str) else _json(item).decode()
                form.setdefault(name, []).append(text)
    return {"form": form, "uploads": uploads}


def _upload(name: str, item: Any, schema: Any) -> Upload | None:
    """
    Return a file, given as `{"filename", "data_base64", "content_type"}` or where one is expected.
    """
    if isinstance(item, dict) and isinstance(item.get("data_base64"), str):
        try:
            # Many tools write base64 with line breaks.
            data = base64.b64decode("".join(item["data_base64"].split()), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArguments(f"`body.{name}.data_base64` is not base64.", "body") from None
        kind = str(item.get("content_type", "application/octet-stream"))
        return Upload(name, str(item.get("filename", name)), data, _header_text(name, kind))
    if isinstance(item, str) and is_file(schema):
        return Upload(name, name, item.encode())
    return None


def is_file(schema: Any) -> bool:
    """Return whether that schema of a form's field means a file."""
    if not isinstance(schema, Mapping):
        return False
    inner = schema.get("items") if schema.get("type") == "array" else schema
    inner_schema = inner if isinstance(inner, Mapping) else {}
    return (
        inner_schema.get("type") == "file"
        or inner_schema.get("format") in ("binary", "byte")
        or "contentMediaType" in inner_schema
        or "contentEncoding" in inner_schema
    )


def _path(operation: Operation, path_values: Mapping[str, Any]) -> str:
    template = operation.entry.path
    declared = {
        parameter.name: parameter for parameter in operation.parameters if parameter.where == "path"
    }
    names = PLACEHOLDER.findall(template)
    missing = [name for name in names if path_values.get(name) in (None, "")]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        raise InvalidArguments(f"Missing required path parameters: {listed}.", "path_params")
    if unknown := [name for name in path_values if name not in names]:
        listed = ", ".join(f"`{name}`" for name in unknown)
        expected = ", ".join(f"`{name}`" for name in names) or "none"
        raise InvalidArguments(
            f"{template} has no path parameter {listed}; it takes: {expected}.", "path_params"
        )
    parts = PLACEHOLDER.split(template)
    filled = [
        _segment(part, path_values[part], declared.get(part))
        if at % 2
        else quote(part, safe=LITERAL)
        for at, part in enumerate(parts)
    ]
    path = "".join(filled)
    # A value fills only its own place. With `..` it would reach another operation, or leave this
    # API, also if a server on the way decodes before the API does.
    steps = re.split(r"[/\\]", unquote(unquote(path)))
    if "." in steps or ".." in steps:
        raise InvalidArguments(
            "A path parameter must not have `.` or `..` as a segment.", "path_params"
        )
    return path


def _segment(name: str, value: Any, parameter: Parameter | None) -> str:
    style = parameter.style if parameter else "simple"
    explode = parameter.explode if parameter else False
    text = _simple_parts(value, "path_params", explode=explode, separator=",")
    if style == "label":
        return f".{text}"
    return f";{_escaped(name)}={text}" if style == "matrix" else text


def _simple_parts(value: Any, field: str, *, explode: bool, separator: str) -> str:
    """Return the value in style `simple` (OpenAPI 3, Style Values), percent-encoded."""
    if isinstance(value, list):
        return separator.join(_escaped(_scalar(item, field)) for item in value)
    if isinstance(value, dict):
        joiner = "=" if explode else separator
        return separator.join(
            f"{_escaped(name)}{joiner}{_escaped(_scalar(item, field))}"
            for name, item in value.items()
        )
    return _escaped(_scalar(value, field))


def _simple(value: Any, parameter: Parameter | None, field: str) -> str:
    """Return the same for headers, which are not percent-encoded."""
    if parameter is not None and parameter.is_json:
        return msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return ",".join(_scalar(item, field) for item in value)
    if isinstance(value, dict):
        joiner = "=" if parameter is not None and parameter.explode else ","
        return ",".join(f"{name}{joiner}{_scalar(item, field)}" for name, item in value.items())
    return _scalar(value, field)


def _query(name: str, value: Any, parameter: Parameter | None) -> Iterator[str]:
    """Return one value of the query as `name=value` pairs, in its declared style."""
    style = parameter.style if parameter else "form"
    explode = parameter.explode if parameter else True
    if parameter is not None and parameter.is_json:
        yield f"{_escaped(name)}={_escaped(msgspec.json.encode(value).decode())}"
    elif isinstance(value, list):
        texts = [_escaped(_item(item)) for item in value]
        if explode and style == "form":
            yield from (f"{_escaped(name)}={text}" for text in texts)
        elif texts:
            yield f"{_escaped(name)}={SEPARATORS.get(style, ',').join(texts)}"
    elif isinstance(value, dict):
        yield from _query_object(name, value, style, explode=explode, declared=parameter)
    else:
        yield f"{_escaped(name)}={_escaped(_scalar(value, 'query_params'))}"


def _query_object(
    name: str, value: Mapping[str, Any], style: str, *, explode: bool, declared: Parameter | None
) -> Iterator[str]:
    if style == "deepObject" or declared is None:
        for inner, item in value.items():
            yield from _query(f"{name}[{inner}]", item, None)
    elif explode:
        yield from (f"{_escaped(inner)}={_escaped(_item(item))}" for inner, item in value.items())
    else:
        flat = ",".join(
            f"{_escaped(inner)},{_escaped(_item(item))}" for inner, item in value.items()
        )
        yield f"{_escaped(name)}={flat}"


def _item(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return _scalar(value, "query_params")


def _scalar(value: Any, field: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidArguments(
        (f"`{field}` holds a value that is not a string, a number or a list of these."), field
    )


def _escaped(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise InvalidArguments(
            ("An argument holds half a character (an unpaired surrogate)."), "path_params"
        ) from None


def _header_text(name: str, value: str) -> str:
    if not VALUE.fullmatch(value):
        # A line break would let the caller add a header or a request.
        raise InvalidArguments(
            f"The header {name!r} holds characters that a header cannot hold.", "headers"
        )
    return value
