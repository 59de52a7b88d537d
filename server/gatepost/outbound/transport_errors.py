"""Convert transport errors into failures that help an agent and reveal no addresses."""

import ssl

import httpx2

from gatepost.execution.failure import ToolFailure
from gatepost_authz.pinning import AddressRefused

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT", "QUERY"})
"""Methods that change nothing (RFC 9110 section 9.2.1, RFC 4918, RFC 3253)."""

NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
"""Errors that occur before a request is sent."""


def refused_url(problem: str) -> ToolFailure:
    """Return the failure for a URL that is not allowed."""
    return ToolFailure("denied", f"The URL is not allowed: {problem}.")


def unsent(message: str) -> ToolFailure:
    """Return the failure for a request that cannot be sent."""
    return ToolFailure("validation", message)


def too_late(host: str, method: str) -> ToolFailure:
    """Return the failure for a request that took too long."""
    message = f"{host} did not answer in time."
    if method not in SAFE_METHODS:
        message += " It may have done what was asked: look before you ask again."
    return ToolFailure("timeout", message)


def failure_of(
    error: httpx2.TransportError, host: str, method: str, *, was_sent: bool
) -> ToolFailure:
    """
    Return the failure for a transport error; *was_sent* says whether an earlier hop was sent.

    `upstream_unavailable` promises that nothing was done, so a request that may have had effects
    gets another kind.
    """
    if isinstance(error, AddressRefused):
        message = (
            f"{host} has an address that tools may not reach: only public ones and the hosts of "
            "`[network] allow_hosts` are."
        )
        return ToolFailure("denied", message)
    if isinstance(error, httpx2.UnsupportedProtocol):
        return refused_url("tools may not reach it")
    is_safe = method in SAFE_METHODS
    if isinstance(error, httpx2.PoolTimeout) and (is_safe or not was_sent):
        return ToolFailure(
            "rate_limit", "Too many of your requests are running: wait.", retry_after=1
        )
    if isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout):
        return too_late(host, method)
    if not is_safe and (was_sent or not isinstance(error, NOT_SENT)):
        message = (
            f"The connection to {host} broke before its answer came. It may have done what was "
            "asked: look before you ask again."
        )
        return ToolFailure("internal", message)
    return ToolFailure("upstream_unavailable", f"{host} {_cause(error)}.", retry_after=5)


def _cause(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.ProxyError):
        return "cannot be reached: the way out of this network refuses"
    if _is_tls(error):
        return "has no certificate that is valid for it and trusted here"
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "cannot be reached: there is no such host, or it accepts no connections"
    if isinstance(error, httpx2.ProtocolError):
        return "sent an answer that is not HTTP"
    return "broke the connection before its answer was complete"


def _is_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
