"""The client credentials grant (RFC 6749 section 4.4) for requests to one server."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
from authlib.oauth2.rfc6749.parameters import (  # type: ignore[import-untyped]
    prepare_token_request,
)

from gatepost.config.credentials import CredentialSettings
from gatepost.config.references import UnresolvedReference, resolve
from gatepost.credentials.credential import CredentialUnavailable
from gatepost.credentials.keyring_key import private_pem
from gatepost.credentials.references import referred
from gatepost.credentials.static import bearer
from gatepost.credentials.token_cache import CachedToken, IssuedToken, TokenBusy, TokenCache, usable
from gatepost.credentials.token_endpoint import (
    MAX_BYTES,
    TIMEOUT_S,
    TokenEndpoint,
    discovered,
    endpoint_of,
)
from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.context.interfaces import OutboundReply, SignedHeaders
from gatepost_authz.client_authentication import Credentials, authentication
from gatepost_authz.config import Introspection
from gatepost_authz.fetch import OAUTH_ERRORS
from gatepost_authz.strict_json import StrictJsonError, loads_object

DISCOVERED_S = 3600.0
"""How long a discovered token endpoint is used."""
PAUSE_S = 5.0
"""How long a failure is answered without asking the authorization server again."""
REFUSED_S = 30.0
"""The shortest time between two renewals because the upstream refused a token."""
WAIT_S, POLL_S = 20.0, 0.5
"""How long, and how often, a process looks for the token that another one renews."""
USUAL_LIFETIME_S = 300.0
"""The lifetime of a token if its issuer does not state it."""
LONGEST_S = 86_400.0

log = logging.getLogger("gatepost.credentials")


class CredentialServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services of the process that credentials use."""

    records: Records
    shared_store: SharedStore
    secrets: SecretCache
    keyring: KeyRing
    outbound: OutboundClient


