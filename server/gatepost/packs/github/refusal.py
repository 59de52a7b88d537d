"""What GitHub says when it does not do what it is asked, as a failure that a model can act on."""

import math
import time
from collections.abc import Mapping

import msgspec

from gatepost.packs.patience import retry_after
from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Reply

WAIT_S = 60.0
"""How long to wait for a limit that does not say when it ends (GitHub's own advice)."""
MOST_WAIT_S = 3_600.0
MOST_SAID = 500


class Mistake(msgspec.Struct, frozen=True):
    """One member of `errors` in a refusal."""

    resource: str = ""
    field: str = ""
    code: str = ""
    message: str | None = None

    def __str__(self) -> str:
        what = self.message or self.code.replace("_", " ") or "wrong"
        return f"`{self.field}`: {what}" if self.field else what


class Said(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    message: str = ""
    errors: list[Mistake | str] = []


def refusal(reply: Reply, repo: str, *, wrote: bool) -> ToolFailure:
    """Why this answer is not the one that was asked for; *wrote*: by a request that changes."""
    said, waits = _said(reply), _wait(reply.headers)
    match reply.status:
        case 401:
            message = f"GitHub refuses the token ({said}). An operator has to set a valid one."
            return ToolFailure("denied", message)
        case 403 | 429 if reply.status == 429 or _is_limit(reply, said):
            message = f"GitHub takes no more requests for now: {said}"
            return ToolFailure("rate_limit", message, retry_after=waits)
        case 403:
            return ToolFailure("denied", f"The token may not do this in {repo}: {said}")
        case 404:
            message = (
                f"There is no repository {repo}, or the token may not see it. "
                "Write it as owner/name, as in its URL."
            )
            return ToolFailure("not_found", message, field="repo")
        case 410:
            return ToolFailure("not_found", f"{repo} has no issues: {said}", field="repo")
        case 422:
            return ToolFailure("validation", f"GitHub does not take this: {said}")
        case 301 | 302 | 307 | 308:
            message = f"{repo} has moved: look up its new name, and use that."
            return ToolFailure("not_found", message, field="repo")
        case status if status >= 500:
            return _outage(status, wrote=wrote, waits=waits)
        case status:
            return ToolFailure("validation", f"GitHub answered {status}: {said}")


def unread(*, wrote: bool) -> ToolFailure:
    """An answer that is not what the API's description says."""
    if wrote:
        message = "GitHub's answer cannot be read. It may have been done: look before you repeat."
        return ToolFailure("internal", message)
    message = (
        "What answers in GitHub's place is not its API. The operator set packs.github.api_url."
    )
    return ToolFailure("upstream_unavailable", message, retry_after=WAIT_S)


def _outage(status: int, *, wrote: bool, waits: float) -> ToolFailure:
    if wrote and status != 503:
        message = f"GitHub failed ({status}). It may have been done: look before you ask again."
        return ToolFailure("internal", message)
    message = f"GitHub fails at the moment ({status})."
    return ToolFailure("upstream_unavailable", message, retry_after=waits)


def _said(reply: Reply) -> str:
    try:
        said = msgspec.json.decode(reply.body, type=Said)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return f"status {reply.status}"
    text = "; ".join([said.message or f"status {reply.status}", *map(str, said.errors)])
    return " ".join(text.split())[:MOST_SAID]


def _is_limit(reply: Reply, said: str) -> bool:
    """403 means both that something is forbidden and that it is too much at once."""
    return (
        reply.headers.get("x-ratelimit-remaining") == "0"
        or "retry-after" in reply.headers
        or "rate limit" in said.lower()
    )


def _wait(headers: Mapping[str, str]) -> float:
    """Seconds until another try makes sense (GitHub, rate limits for the REST API)."""
    after, reset = retry_after(headers), headers.get("x-ratelimit-reset", "")
    if after is not None:
        return min(after, MOST_WAIT_S)
    if reset.isdecimal() and reset.isascii() and headers.get("x-ratelimit-remaining") == "0":
        return min(max(math.ceil(float(reset[:12]) - time.time()), 1.0), MOST_WAIT_S)
    return WAIT_S
