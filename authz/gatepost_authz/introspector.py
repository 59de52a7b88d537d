"""Introspect opaque tokens at an issuer (RFC 7662)."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from math import inf

from gatepost_authz.answer_cache import digest_of
from gatepost_authz.client_authentication import authentication, reference_of
from gatepost_authz.discovery import Discovery
from gatepost_authz.errors import InvalidToken, IssuerUnavailable
from gatepost_authz.fetch import Fetcher, FetchError
from gatepost_authz.issuer_key_sets import location_of
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.pinning import PinningTransport
from gatepost_authz.ratelimited import RateLimitedLog

CONNECTIONS = 10
"""The maximum number of connections to one issuer."""
# Every invented token causes a request to the issuer; they must not pile up while it is slow.
MAX_RUNNING = 256
PAUSE_S = 5.0
"""The pause in seconds after a search that found no endpoint."""

RunningKey = tuple[bytes, str]
"""The digest of a token, and the issuer that is asked about it."""

log = logging.getLogger(__name__)


class Introspector:
    """
    Introspects tokens at one issuer, over its own connections.

    *secret* is this server's own secret at the issuer; empty without client authentication.
    """

    def __init__(
        self,
        trusted: TrustedIssuer,
        fetcher: Fetcher,
        discovery: Discovery,
        *,
        secret: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trusted = trusted
        self._fetcher = fetcher
        self._discovery = discovery
        self._monotonic = monotonic
        self._location = location_of(trusted.settings.issuer, trusted)
        self._tokeninfo = trusted.preset.introspection_form == "tokeninfo"
        settings = trusted.settings.introspection
        self._authenticate = (
            (lambda: ({}, {}))
            if settings is None
            else authentication(settings, secret, trusted.settings.issuer)
        )
        self._configured = settings.endpoint if settings is not None else ""
        self._transport: PinningTransport | None = None
        self._search_at = -inf
        # Each invented token is one more request.
        self._log = RateLimitedLog(log, monotonic=monotonic)

    async def ask(self, token: str) -> dict[str, object]:
        """
        Return the claims of an active token; ``iss`` is added if it is missing.

        InvalidToken: it is not active. IssuerUnavailable: no answer that can be understood.
        """
        issuer = self.trusted.settings.issuer
        try:
            answer = await self._exchange(token)
        except FetchError as error:
            if self._tokeninfo and error.status == 400:
                raise InvalidToken("inactive") from error
            # A 401 here is about our own credentials, so it is not the caller's fault either.
            self._log.warning("%s cannot be asked about tokens: %s", issuer, error)
            raise IssuerUnavailable(f"introspection_{error.reason}") from error
        if self._tokeninfo:
            return {"iss": issuer, **described(answer)}
        claims = active(answer, names_type=self.trusted.preset.answers_name_type)
        return {"iss": issuer, **claims}

    async def _exchange(self, token: str) -> dict[str, object]:
        if self._transport is None:
            self._transport = self._fetcher.transport(
                allow_private=self._location.allow_private, connections=CONNECTIONS
            )
        headers, form = self._authenticate()
        fields = (
            {"access_token": token}
            if self._tokeninfo
            else {"token": token, "token_type_hint": "access_token", **form}
        )
        document = await self._fetcher.post_form(
            await self._endpoint(), fields, headers=headers, transport=self._transport
        )
        return document.data

    async def _endpoint(self) -> str:
        endpoint = self._configured or self.trusted.preset.introspection_endpoint
        if endpoint:
            return endpoint
        if self._monotonic() < self._search_at:
            raise FetchError("metadata")
        try:
            metadata = await self._discovery.find(self._location)
            return metadata.endpoint("introspection_endpoint")
        except FetchError:
            self._search_at = self._monotonic() + PAUSE_S
            raise

    async def aclose(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.aclose()


class Introspectors:
    """Holds one introspector per issuer of opaque tokens."""

    def __init__(
        self,
        fetcher: Fetcher,
        discovery: Discovery,
        *,
        secret_of: Callable[[str], str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetcher = fetcher
        self._discovery = discovery
        self._secret_of = secret_of
        self._monotonic = monotonic
        self._by_issuer: dict[str, Introspector] = {}
        # Introspectors that a reload has replaced may still be answering.
        self._retired: list[Introspector] = []
        self._running: dict[RunningKey, asyncio.Task[dict[str, object]]] = {}

    async def ask(self, token: str, trusted: TrustedIssuer) -> dict[str, object]:
        """
        Return the claims of an active token; concurrent requests with one token share the answer.

        InvalidToken: it is not active. IssuerUnavailable: no answer, or too many requests.
        """
        issuer = trusted.settings.issuer
        key = (digest_of(token), issuer)
        task = self._running.get(key)
        if task is None:
            if sum(running[1] == issuer for running in self._running) >= MAX_RUNNING:
                raise IssuerUnavailable("introspection_too_many_requests").with_details(
                    issuer=issuer
                )
            task = asyncio.create_task(self.introspector_for(trusted).ask(token))
            self._running[key] = task
            task.add_done_callback(lambda task: self._finish(key, task))
        # A request that gives up must not cancel the introspection for the others.
        return await asyncio.shield(task)

    def _finish(self, key: RunningKey, task: "asyncio.Task[dict[str, object]]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, also when all requests for it have gone

    async def cancel(self) -> None:
        """Cancel all running requests."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def introspector_for(self, trusted: TrustedIssuer) -> Introspector:
        """
        Return the introspector for *trusted*; create a new one when its settings have changed.
        """
        issuer = trusted.settings.issuer
        introspector = self._by_issuer.get(issuer)
        if introspector is not None and introspector.trusted is trusted:
            return introspector
        if introspector is not None and introspector.trusted.settings == trusted.settings:
            introspector.trusted = trusted
            return introspector
        if introspector is not None:
            self._retired.append(introspector)
        settings = trusted.settings.introspection
        self._by_issuer[issuer] = Introspector(
            trusted,
            self._fetcher,
            self._discovery,
            secret="" if settings is None else self._secret_of(reference_of(settings)),
            monotonic=self._monotonic,
        )
        return self._by_issuer[issuer]

    async def aclose(self) -> None:
        """Cancel all requests and close every connection."""
        await self.cancel()
        every = [*self._by_issuer.values(), *self._retired]
        self._by_issuer.clear()
        self._retired.clear()
        await asyncio.gather(*(introspector.aclose() for introspector in every))


