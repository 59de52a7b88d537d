"""Send requests to the REST API of GitLab and read the responses (`gitlab_request`)."""

import asyncio
import base64
import binascii
import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired

import msgspec
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from gatepost import CallContext, OutboundReply, Secret, Sending, ToolFailure, Upload, decoded
from gatepost_packs.gitlab.address import CREDENTIALS, address_of, credential
from gatepost_packs.gitlab.pack import pack
from gatepost_packs.gitlab.settings import GitlabSettings

MAX_FORM_DEPTH = 4


class FormFile(TypedDict):
    """One file of a multipart form."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's own way

    name: NotRequired[Annotated[str, Field(description="Of the form's field; default `file`")]]
    filename: Annotated[str, Field(description="What the file is called", min_length=1)]
    data_base64: Annotated[str, Field(description="Its bytes, as base64")]
    content_type: NotRequired[Annotated[str, Field(description="Its media type")]]


def flattened(values: Mapping[str, Any] | None, field: str) -> dict[str, Any]:
    """
    Return values by GitLab's names: `labels[]=a`, `filter[state]=b`.

    ToolFailure for a value that this notation cannot express, and for a token, which has its own
    argument.
    """
    values_by_name: dict[str, Any] = {}
    for name, value in _leaves(values or {}, field):
        if field == "params" and name.lower() in CREDENTIALS:
            raise credential(name, field)
        values_by_name.setdefault(name, []).append(value)
    return {name: items if len(items) > 1 else items[0] for name, items in values_by_name.items()}


def uploads_of(files: Sequence[FormFile] | None) -> list[Upload]:
    """Return the files with their bytes; ToolFailure if one is not base64."""
    uploads: list[Upload] = []
    for at, file in enumerate(files or ()):
        try:
            # Many tools write base64 with line breaks.
            data = base64.b64decode("".join(file["data_base64"].split()), validate=True)
        except (binascii.Error, ValueError):
            field = f"files[{at}].data_base64"
            message = f"`{field}` is not base64 (RFC 4648, with `+`, `/` and `=`)."
            raise ToolFailure("validation", message, field=field) from None
        kind = file.get("content_type", "application/octet-stream")
        uploads.append(Upload(file.get("name", "file"), file["filename"], data, kind))
    return uploads


def _leaves(
    values: Mapping[str, Any], field: str, before: str = "", depth: int = 1
) -> Iterator[tuple[str, Any]]:
    if depth > MAX_FORM_DEPTH:
        raise ToolFailure("validation", f"`{field}` is nested too deeply for a form.", field=field)
    for name, value in values.items():
        key = f"{before}[{name}]" if before else name
        if isinstance(value, Mapping):
            yield from _leaves(value, field, key, depth + 1)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Mapping | list):
                    message = f"`{field}.{name}` holds lists within lists; send it as `json_body`."
                    raise ToolFailure("validation", message, field=f"{field}.{name}")
                yield key if key.endswith("[]") else f"{key}[]", _query_value(item)
        elif value is not None:
            yield key, value


def _query_value(value: Any) -> Any:
    return "" if value is None else value


HIDDEN_HEADERS = frozenset(
    {"set-cookie", "set-cookie2", "connection", "keep-alive", "transfer-encoding"}
)
"""Headers that hold credentials or concern only the connection."""

CHARSETS = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "iso-8859-1": "latin-1"}
MAX_ANSWER_DEPTH = 60


class GitlabResponse(TypedDict):
    """GitLab's response, whatever its status."""

    status_code: int
    headers: dict[str, str]
    text: Annotated[str | None, Field(description="The body, where it is text and was asked for")]
    json: Annotated[Any, Field(description="The body as a value, where it is whole JSON")]
    truncated: Annotated[bool, Field(description="Whether there is more than `max_bytes`")]
    base64: NotRequired[Annotated[str, Field(description="The body's bytes, where asked for")]]


def gitlab_response(reply: OutboundReply, *, text: bool, data: bool) -> GitlabResponse:
    """Return the result; *text* and *data* say in which forms the body is wanted."""
    kind = reply.headers.get("content-type", "")
    answered = GitlabResponse(
        status_code=reply.status,
        headers={
            name: value for name, value in reply.headers.items() if name not in HIDDEN_HEADERS
        },
        text=_text(kind, reply.body, is_whole=not reply.truncated) if text else None,
        json=None if reply.truncated else _value(kind, reply.body),
        truncated=reply.truncated,
    )
    if data:
        answered["base64"] = base64.b64encode(reply.body).decode()
    return answered


def _value(kind: str, body: bytes) -> Any:
    media = kind.partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        return None
    try:
        value = decoded(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if _is_shallow(value) else None


def _is_shallow(value: Any, depth: int = 0) -> bool:
    """Return whether every parser on the way to the model can read it: many limit the depth."""
    if depth > MAX_ANSWER_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_shallow(item, depth + 1) for item in value.values())
    return not isinstance(value, list) or all(_is_shallow(item, depth + 1) for item in value)


