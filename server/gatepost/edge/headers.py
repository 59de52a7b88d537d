"""Strips the headers by which a caller could pretend to be somebody."""

import re

from gatepost.edge.request import Request

# What ordinary clients and proxies send; a request with only these names costs one comparison.
HARMLESS = frozenset(
    b"""
    accept accept-encoding accept-language authorization cache-control connection content-encoding
    content-length content-type cookie dnt dpop expect forwarded host idempotency-key if-match
    if-modified-since if-none-match keep-alive last-event-id mcp-method mcp-name
    mcp-protocol-version mcp-session-id origin pragma priority range referer sec-ch-ua
    sec-ch-ua-mobile sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user
    te traceparent tracestate transfer-encoding upgrade-insecure-requests user-agent via
    x-correlation-id x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto
    x-octopus-correlation-id x-octopus-tenant-id x-real-ip x-request-id
    """.split()
)
IDENTITY = re.compile(
    rb"x-(?:tenant|org|user|subject|principal|account|customer|scope|role|group|permission"
    rb"|client-id|client-cert|email|identity|authenticated|auth-request|forwarded-user"
    rb"|forwarded-email|forwarded-groups|forwarded-preferred|forwarded-access-token"
    rb"|forwarded-client-cert|ssl-client|goog-authenticated|ms-client-principal|amzn-oidc"
    rb"|remote-user|webauth|gatepost|octopus|http-method|method-override).*"
    rb"|remote-user|gatepost-.*"
)
MOST_REMEMBERED = 4096
# Longer names are judged anew each time: a stranger who sends them must not fill the memory.
LONGEST_REMEMBERED = 64


class Headers:
    """
    Removes identity-looking headers before anything routes or logs.

    The tenant comes from the token only; a header that some later code, or an upstream that gets
    our headers, might believe must not arrive. Names are compared with `_` read as `-`, because
    servers and frameworks mix the two. `X-Octopus-Tenant-Id` stays, which is checked
    and never believed, and `X-Octopus-Correlation-Id`, which says nothing about anybody.
    """

    def __init__(self) -> None:
        self._verdicts: dict[bytes, bool] = {}

    def __call__(self, request: Request) -> None:
        if HARMLESS.issuperset(request.headers):
            return
        stripped = {name for name in request.headers if self._pretends(name)}
        if stripped:
            scope = request.scope
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in stripped]
            for name in stripped:
                del request.headers[name]

    def _pretends(self, name: bytes) -> bool:
        if name in HARMLESS:
            return False
        verdict = self._verdicts.get(name)
        if verdict is None:
            if len(self._verdicts) >= MOST_REMEMBERED:
                self._verdicts.clear()
            canonical = name.lower().replace(b"_", b"-")
            # An underscore spelling of a name we read is somebody else's header in disguise.
            disguised = b"_" in name and canonical in HARMLESS
            verdict = disguised or IDENTITY.fullmatch(canonical) is not None
            if len(name) <= LONGEST_REMEMBERED:
                self._verdicts[name] = verdict
        return verdict