def active(answer: Mapping[str, object], *, names_type: bool = False) -> dict[str, object]:
    """
    Return the claims of an introspection response; raise InvalidToken if it is not active.

    ``active`` must be true itself: the text ``"true"`` or a 1 come from a server that means
    something else. *names_type*: an answer without ``token_type`` is about a refresh token.
    """
    if answer.get("active") is not True:
        raise InvalidToken("inactive")
    kind = answer.get("token_type", "" if names_type else "Bearer")
    # RFC 7662 defines the type as that of RFC 6749; some servers write RFC 8693's word instead.
    if not isinstance(kind, str) or kind.lower() not in {"bearer", "access_token"}:
        # DPoP tokens are bound to a key, and some issuers describe refresh tokens as well.
        raise InvalidToken("sender_constrained" if kind == "DPoP" else "wrong_kind")
    if str(answer.get("token_use", "")).lower() in {"refresh_token", "refresh", "id_token", "id"}:
        raise InvalidToken("wrong_kind")
    return {name: value for name, value in answer.items() if name not in {"active", "token_type"}}


def described(answer: Mapping[str, object]) -> dict[str, object]:
    """
    Return the claims of Google's tokeninfo response, which has strings for numbers and no issuer.
    """
    claims = {name: value for name, value in answer.items() if name != "iss"}
    expires = claims.get("exp")
    if isinstance(expires, str) and expires.isascii() and expires.isdigit() and len(expires) < 16:
        claims["exp"] = int(expires)
    return claims
