"""Sends any request to GitLab's REST API (`gitlab_request`)."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gatepost import CallContext, Secret, Sending, ToolFailure
from gatepost_packs.gitlab.address import address_of
from gatepost_packs.gitlab.form import FormFile, flattened, uploads_of
from gatepost_packs.gitlab.pack import pack
from gatepost_packs.gitlab.response import GitlabResponse, shown
from gatepost_packs.gitlab.settings import GitlabSettings

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})

# OAuth access tokens and JSON Web Tokens; all other GitLab tokens are personal, project, group or
# deploy tokens, or made to look like one by the operator.
OAUTH = re.compile(r"[0-9a-f]{64}|eyJ[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

OURS = frozenset({"authorization", "private-token", "job-token", "deploy-token", "cookie"})
"""Headers with credentials: the argument `token` is for them, and no log holds it."""

REDIRECTS = 3
MOST_TIMEOUT_S = 300
MOST_BYTES = 1_000_000


Endpoint = Annotated[
    str, Field(description="GitLab API base URL: https://gitlab.com/api/v4", max_length=2_000)
]
Path = Annotated[
    str,
    Field(
        description="API path: `/projects/group%2Fproject/issues`", min_length=1, max_length=4_000
    ),
]
Params = Annotated[
    dict[str, Any] | None, Field(description="Query parameters; a list becomes `name[]`")
]
Files = Annotated[
    list[FormFile] | None, Field(description="Files of a multipart form", max_length=20)
]
Timeout = Annotated[
    int, Field(description="Seconds until the request is given up", ge=1, le=MOST_TIMEOUT_S)
]
Most = Annotated[int, Field(description="Bytes of the answer to read at most", ge=1, le=MOST_BYTES)]


def only_reads(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call with these arguments changes nothing."""
    return str(arguments.get("method", "GET")).upper() in READING


@pack.tool(
    title="Call GitLab",
    scopes={"gitlab:request"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=True,
    read_only_form=only_reads,
    timeout_s=MOST_TIMEOUT_S + 10,
    untrusted="GitLab",
)
async def gitlab_request(  # noqa: PLR0913  # Octoprox's own parameters
    ctx: CallContext,
    endpoint: Endpoint,
    token: Annotated[Secret, Field(description="GitLab personal access token.")],
    path: Path,
    method: Annotated[str, Field(description="HTTP method")] = "GET",
    params: Params = None,
    json_body: Annotated[Any, Field(description="JSON request body")] = None,
    form: Annotated[dict[str, Any] | None, Field(description="Form data")] = None,
    headers: Annotated[dict[str, str] | None, Field(description="Additional headers")] = None,
    files: Files = None,
    timeout_s: Timeout = 30,
    max_bytes: Most = 200_000,
    include_text: Annotated[bool, Field(description="Answer the body as text")] = True,
    include_base64: Annotated[bool, Field(description="Answer the body's bytes as base64")] = False,
) -> GitlabResponse:
    """
    Proxy any GitLab REST API request. Whatever status GitLab answers is answered in `status_code`;
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
    sending["redirects"] = REDIRECTS if verb in READING else 0
    reply = await ctx.http.send(verb, url, **sending)
    return shown(reply, text=include_text, data=include_base64)


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
    given = {name.lower(): value for name, value in (headers or {}).items()}
    if taken := OURS & given.keys():
        name = sorted(taken)[0]
        message = f"`headers` must not hold {name}: pass the token as `token`."
        raise ToolFailure("validation", message, field="headers")
    return {"accept": "application/json, */*;q=0.5"} | given


def _credential(token: str) -> dict[str, str]:
    if OAUTH.fullmatch(token):
        return {"authorization": f"Bearer {token}"}
    if not token or not token.isascii() or not token.isprintable():
        message = "`token` is not an access token, which consists of printable ASCII."
        raise ToolFailure("validation", message, field="token")
    return {"private-token": token}
