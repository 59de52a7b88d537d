"""The OpenID Connect client of the dashboard: code flow with PKCE."""

import secrets
import time
from collections.abc import Mapping, Sequence
from math import inf

import msgspec
from authlib.common.urls import add_params_to_uri  # type: ignore[import-untyped]
from authlib.oauth2.rfc6749.parameters import (  # type: ignore[import-untyped]
    prepare_grant_uri,
)
from authlib.oauth2.rfc7636 import (  # type: ignore[import-untyped]
    create_s256_code_challenge,
)

from gatepost_authz.caller import TenantContext
from gatepost_authz.client_authentication import credentials
from gatepost_authz.config import DashboardClient
from gatepost_authz.discovery import Discovery, IssuerMetadata
from gatepost_authz.errors import InvalidToken
from gatepost_authz.fetch import Fetcher, FetchError
from gatepost_authz.identity import ExpectedSignIn, check_identity
from gatepost_authz.introspector import PAUSE_S
from gatepost_authz.issuer_key_sets import location_of
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.protected_resource import Target
from gatepost_authz.verifier import KeySource, TokenVerifier


class SignInAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One sign-in in progress, stored encrypted in a cookie of the browser that started it."""

    issuer: str
    state: str
    nonce: str
    verifier: str
    """The PKCE code verifier (RFC 7636); the issuer saw its digest."""
    return_to: str
    """The page that the user wanted, below the base."""
    began: float
    switches: bool = False
    """Whether the user asked to choose the account at the issuer."""


PROMPTS = ("select_account", "login")
"""The values of `prompt` by which a person can use another account, the preferred one first."""


class Tokens(msgspec.Struct, frozen=True):
    """The token endpoint's answer."""

    access: str
    identity: str


class OpenIdClient:
    """
    The OpenID Connect client of one issuer. *secret* is the client secret.

    Authlib builds the requests, and the pinning transport sends them.
    """

    def __init__(
        self,
        issuer: str,
        trusted: TrustedIssuer,
        client: DashboardClient,
        *,
        fetcher: Fetcher,
        discovery: Discovery,
        secret: str,
    ) -> None:
        self.issuer = issuer
        self.trusted = trusted
        self.client = client
        self._fetcher = fetcher
        self._discovery = discovery
        self._location = msgspec.structs.replace(location_of(issuer, trusted), sign_in=True)
        self._search_at = -inf
        self._headers, self._form = credentials(client, secret)

    def attempt(self, return_to: str, *, switches: bool = False) -> SignInAttempt:
        """Return a new sign-in with fresh secrets."""
        return SignInAttempt(
            issuer=self.issuer,
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            return_to=return_to,
            began=time.time(),
            switches=switches,
        )

    async def address(
        self, attempt: SignInAttempt, target: Target, callback: str, baseline: Sequence[str]
    ) -> str:
        """Return the authorization URL for the browser; FetchError if the issuer publishes none."""
        endpoint = self.client.authorization_endpoint
        if not endpoint:
            endpoint = (await self._metadata()).endpoint("authorization_endpoint")
        uri: str = prepare_grant_uri(
            endpoint,
            client_id=self.client.client_id,
            response_type="code",
            redirect_uri=callback,
            scope=" ".join(dict.fromkeys(["openid", *self.client.scopes, *baseline])),
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
            **self._resource(target),
            **(await self._prompt() if attempt.switches else {}),
        )
        return uri

    async def sign_out_address(self, return_address: str, hint: str) -> str:
        """
        Return the URL that signs a person out at the issuer; empty if it has none.

        The issuer sends the browser *return_address*. *hint* is the ID token of the sign-in, or
        empty: then the issuer asks the person first (OpenID Connect RP-Initiated Logout 1.0 section
        2).
        """
        endpoint = await self._end_session_endpoint()
        if not endpoint:
            return ""
        query = {"client_id": self.client.client_id, "post_logout_redirect_uri": return_address}
        if hint:
            query["id_token_hint"] = hint
        address: str = add_params_to_uri(endpoint, list(query.items()))
        return address

    async def names_itself(self) -> bool:
        """Return whether the issuer's answers name their sender (RFC 9207)."""
        if self.client.authorization_endpoint:
            return False
        return (await self._metadata()).names_itself

    async def redeem(
        self, code: str, attempt: SignInAttempt, target: Target, callback: str
    ) -> Tokens:
        """Return the tokens for *code*; FetchError, with status 400 if the code is not valid."""
        endpoint = self.client.token_endpoint
        if not endpoint:
            endpoint = (await self._metadata()).endpoint("token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": callback,
            "code_verifier": attempt.verifier,
            **self._resource(target),
            **self._form,
        }
        document = await self._fetcher.post_form_once(
            endpoint, form, headers=self._headers, allow_private=self._location.allow_private
        )
        return tokens_of(document.data)

    async def _metadata(self) -> IssuerMetadata:
        now = time.monotonic()
        if now < self._search_at:
            raise FetchError("metadata")
        try:
            return await self._discovery.find(self._location)
        except FetchError:
            # Any person can start sign-ins, so an issuer that is down must not be asked each time.
            self._search_at = now + PAUSE_S
            raise

    async def hint(self, identity: str) -> str:
        """Return the ID token if the sign-out will need it, else an empty string."""
        try:
            return identity if await self._end_session_endpoint() else ""
        except FetchError:
            return ""

    async def _end_session_endpoint(self) -> str:
        return (await self._metadata()).end_session_endpoint if self.client.sign_out else ""

    async def _prompt(self) -> Mapping[str, str]:
        """Return the parameter that lets a person choose the account, if the issuer knows one."""
        prompt: str = self.client.prompt
        if not prompt and not self.client.authorization_endpoint:
            supported_prompts = (await self._metadata()).prompts
            prompt = next((prompt for prompt in PROMPTS if prompt in supported_prompts), "")
        return {"prompt": prompt} if prompt else {}

    def _resource(self, target: Target) -> Mapping[str, str]:
        name = self.trusted.preset.resource_parameter
        audiences = self.trusted.settings.audiences
        if name == "audience" and audiences:
            return {name: audiences[0]}
        return {name: target.url} if name else {}


