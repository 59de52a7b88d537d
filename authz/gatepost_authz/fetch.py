"""Fetch small JSON documents from issuers, within strict limits."""

import asyncio
import re
import ssl
from collections.abc import Mapping

import httpx2
import msgspec

from gatepost_authz.address_policy import IssuerAddressPolicy
from gatepost_authz.addresses import Networks, url_problem
from gatepost_authz.config import Network
from gatepost_authz.pinning import (
    CONNECT_S,
    KEPT_S,
    AddressRefused,
    PinningTransport,
    ResolveHost,
    SystemResolver,
)
from gatepost_authz.strict_json import StrictJsonError, loads_object

LIMIT_BYTES = 262_144
TIMEOUT_S = 5.0
OAUTH_ERRORS = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
        "invalid_target",
        "invalid_code",  # Glewlwyd's word for `invalid_grant`
    }
)
"""The errors of a token endpoint (RFC 6749 section 5.2, RFC 8707 section 2)."""
OAUTH_STATUSES = frozenset({400, 401, 403})
"""The statuses of such errors. The RFC does not have 403, which Glewlwyd sends."""
JSON_TYPE = re.compile(r"application/(?:[a-z0-9.!#$&^_-]+\+)?json", re.ASCII)
MAX_AGE = re.compile(r"(?:\A|[,\s])max-age\s*=\s*\"?([0-9]{1,9})", re.ASCII | re.IGNORECASE)
NOT_CACHEABLE = re.compile(r"(?:\A|[,\s])(?:no-store|no-cache)\b", re.ASCII | re.IGNORECASE)


FETCH_FAILURES: Mapping[str, str] = {
    "url": "its address is not an http(s) URL",
    "address": "its address is in a private network",
    "connect": "the connection failed",
    "certificate": "neither the system nor `network.ca_bundle` has the CA of its certificate",
    "certificate_expired": "its certificate has expired",
    "certificate_name": "its certificate is for another host",
    "tls": "the file in `network.ca_bundle` has no certificates that can be read",
    "proxy": "the proxy refused the connection",
    "protocol": "its response is not valid HTTP",
    "timeout": "it took too long",
    "slow": "it took too long",
    "status": "it answered with an error status",
    "redirect": "it answered with a redirect, which Gatepost never follows",
    "encoding": "it answered in an unknown encoding",
    "content_type": "it did not answer with JSON",
    "json": "it did not answer with JSON",
    "too_large": "its response is too large",
    "metadata": "its metadata were not found or lack the endpoint",
    "elsewhere": "its metadata name an endpoint on another host or without https",
    "issuer": "its metadata name another issuer",
    "key_set": "its key set cannot be used",
    "no_usable_key": "its key set has no key for an accepted algorithm",
    "token_type": "its response is malformed",
    "tokens": "its response is malformed",
    "failed": "fetching failed",
    "closed": "the server is stopping",
}
"""The meaning of each reason of a `FetchError` for the issuer."""


# X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH of OpenSSL.
CERTIFICATE_PROBLEMS = {
    10: "certificate_expired",
    62: "certificate_name",
    64: "certificate_name",
}


class FetchError(Exception):
    """
    Raised when a document cannot be fetched; *reason* is a key of `FETCH_FAILURES`.

    The text has nothing of the answer but the status and an OAuth error code.
    """

    def __init__(self, reason: str, *, status: int | None = None, error: str = "") -> None:
        words = [reason, *([] if status is None else [str(status)]), *([error] if error else [])]
        super().__init__(f"{FETCH_FAILURES[reason]} ({' '.join(words)})")
        self.reason = reason
        self.status = status
        self.error = error

    @property
    def answered(self) -> bool:
        """Return whether the server answered, but without a usable document."""
        return self.reason in {"status", "redirect", "encoding", "content_type", "json"}


class FetchedDocument(msgspec.Struct, frozen=True):
    """A JSON object and its cache lifetime in seconds, or None."""

    data: dict[str, object]
    max_age: float | None


