"""
The records of the issuer: clients, codes, tokens and sign-ins, in the form that Authlib needs.
"""

import hmac
from collections.abc import Mapping
from typing import Literal

import msgspec

from gatepost_keys.issuer import redirects
from gatepost_keys.subject import TokenSubject


class RegisteredClient(msgspec.Struct, frozen=True, kw_only=True):
    """A registered client (RFC 7591 section 2). The methods are those of Authlib's ClientMixin."""

    client_id: str
    secret: str = ""
    """Empty for a public client."""
    name: str = ""
    redirect_uris: tuple[str, ...] = ()
    auth_methods: frozenset[str] = frozenset({"none"})
    grant_types: frozenset[str] = frozenset()
    scope: str = ""
    """The scopes that it gets if it requests none; never a limit, or a client could not step up."""
    tenant: str = ""
    introspects: bool = False
    offered: tuple[str, ...] = ()
    """The scopes that exist at this issuer."""
    offered_prefixes: tuple[str, ...] = ()
    """The beginnings of further scopes that exist."""
    default_scope: str = ""
    unknown_scopes: Literal["leave out", "ignore", "refuse"] = "leave out"
    """The treatment of unknown scopes in a request."""

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str | None:
        """Return the only registered address; with several the client has to say which."""
        return self.redirect_uris[0] if len(self.redirect_uris) == 1 else None

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return any(redirects.matches(registered, redirect_uri) for registered in self.redirect_uris)

    def check_client_secret(self, client_secret: str) -> bool:
        return bool(self.secret) and hmac.compare_digest(
            self.secret.encode(), client_secret.encode()
        )

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in self.auth_methods

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.grant_types

    def get_allowed_scope(self, scope: str | None) -> str | None:
        """
        Return the granted part of the requested *scope*, or None.

        Unknown scopes are left out and the token answer says what was granted (RFC 6749 section
        3.3): clients routinely ask for `openid` everywhere, and refusing them would not help.
        """
        requested = (scope or "").split()
        if not requested:
            requested = (self.scope or self.default_scope).split()
            return " ".join(name for name in dict.fromkeys(requested) if self._exists(name))
        granted = [name for name in dict.fromkeys(requested) if self._exists(name)]
        if self.unknown_scopes == "refuse" and len(granted) < len(set(requested)):
            return None
        return " ".join(granted) if granted or self.unknown_scopes == "ignore" else None

    def _exists(self, name: str) -> bool:
        return name in self.offered or name.startswith(self.offered_prefixes)


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The person who signed in, the time (seconds since the epoch) and the method."""

    person: TokenSubject
    auth_time: int
    acr: str


class TokenFamily(msgspec.Struct, eq=False):
    """All tokens of one authorization, which are revoked together."""

    expires_at: float
    revoked: bool = False


class IssuedCode(msgspec.Struct, kw_only=True, eq=False):
    """An authorization code. It stays known after use, so that a replay is noticed."""

    client_id: str
    redirect_uri: str | None
    """As the authorization request spelt it; None when it left it out."""
    scope: str
    resource: str
    code_challenge: str
    code_challenge_method: str
    sign_in: SignIn
    expires_at: float
    family: TokenFamily
    identity: str = ""
    """The scopes about the person that were asked for; `openid` asks for an ID token."""
    nonce: str = ""
    used: bool = False

    def get_redirect_uri(self) -> str | None:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


class RefreshToken(msgspec.Struct, kw_only=True, eq=False):
    """A refresh token. It stays known after use, so that its reuse is noticed."""

    client_id: str
    scope: str
    resource: str
    sign_in: SignIn
    family: TokenFamily
    identity: str = ""
    """The scopes about the person."""
    used: bool = False

    def check_client(self, client: RegisteredClient) -> bool:
        return self.client_id == client.client_id

    def get_scope(self) -> str:
        return self.scope


class AccessToken(msgspec.Struct, kw_only=True, eq=False):
    """An issued access token, as introspection and revocation see it."""

    claims: Mapping[str, object]
    described: Mapping[str, object]
    """The answer of introspection while it is active."""
    expires_at: float
    client_id: str
    family: TokenFamily
    revoked: bool = False

    def check_client(self, client: RegisteredClient) -> bool:
        return self.client_id == client.client_id
