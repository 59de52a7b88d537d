"""Remove identity headers that callers send, and add those of the verified caller."""

import re
from collections.abc import Awaitable, Iterable
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost_authz.caller import TenantContext

HeaderField = tuple[bytes, bytes]

# The headers of ordinary clients and proxies; a request with only these names costs one comparison.
COMMON_HEADERS = frozenset(
    b"""
    accept accept-encoding accept-language authorization cache-control connection content-encoding
    content-length content-type cookie dnt dpop expect forwarded host idempotency-key if-match
    if-modified-since if-none-match keep-alive last-event-id mcp-method mcp-name
    mcp-protocol-version mcp-session-id origin pragma priority range referer sec-ch-ua
    sec-ch-ua-mobile sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user
    te traceparent tracestate transfer-encoding upgrade-insecure-requests user-agent via
    x-correlation-id x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto
    x-octopus-correlation-id x-real-ip x-request-id
    """.split()
)
# Any header that names a tenant or an organisation, of any vendor. `Mcp-Param-…` headers repeat
# arguments, and are compared with them.
IDENTITY = re.compile(
    rb"(?!mcp-)(?:"
    rb"x-(?:tenant|org|user|subject|principal|account|customer|scope|role|group|permission"
    rb"|client-id|client-cert|email|identity|authenticated|auth-request|forwarded-user"
    rb"|forwarded-email|forwarded-groups|forwarded-preferred|forwarded-access-token"
    rb"|forwarded-client-cert|ssl-client|goog-authenticated|ms-client-principal|amzn-oidc"
    rb"|remote-user|webauth|gatepost|octopus|http-method|method-override).*"
    rb"|(?:.*-)?(?:tenant|org|organi[sz]ation)(?:id)?(?:-.*)?"
    rb"|remote-user|gatepost-.*"
    rb")"
)
FOLDS = bytes(byte if chr(byte).isalnum() and byte < 0x80 else ord("-") for byte in range(256))
"""
The characters that are treated as `-` in names: servers read `_` like that, and some read `.` like
that.
"""

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
UNENCODED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")

MAX_REMEMBERED = 4096
# Longer names are not cached, so that clients cannot fill the memory.
LONGEST_REMEMBERED = 64


def canonical(name: bytes) -> bytes:
    """Return a header's name as the most lenient reader interprets it."""
    return name.lower().translate(FOLDS)


class ImpersonationFilter:
    """
    Detects headers with which a caller could claim an identity.

    The headers in *harmless* pass although their names look like that, because the application
    itself compares them with the token. The headers in *reserved* never pass.
    """

    def __init__(self, *, harmless: Iterable[bytes] = (), reserved: Iterable[bytes] = ()) -> None:
        self.harmless = COMMON_HEADERS | frozenset(harmless)
        self._reserved = frozenset(canonical(name) for name in reserved)
        self._verdicts: dict[bytes, bool] = {}

    def __call__(self, name: bytes) -> bool:
        """Return whether a header of this name must be removed."""
        if name in self.harmless:
            return False
        verdict = self._verdicts.get(name)
        if verdict is None:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.clear()
            verdict = self._judge(name)
            if len(name) <= LONGEST_REMEMBERED:
                self._verdicts[name] = verdict
        return verdict

    def _judge(self, name: bytes) -> bool:
        if name.lower() in self.harmless:
            return False
        folded = canonical(name)
        # Another spelling of a name that Gatepost reads is an attempt to forge that header.
        if folded in self.harmless or folded in self._reserved:
            return True
        return IDENTITY.fullmatch(folded) is not None


class IdentityHeaders:
    """
    The headers that tell the application behind a gate what the token proved, and nothing that the
    caller claims about itself.

    Each argument is the name of a header; an empty name omits it. The values are those of the
    caller. *scopes* and *roles* are sorted and separated by spaces. `%` and all characters except
    visible ASCII are percent-encoded as UTF-8. A value that the token does not state has no header.
    Raises ValueError for an invalid name, a repeated name, and a name of HTTP's own.
    """

    def __init__(  # noqa: PLR0913  # each is one header's name
        self,
        *,
        tenant: str = "x-gatepost-tenant",
        issuer: str = "x-gatepost-issuer",
        subject: str = "x-gatepost-subject",
        subject_kind: str = "x-gatepost-subject-kind",
        client: str = "x-gatepost-client",
        actor: str = "x-gatepost-actor",
        scopes: str = "x-gatepost-scopes",
        roles: str = "x-gatepost-roles",
    ) -> None:
        names = (tenant, issuer, subject, subject_kind, client, actor, scopes, roles)
        self._names = tuple(_checked(name) for name in names)
        used = [name for name in self._names if name]
        if len(set(used)) < len(used):
            raise ValueError("two identity headers have the same name")
        self._impersonates = ImpersonationFilter(reserved=used)

    def headers_of(self, caller: TenantContext) -> list[HeaderField]:
        """Return the identity headers of this caller."""
        values = (
            (caller.tenant_id,),
            (caller.issuer,),
            (caller.subject,),
            (caller.subject_kind,),
            () if caller.client_id is None else (caller.client_id,),
            () if caller.actor is None else (caller.actor,),
            sorted(caller.scopes),
            sorted(caller.roles),
        )
        return [
            (name, b" ".join(map(_safe, value)))
            for name, value in zip(self._names, values, strict=True)
            if name and value
        ]

    def for_app(self, headers: Iterable[HeaderField], caller: TenantContext) -> list[HeaderField]:
        """Return *headers* without forged identity headers, with those of the caller added."""
        safe_headers = [pair for pair in headers if not self._impersonates(pair[0])]
        return safe_headers + self.headers_of(caller)


class IdentityHeadersApp:
    """
    Calls *app* with identity headers; the caller is in the scope under *key*.

    The received headers stay unchanged for the layers in front of this one.
    """

    def __init__(self, app: ASGIApp, headers: IdentityHeaders, key: str) -> None:
        self._app = app
        self._for_app = headers.for_app
        self._key = key

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            headers = self._for_app(scope["headers"], scope[self._key])
            scope = {**scope, "headers": headers}
        return self._app(scope, receive, send)


def _checked(name: str) -> bytes:
    if not name:
        return b""
    encoded = name.lower().encode()
    if not NAME.fullmatch(name.lower()) or encoded in COMMON_HEADERS:
        raise ValueError(f"{name!r} cannot be an identity header")
    return encoded


def _safe(value: str) -> bytes:
    # No line end, no control character, and no byte that a reader could decode differently. Spaces
    # only separate values.
    return quote(value, safe=UNENCODED, errors="replace").encode("ascii")