def _text(kind: str, body: bytes, *, is_whole: bool) -> str | None:
    """Return the body as text, cut between two characters; None if it is not text."""
    _, _, encoding = kind.lower().partition("charset=")
    charset = CHARSETS.get(encoding.split(";")[0].strip(' "'), "utf-8")
    try:
        text = codecs.getincrementaldecoder(charset)().decode(body, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

# OAuth access tokens and JSON Web Tokens; all other GitLab tokens are personal, project, group or
# deploy tokens, or made to look like one by the operator.
OAUTH = re.compile(r"[0-9a-f]{64}|eyJ[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

CREDENTIAL_HEADERS = frozenset(
    {"authorization", "private-token", "job-token", "deploy-token", "cookie"}
)
"""Headers with credentials: the argument `token` is for them, and no log holds it."""

REDIRECTS = 3
MAX_TIMEOUT_S = 300
MAX_BYTES = 1_000_000
PROMPT_BYTES = 20_000
"""Longer answers are read in a thread."""


ApiUrl = Annotated[
    str, Field(description="GitLab API base URL: https://gitlab.com/api/v4", max_length=2_000)
]
ApiPath = Annotated[
    str,
    Field(
        description="API path: `/projects/group%2Fproject/issues`", min_length=1, max_length=4_000
    ),
]
QueryParameters = Annotated[
    dict[str, Any] | None, Field(description="Query parameters; a list becomes `name[]`")
]
FormFiles = Annotated[
    list[FormFile] | None, Field(description="Files of a multipart form", max_length=20)
]
TimeoutSeconds = Annotated[
    int, Field(description="Seconds until the request is given up", ge=1, le=MAX_TIMEOUT_S)
]
MostBytes = Annotated[
    int, Field(description="Bytes of the answer to read at most", ge=1, le=MAX_BYTES)
]


def only_reads(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call with these arguments changes nothing."""
    return str(arguments.get("method", "GET")).upper() in SAFE_METHODS


@pack.tool(
    title="Call GitLab",
    scopes={"gitlab:request"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=True,
    read_only_form=only_reads,
    timeout_s=MAX_TIMEOUT_S + 10,
    untrusted="GitLab",
)
async def gitlab_request(  # noqa: PLR0913  # Octoprox's own parameters
    ctx: CallContext,
    endpoint: ApiUrl,
    token: Annotated[Secret, Field(description="GitLab personal access token.")],
    path: ApiPath,
    method: Annotated[str, Field(description="HTTP method")] = "GET",
    params: QueryParameters = None,
    json_body: Annotated[Any, Field(description="JSON request body")] = None,
    form: Annotated[dict[str, Any] | None, Field(description="Form data")] = None,
    headers: Annotated[dict[str, str] | None, Field(description="Additional headers")] = None,
    files: FormFiles = None,
    timeout_s: TimeoutSeconds = 30,
    max_bytes: MostBytes = 200_000,
    include_text: Annotated[bool, Field(description="Answer the body as text")] = True,
    include_base64: Annotated[bool, Field(description="Answer the body's bytes as base64")] = False,
) -> GitlabResponse:
    """
    Send any GitLab REST API request, and return whatever status GitLab answers in `status_code`;
    gitlab_openapi_paths finds endpoints, gitlab_openapi_operation says what they take.
    """
    verb = method.upper()
    if verb not in METHODS:
        message = f"`method` must be one of {', '.join(sorted(METHODS))}."
        raise ToolFailure("validation", message, field="method")
    url = address_of(endpoint, path)
    sending = _body(json_body, form, files)
    sending["params"] = flattened(params, "params")
    literals = ctx.settings(GitlabSettings).literals
    secret = await ctx.secret(token, field="token", literals=literals, to=url)
    sending["headers"] = _headers(headers) | _credential(secret.strip())
    sending["timeout_s"], sending["max_bytes"] = timeout_s, max_bytes
    # A request that is redirected to another server carries no token.
    sending["redirects"] = REDIRECTS if verb in SAFE_METHODS else 0
    reply = await ctx.http.send(verb, url, **sending)
    show = partial(gitlab_response, reply, text=include_text, data=include_base64)
    return show() if len(reply.body) <= PROMPT_BYTES else await asyncio.to_thread(show)


def _body(json_body: Any, form: Mapping[str, Any] | None, files: list[FormFile] | None) -> Sending:
    if json_body is not None and (form is not None or files is not None):
        message = "Pass `json_body`, or `form` and `files`: a request has one body."
        raise ToolFailure("validation", message, field="json_body")
    sending = Sending()
    if json_body is not None:
        sending["json"] = json_body
    if form is not None:
        sending["form"] = flattened(form, "form")
    if files:
        sending["uploads"] = uploads_of(files)
    return sending


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    given_headers = {name.lower(): value for name, value in (headers or {}).items()}
    if reserved := CREDENTIAL_HEADERS & given_headers.keys():
        name = sorted(reserved)[0]
        message = f"`headers` must not hold {name}: pass the token as `token`."
        raise ToolFailure("validation", message, field="headers")
    return {"accept": "application/json, */*;q=0.5"} | given_headers


def _credential(token: str) -> dict[str, str]:
    if OAUTH.fullmatch(token):
        return {"authorization": f"Bearer {token}"}
    if not token or not token.isascii() or not token.isprintable():
        message = "`token` is not an access token, which consists of printable ASCII."
        raise ToolFailure("validation", message, field="token")
    return {"private-token": token}