class Fetcher:
    """
    Gets JSON objects from issuers: https only, no redirects, no addresses but allowed ones.

    There is one per process. It opens nothing before the first request, so it may be created before
    a fork. *development* allows plain http to this machine. *resolver* replaces the system's.
    """

    def __init__(
        self,
        *,
        development: bool,
        network: Network | None = None,
        resolver: ResolveHost | None = None,
    ) -> None:
        network = network or Network()
        self._development = development
        self._proxy = network.proxy
        self._ca_bundle = network.ca_bundle
        self._resolver = resolver or SystemResolver()
        self._tls: ssl.SSLContext | None = None
        self._transports: dict[tuple[Networks, bool], PinningTransport] = {}

    def tls(self) -> ssl.SSLContext:
        """
        Return the TLS context with the system's CA certificates and the configured bundle.

        OSError (also as ssl.SSLError): the bundle cannot be read.
        """
        if self._tls is None:
            tls = httpx2.create_ssl_context(trust_env=False)
            if self._ca_bundle:
                tls.load_verify_locations(cafile=self._ca_bundle)
            self._tls = tls
        return self._tls

    def transport(
        self, *, allow_private: Networks = (), connections: int = 0, secure: bool = True
    ) -> PinningTransport:
        """
        Return a transport with this fetcher's rules; the caller closes it.

        *connections*: at most so many at once, kept for `KEPT_S` between requests; 0: as many as
        requests, each closed after its answer. *secure* is false where only plain http to this
        machine is meant: reading a hundred CA certificates takes longer than starting.
        FetchError (``tls``): the CA bundle is unusable.
        """
        limits = (
            httpx2.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=KEPT_S,
            )
            if connections
            else httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        )
        try:
            tls = self.tls() if secure else None
        except OSError as error:
            raise FetchError("tls") from error
        return PinningTransport(
            address_policy=IssuerAddressPolicy(allow_private, development=self._development),
            tls=tls,
            # A company's proxy for outgoing requests usually cannot reach the company's own hosts.
            proxy="" if allow_private else self._proxy,
            resolver=self._resolver,
            limits=limits,
        )

    async def get_json(
        self,
        url: str,
        *,
        allow_private: Networks = (),
        limit_bytes: int = LIMIT_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> FetchedDocument:
        """
        Fetch the JSON object at *url*: at most *limit_bytes*, within *timeout_s*.

        FetchError: anything else, and an answer other than 200 with a JSON content type.
        """
        # A connection that was opened within one issuer's networks must never serve another
        # issuer's requests. Keeping it would gain nothing, because fetches are minutes apart.
        key = (allow_private, not url.startswith("http://"))
        transport = self._transports.get(key)
        if transport is None:
            transport = self.transport(allow_private=allow_private, secure=key[1])
            self._transports[key] = transport
        return await exchange(
            transport,
            self._request("GET", url, {}, None),
            limit_bytes=limit_bytes,
            timeout_s=timeout_s,
        )

    async def post_form(
        self,
        url: str,
        form: Mapping[str, str],
        *,
        transport: PinningTransport,
        headers: Mapping[str, str] | None = None,
    ) -> FetchedDocument:
        """
        Post a form to *url* and return the JSON object, with the same rules and limits.

        The request must change nothing, because it is sent again if a kept connection ends. It goes
        through the caller's own *transport*, whose connections it keeps and counts: the wait for a
        free one is part of the five seconds.
        """
        return await exchange(
            transport,
            self._request("POST", url, headers or {}, form),
            limit_bytes=LIMIT_BYTES,
            timeout_s=TIMEOUT_S,
        )

    async def post_form_once(
        self,
        url: str,
        form: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        allow_private: Networks,
    ) -> FetchedDocument:
        """Post a form as `post_form` does, over a connection of its own, and only once."""
        transport = self.transport(
            allow_private=allow_private, secure=not url.startswith("http://")
        )
        try:
            return await self.post_form(url, form, headers=headers, transport=transport)
        finally:
            await transport.aclose()

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> httpx2.Request:
        request_headers = {
            "accept": "application/json",
            # A compressed answer can become a thousand times larger than its transfer limit.
            "accept-encoding": "identity",
            "user-agent": "gatepost",
            **headers,
        }
        if url_problem(url, self._development):
            raise FetchError("url")
        try:
            return httpx2.Request(method, url, headers=request_headers, data=form)
        except httpx2.InvalidURL as error:
            raise FetchError("url") from error

    async def aclose(self) -> None:
        """Close every connection that this fetcher opened for itself."""
        transports = list(self._transports.values())
        self._transports.clear()
        for transport in transports:
            await transport.aclose()
        await asyncio.sleep(0)  # in its next turn, the loop closes the sockets


async def exchange(
    transport: PinningTransport,
    request: httpx2.Request,
    *,
    limit_bytes: int,
    timeout_s: float,
) -> FetchedDocument:
    """Send *request* and read one JSON object back; FetchError for everything that goes wrong."""
    request.extensions["timeout"] = {
        "connect": min(CONNECT_S, timeout_s),
        "read": timeout_s,
        "write": timeout_s,
        "pool": timeout_s,
    }
    try:
        # One limit for the whole exchange: a server that sends a byte a second keeps every single
        # read within its own timeout.
        async with asyncio.timeout(timeout_s):
            answer = await transport.send_repeatable(request)
            try:
                if answer.status_code in OAUTH_STATUSES:
                    error = await oauth_error(answer, limit_bytes)
                    raise FetchError("status", status=answer.status_code, error=error)
                check_head(answer, limit_bytes)
                body = await read(answer, limit_bytes)
            finally:
                await answer.aclose()
    except (TimeoutError, httpx2.TimeoutException) as error:
        raise FetchError("timeout") from error
    except httpx2.TransportError as error:
        raise FetchError(reason_of(error)) from error
    try:
        data = loads_object(body, max_bytes=limit_bytes)
    except StrictJsonError as error:
        raise FetchError("json") from error
    return FetchedDocument(data, max_age_of(answer.headers.get("cache-control", "")))


def reason_of(error: httpx2.TransportError) -> str:
    """Return the reason word for a failed exchange."""
    if problem := certificate_problem(error):
        return problem
    if isinstance(error, AddressRefused):
        return "address"
    if isinstance(error, httpx2.UnsupportedProtocol):
        return "url"
    if isinstance(error, httpx2.ProxyError):
        return "proxy"
    return "protocol" if isinstance(error, httpx2.ProtocolError) else "connect"


def certificate_problem(error: BaseException) -> str:
    """Return the reason word if *error* was caused by the server's certificate, or ""."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ""
    return CERTIFICATE_PROBLEMS.get(cause.verify_code, "certificate")


def check_head(answer: httpx2.Response, limit_bytes: int) -> None:
    """Raise FetchError unless status and headers announce a JSON document within the limit."""
    if 300 <= answer.status_code < 400:
        # A redirect is never followed: it would bypass every check of the configured URL.
        raise FetchError("redirect", status=answer.status_code)
    if answer.status_code != 200:
        raise FetchError("status", status=answer.status_code)
    if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise FetchError("encoding")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not JSON_TYPE.fullmatch(kind):
        raise FetchError("content_type")
    announced = answer.headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > limit_bytes:
        raise FetchError("too_large")


async def oauth_error(answer: httpx2.Response, limit_bytes: int) -> str:
    """Return the OAuth error code in the body of a refusal; empty if it is none."""
    try:
        body = await read(answer, limit_bytes)
        error = loads_object(body, max_bytes=limit_bytes).get("error")
    except (FetchError, StrictJsonError):
        return ""
    return error if isinstance(error, str) and error in OAUTH_ERRORS else ""


async def read(answer: httpx2.Response, limit_bytes: int) -> bytes:
    """Read the body; stop when it exceeds *limit_bytes*."""
    body = bytearray()
    async for part in answer.aiter_raw():
        body += part
        if len(body) > limit_bytes:
            raise FetchError("too_large")
    return bytes(body)


def max_age_of(cache_control: str) -> float | None:
    """Return the cache lifetime in seconds from Cache-Control (RFC 9111), or None."""
    if NOT_CACHEABLE.search(cache_control):
        return 0.0
    match = MAX_AGE.search(cache_control)
    return float(match[1]) if match else None
