"""Turn each failure on the way to an upstream into one ConnectionFailure."""

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from time import time

from gatepost.credentials.credential import CredentialUnavailable
from gatepost.execution.failure import ToolFailure
from gatepost.outbound.streaming import AnswerInvalid, StreamedReply
from gatepost.upstreams.connection import ConnectionFailure, FailureReason
from gatepost.upstreams.transport.event_parser import StreamTooLarge
from gatepost.upstreams.transport.incoming import InvalidMessage

LONGEST_WAIT_S = 3_600.0
REASONS: dict[str, FailureReason] = {
    "upstream_unavailable": "unreachable",
    "denied": "denied",
    "validation": "denied",
    "rate_limit": "overloaded",
    "timeout": "timeout",
}
"""By the kind of the failure; every other one means that the request was sent."""
GATEWAY_ERRORS = frozenset({502, 504})
"""The statuses with which a proxy says that it got no answer to a request that it sent."""


@contextmanager
def reported(server: str) -> Iterator[None]:
    """Raise ConnectionFailure for all that fails in the block; *server* is its name."""
    try:
        yield
    except ToolFailure as failed:
        failure = failed.failure
        raise ConnectionFailure(
            REASONS.get(failure.kind, "outcome_unknown"),
            f"MCP server {server}: {failure.message}",
            retry_after_s=failure.retry_after,
        ) from None
    except (AnswerInvalid, InvalidMessage, StreamTooLarge) as problem:
        raise invalid(server, str(problem)) from None
    except CredentialUnavailable as problem:
        raise ConnectionFailure(
            "denied", f"The credential for the MCP server {server} cannot be had: {problem}"
        ) from None


def invalid(server: str, problem: str) -> ConnectionFailure:
    """Return the failure of a server that broke the protocol; *problem* says how."""
    return ConnectionFailure("invalid", f"The MCP server {server} {problem}.")


def broken(server: str) -> ConnectionFailure:
    """Return the failure of a request whose answer is lost."""
    return ConnectionFailure(
        "outcome_unknown",
        f"The connection to the MCP server {server} broke before its answer came. It may have done "
        "what was asked: look before you ask again.",
    )


def timed_out(server: str) -> ConnectionFailure:
    """Return the failure of a request that took too long."""
    return ConnectionFailure(
        "timeout",
        f"The MCP server {server} did not answer in time. It may have done what was asked: look "
        "before you ask again.",
    )


def session_lost(server: str) -> ConnectionFailure:
    """Return the failure of a request that met an ended session."""
    return ConnectionFailure(
        "session_lost",
        f"The MCP server {server} ended its session, and did nothing. Ask again to open a new one.",
        retry_after_s=0,
    )


def raise_for_refusal(server: str, reply: StreamedReply) -> None:
    """Raise the failure for a status that says nothing about the message itself."""
    status = reply.status
    if status in {401, 403}:
        raise ConnectionFailure(
            "unauthorized",
            f"The MCP server {server} refuses the credential of this gate (HTTP {status}). Its "
            "administrator has to renew it.",
        )
    if status in {429, 503}:
        raise ConnectionFailure(
            "overloaded",
            f"The MCP server {server} is overloaded (HTTP {status}).",
            retry_after_s=retry_after(reply.headers.get("retry-after"), time()),
        )
    if status in GATEWAY_ERRORS:
        raise broken(server)
    if 300 <= status < 400:
        raise invalid(server, f"redirects (HTTP {status}), and redirects are not followed")


def retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds that `Retry-After` asks for (RFC 9110 section 10.2.3), bounded."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return min(float(value), LONGEST_WAIT_S)
    try:
        return min(max(parsedate_to_datetime(value).timestamp() - now, 0.0), LONGEST_WAIT_S)
    except (ValueError, TypeError, OverflowError):
        return None