class TokenClient:
    """Gets tokens of one credential for one server of a tenant."""

    def __init__(
        self,
        settings: CredentialSettings,
        services: CredentialServices,
        *,
        tenant: str,
        url: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._tenant, self._url = settings, tenant, url
        self._outbound, self._secrets = services.outbound, services.secrets
        self._keyring = services.keyring
        self._clock = clock
        self._cached_endpoint: TokenEndpoint | None = None
        self._found_until = 0.0

    async def issue(self) -> IssuedToken:
        """Return a new token; raises CredentialUnavailable."""
        endpoint = await self._endpoint()
        settings = self._settings
        headers, members = (await self._authentication(endpoint))()
        resource = settings.resource
        if resource is None:
            resource = endpoint.resource or self._url
        body = prepare_token_request(
            "client_credentials",
            scope=list(settings.scopes),
            resource=resource,
            audience=settings.audience,
            **members,
        )
        try:
            reply = await self._outbound.of(self._tenant).send(
                "POST",
                endpoint.url,
                content=body.encode(),
                headers={
                    **headers,
                    "accept": "application/json",
                    "content-type": "application/x-www-form-urlencoded",
                },
                timeout_s=TIMEOUT_S,
                max_bytes=MAX_BYTES,
                confidential=True,
            )
        except ToolFailure as failure:
            raise CredentialUnavailable(failure.failure.message) from None
        return self._token(reply, endpoint)

    async def _endpoint(self) -> TokenEndpoint:
        settings = self._settings
        if settings.token_endpoint:
            return TokenEndpoint(settings.token_endpoint, settings.issuer)
        if self._cached_endpoint is None or self._clock() >= self._found_until:
            sender, issuer, resource = self._outbound.of(self._tenant), settings.issuer, ""
            if not issuer:
                issuer, resource = await discovered(sender, self._url)
            self._cached_endpoint = TokenEndpoint(
                await endpoint_of(sender, issuer), issuer, resource
            )
            self._found_until = self._clock() + DISCOVERED_S
        return self._cached_endpoint

    async def _authentication(self, endpoint: TokenEndpoint) -> Callable[[], Credentials]:
        settings = self._settings
        key_id = settings.key_id
        if settings.method != "private_key_jwt":
            secret = await referred(
                settings.client_secret,
                self._tenant,
                endpoint.url,
                self._secrets,
                self._outbound.address_policy,
            )
        elif settings.private_key:
            try:
                secret = resolve(settings.private_key)
            except UnresolvedReference as error:
                raise CredentialUnavailable(f"The private key is missing: {error}.") from None
        else:
            secret, key_id = private_pem(self._keyring)
        client = Introspection(client_id=settings.client_id, method=settings.method, key_id=key_id)
        try:
            return authentication(client, secret, endpoint.issuer or endpoint.url)
        except ValueError as error:
            raise CredentialUnavailable(f"The private key cannot be used: {error}.") from None

    def _token(self, reply: OutboundReply, endpoint: TokenEndpoint) -> IssuedToken:
        self._check(reply, endpoint)
        try:
            answer = loads_object(reply.body, max_bytes=MAX_BYTES)
        except StrictJsonError:
            answer = {}
        token, kind = answer.get("access_token"), answer.get("token_type")
        if not isinstance(token, str) or not usable(token):
            raise CredentialUnavailable(f"{endpoint.url} answered without a usable access token.")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise CredentialUnavailable(f"{endpoint.url} issued a token that is no bearer token.")
        lifetime = answer.get("expires_in", USUAL_LIFETIME_S)
        if isinstance(lifetime, str) and lifetime.isdigit():
            lifetime = float(lifetime[:12])
        if isinstance(lifetime, bool) or not isinstance(lifetime, int | float) or lifetime <= 0:
            lifetime = USUAL_LIFETIME_S
        return IssuedToken(token, min(float(lifetime), LONGEST_S))

    def _check(self, reply: OutboundReply, endpoint: TokenEndpoint) -> None:
        if reply.status == 200 and not reply.truncated:
            return
        self._found_until = 0.0
        try:
            error = loads_object(reply.body, max_bytes=MAX_BYTES).get("error")
        except StrictJsonError:
            error = None
        # Nothing else of the answer is quoted, because it may contain the secret.
        code = f", {error}" if isinstance(error, str) and error in OAUTH_ERRORS else ""
        raise CredentialUnavailable(
            f"{endpoint.url} issued no token to the client {self._settings.client_id!r} "
            f"({reply.status}{code})."
        )


class ClientCredential:
    """
    An access token for one server, renewed before it expires, by one replica at a time.

    Requests wait only for the first token. As long as the current token is valid, a renewal runs in
    the background.
    """

    def __init__(
        self,
        client: TokenClient,
        cache: TokenCache,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._cache, self._clock = client, cache, clock
        self._cached_token: CachedToken | None = None
        self._refused_id, self._refused_at = "", float("-inf")
        self._failure: tuple[float, CredentialUnavailable] | None = None
        self._renewing: asyncio.Task[CachedToken] | None = None

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """Implement `OutboundCredential`."""
        cached, now = self._cached_token, self._clock()
        if cached is not None and now < cached.renew_at:
            return signed(cached)
        valid = cached is not None and now < cached.expires_at
        if self._renewing is None:
            if self._failure is not None and now < self._failure[0]:
                if cached is not None and valid:
                    return signed(cached)
                raise CredentialUnavailable(str(self._failure[1]))
            self._renewing = asyncio.create_task(self._renew())
            self._renewing.add_done_callback(self._renewed)
        if cached is not None and valid:
            return signed(cached)
        # A caller that gives up must not take the token from the others.
        return signed(await asyncio.shield(self._renewing))

    async def refused(self, headers: SignedHeaders) -> bool:
        """Implement `OutboundCredential`: a new token is worth one attempt."""
        cached, now = self._cached_token, self._clock()
        if cached is None or cached.id != headers.version:
            return True  # another request has renewed it already
        if now < self._refused_at + REFUSED_S:
            return False
        self._refused_id, self._refused_at, self._cached_token = cached.id, now, None
        return True

    async def aclose(self) -> None:
        """End a renewal that runs."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _renew(self) -> CachedToken:
        until = self._clock() + WAIT_S
        ask = partial(self._cache.token, self._client.issue, refused=self._refused_id)
        try:
            with suppress(TokenBusy):
                return await ask()
            async with self._cache.wake_ups() as wake_ups:
                while self._clock() < until:
                    with suppress(TokenBusy):
                        return await ask()
                    await wake_ups.wait(POLL_S)
        except StoreUnavailable:
            raise CredentialUnavailable("The database does not answer.") from None
        raise CredentialUnavailable("Another process has not renewed the access token in time.")

    def _renewed(self, task: "asyncio.Task[CachedToken]") -> None:
        self._renewing = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._cached_token, self._failure = task.result(), None
        elif isinstance(error, CredentialUnavailable):
            log.warning("credential_unavailable", extra={"reason": str(error)})
            self._failure = (self._clock() + PAUSE_S, error)
        else:
            log.error("credential_failed", exc_info=error)


def signed(token: CachedToken) -> SignedHeaders:
    """Return the header of a token."""
    return SignedHeaders(bearer(token.value), token.id)