def tokens_of(answer: Mapping[str, object]) -> Tokens:
    """
    Return the two tokens of a token response (OpenID Connect Core 3.1.3.3); FetchError ``tokens``.
    """
    access, identity = answer.get("access_token"), answer.get("id_token")
    kind = answer.get("token_type")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise FetchError("token_type")
    if not isinstance(access, str) or not access or not isinstance(identity, str) or not identity:
        raise FetchError("tokens")
    return Tokens(access, identity)


class SignInVerifier:
    """Identify the person by the access token, checked by the gate's verifier, and the ID token."""

    def __init__(
        self,
        verifier: TokenVerifier,
        keys: KeySource,
        *,
        baseline: frozenset[str],
        development: bool,
    ) -> None:
        self._verifier = verifier
        self._keys = keys
        self._baseline = baseline
        self._development = development

    async def identify(
        self, tokens: Tokens, party: OpenIdClient, attempt: SignInAttempt, target: Target
    ) -> TenantContext:
        """
        Return the person that both tokens name.

        InvalidToken, InsufficientScope or IssuerUnavailable (all AuthError): why not.
        """
        caller = await self._verifier.verify(tokens.access, target)
        if caller is None:
            raise InvalidToken("unknown_kind")
        if caller.issuer != party.issuer:
            # With another issuer's token, that issuer could decide who signs in (RFC 9700, 4.4).
            raise InvalidToken("wrong_issuer")
        if caller.subject_kind != "user":
            raise InvalidToken("no_person")
        caller.require(self._baseline)
        login = ExpectedSignIn(
            issuer=party.issuer,
            client_id=party.client.client_id,
            nonce=attempt.nonce,
            access_token=tokens.access,
            caller=caller,
            trusted=party.trusted,
            target=target,
        )
        await check_identity(tokens.identity, login, self._keys, development=self._development)
        return caller
