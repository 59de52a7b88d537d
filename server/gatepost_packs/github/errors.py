"""Turn GitHub's error responses into failures that a model can act on."""

import math
import time
from collections.abc import Mapping

import msgspec

from gatepost import OutboundReply, ToolFailure
from gatepost_packs.retry_after import retry_after

WAIT_S = 60.0
"""Seconds to wait for a limit that does not say when it ends (GitHub's own advice)."""
MAX_WAIT_S = 3_600.0
MAX_MESSAGE = 500
SECONDARY_LIMITS = ("secondary-rate-limits", "#abuse-rate-limits")
"""How the URL of the page about secondary rate limits ends, today and in older releases."""


class FieldError(msgspec.Struct, frozen=True):
    """One member of `errors` in an error response."""

    resource: str = ""
    field: str = ""
    code: str = ""
    message: str | None = None

    def __str__(self) -> str:
        problem = self.message or self.code.replace("_", " ") or "wrong"
        return f"`{self.field}`: {problem}" if self.field else problem


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    message: str = ""
    errors: list[FieldError | str] = []
    documentation_url: str | None = None
    """The page about this kind of error; unlike the message, it names the kind."""

    def text(self) -> str:
        """Return all messages in one line."""
        text = "; ".join([self.message, *map(str, self.errors)])
        return " ".join(text.split())[:MAX_MESSAGE]


def refusal(reply: OutboundReply, repo: str, *, wrote: bool) -> ToolFailure:
    """
    Return the failure for an unexpected response; *wrote*: the request may have changed something.
    """
    body, waits = _body_of(reply), _wait(reply.headers)
    text = body.text()
    match reply.status:
        case 401:
            message = f"GitHub refuses the token ({text}). An operator must set a valid one."
            return ToolFailure("denied", message)
        case 403 | 429 if reply.status == 429 or _is_limit(reply, body):
            message = f"GitHub accepts no more requests for now: {text}"
            return ToolFailure("rate_limit", message, retry_after=waits)
        case 403:
            return ToolFailure("denied", f"The token lacks a permission for this in {repo}: {text}")
        case 404:
            message = (
                f"There is no repository {repo}, or the token may not see it. "
                "Write it as owner/name, as in its URL."
            )
            return ToolFailure("not_found", message, field="repo")
        case 410:
            return ToolFailure("not_found", f"{repo} has no issues: {text}", field="repo")
        case 422:
            return ToolFailure("validation", f"GitHub refuses this: {text}")
        case 301 | 302 | 307 | 308:
            message = f"{repo} has moved. Look up its new name and use that."
            return ToolFailure("not_found", message, field="repo")
        case status if status >= 500:
            return _outage(status, wrote=wrote, waits=waits)
        case status:
            return ToolFailure("validation", f"GitHub answered {status}: {text}")


def unread(*, wrote: bool) -> ToolFailure:
    """Return the failure for a response that does not match the API's description."""
    if wrote:
        message = (
            "GitHub's response cannot be read. The change may have been made: check before you "
            "repeat it."
        )
        return ToolFailure("internal", message)
    message = (
        "The server at packs.github.api_url is not GitHub's API. The operator can correct the URL."
    )
    return ToolFailure("upstream_unavailable", message, retry_after=WAIT_S)


def _outage(status: int, *, wrote: bool, waits: float) -> ToolFailure:
    if wrote and status != 503:
        message = (
            f"GitHub failed ({status}). The change may have been made: check before you repeat it."
        )
        return ToolFailure("internal", message)
    message = f"GitHub fails at the moment ({status})."
    return ToolFailure("upstream_unavailable", message, retry_after=waits)


def _body_of(reply: OutboundReply) -> ErrorBody:
    try:
        body = msgspec.json.decode(reply.body, type=ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        body = ErrorBody()
    return body if body.message else msgspec.structs.replace(body, message=f"status {reply.status}")


def _is_limit(reply: OutboundReply, body: ErrorBody) -> bool:
    """
    Return whether a 403 means a rate limit; it also means a missing permission.

    A secondary rate limit may have no header of its own (go-github decides by this URL too).
    """
    return (
        reply.headers.get("x-ratelimit-remaining") == "0"
        or "retry-after" in reply.headers
        or (body.documentation_url or "").endswith(SECONDARY_LIMITS)
    )


def _wait(headers: Mapping[str, str]) -> float:
    """Return the seconds until a retry makes sense (GitHub, rate limits for the REST API)."""
    after, reset = retry_after(headers), headers.get("x-ratelimit-reset", "")
    if after is not None:
        return min(after, MAX_WAIT_S)
    if reset.isdecimal() and reset.isascii() and headers.get("x-ratelimit-remaining") == "0":
        return min(max(math.ceil(float(reset[:12]) - time.time()), 1.0), MAX_WAIT_S)
    return WAIT_S
