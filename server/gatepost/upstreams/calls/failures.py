"""Turn the failures and errors of upstreams into the failures that callers get."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gatepost.execution.failure import FailureKind, ToolFailure
from gatepost.tools.context.client import (
    RESERVED,
    Capabilities,
    MissingCapability,
    ProtocolError,
    lacking,
)
from gatepost.upstreams.calls.call_states import Ended, Errored
from gatepost.upstreams.calls.input_requests import (
    CAPABILITIES,
    TASKS,
    UNREADABLE,
    checked_page,
    clean,
)
from gatepost.upstreams.calls.outcome import MAX_MESSAGE, Malformed, untrusted
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.upstream_server import UpstreamServer

INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
NOT_FOUND = -32002
"""The older revisions' code for an unknown resource; later ones use invalid parameters."""
URL_NEEDED = -32042
"""2025-11-25: the user must visit a page before the call can be made."""
MISSING_CAPABILITY = -32021
"""2026-07-28: the client did not declare a capability that the call needs."""
NO_CAPABILITIES: Capabilities = {}
MODES = ("form", "url", "tools", "context")
"""The parts of capabilities that a client can be told to lack."""
MAX_DATA_BYTES = 4_096
MAX_PAGES = 4
CHECK_FIRST = "It may have been carried out: check before you call again."

FAILURE_KINDS: Mapping[str, FailureKind] = {
    "unreachable": "upstream_unavailable",
    "denied": "denied",
    "unauthorized": "upstream_unavailable",
    "overloaded": "upstream_unavailable",
    "session_lost": "upstream_unavailable",
    "timeout": "timeout",
    "expired": "timeout",
    "invalid": "internal",
    "outcome_unknown": "internal",
    "cancelled": "internal",
    "gone": "internal",
}
"""The kind of failure for each way in which a call ends without an answer."""
UNCERTAIN_ENDS = frozenset(
    {"invalid", "outcome_unknown", "timeout", "gone", "cancelled", "expired"}
)
"""The ends after which the upstream may have done its work."""


def failure_of(server: UpstreamServer, end: Ended, *, reads: bool = False) -> ToolFailure:
    """
    Return the failure of a call that ended without an answer.

    If the call only *reads*, it can be made again, and the caller is told so.
    """
    kind, message = FAILURE_KINDS[end.reason], end.message
    if end.reason == "unauthorized":
        # The caller's own token is valid, so the caller must not be told to sign in again.
        message = f"{server.name} does not accept the credential that this server has for it."
    elif end.reason == "expired":
        message = f"{server.name} asked for input that was not given in time."
    elif end.reason in ("gone", "outcome_unknown"):
        message = f"It is unknown whether {server.name} carried out the call."
    message = message or f"{server.name} did not answer."
    if reads:
        kind = "upstream_unavailable" if kind == "internal" else kind
    elif end.reason in UNCERTAIN_ENDS:
        message = f"{message} {CHECK_FIRST}"
    wait = end.retry_after_s if kind == "upstream_unavailable" else None
    return ToolFailure(kind, message, retry_after=wait)


def ended_by(failure: ConnectionFailure) -> Ended:
    """Return the end of a call whose connection failed."""
    return Ended(failure.reason, failure.message, failure.retry_after_s)


def malformed(server: UpstreamServer, error: Malformed, *, reads: bool) -> ToolFailure:
    """Return the failure of a call whose answer cannot be used; the call itself was made."""
    message = f"{server.name} broke the protocol: {error}."
    if reads:
        return ToolFailure("upstream_unavailable", message)
    return ToolFailure("internal", f"{message} The call was carried out; its answer is withheld.")


def errored(
    server: UpstreamServer,
    error: Errored,
    *,
    document: bool = False,
    declared: Capabilities,
    is_modern: bool = True,
) -> Exception:
    """
    Return the exception for an upstream's JSON-RPC error (E2).

    *declared* are the capabilities of the caller's client. A session-era upstream may have begun
    its work before it asked, so there the call counts as made.
    """
    if error.code == MISSING_CAPABILITY and (missing := _missing(server, error.data, declared)):
        lacks = MissingCapability(missing)
        return lacks if is_modern else ToolFailure("denied", f"{server.name} {lacks}.")
    message = clean(error.message, MAX_MESSAGE) or f"{server.name} answered with an error."
    if error.code == URL_NEEDED:
        return ToolFailure("denied", _pages(server, error.data), untrusted=untrusted(server))
    if document and error.code == NOT_FOUND:
        return ToolFailure("not_found", "There is no such resource.")
    code = error.code
    if code in RESERVED and code not in (INVALID_PARAMS, INTERNAL_ERROR):
        # These codes would say something about this server, for instance that it lacks the method.
        code, message = INTERNAL_ERROR, f"{server.name}: {message} (code {error.code})"
    data = error.data
    try:
        is_small = len(msgspec.json.encode(data)) <= MAX_DATA_BYTES
    except (TypeError, ValueError, RecursionError):
        is_small = False
    return ProtocolError(code, message, data if is_small else None)


def _missing(server: UpstreamServer, data: Any, declared: Capabilities) -> Capabilities:
    """Return what an upstream needs of a client, if the client lacks it and may be asked for it."""
    required = data.get("requiredCapabilities") if isinstance(data, Mapping) else None
    if not isinstance(required, Mapping):
        return NO_CAPABILITIES
    # If the server's registration does not allow it, another client could not give it either.
    needed: dict[str, Any] = {
        name: {part: {} for part in MODES if part in required[name]}
        for name in CAPABILITIES
        if name in server.allow and isinstance(required.get(name), Mapping)
    }
    extensions = required.get("extensions")
    if isinstance(extensions, Mapping) and TASKS in extensions:
        needed["extensions"] = {TASKS: {}}
    return lacking(declared, needed)


def _pages(server: UpstreamServer, data: Any) -> str:
    elicitations = data.get("elicitations") if isinstance(data, Mapping) else None
    urls: list[str] = []
    for elicitation in (elicitations if isinstance(elicitations, list) else ())[:MAX_PAGES]:
        try:
            urls.append(checked_page(elicitation["url"]))
        except UNREADABLE:
            continue  # a misleading page, which no request may show either
    if not urls:
        return f"{server.name} wants its user to visit a page first, but names none that is safe."
    pages = " and ".join(f"{url} (at {urlsplit(url).hostname})" for url in urls)
    return f"The user must visit a page of {server.name} first: {pages}. Then call again."
