"""One development issuer: its keys and everything it remembers, in memory only."""

import hashlib
import hmac
import secrets

import msgspec

from gatepost_keys.issuer.bounded import Bounded
from gatepost_keys.issuer.records import (
    AccessToken,
    Code,
    RefreshToken,
    RegisteredClient,
    SignIn,
    TokenFamily,
)
from gatepost_keys.issuer.settings import ACR_VALUES, IssuerSettings
from gatepost_keys.issuer.signing import SigningKeys
from gatepost_keys.mint import AccessTokenClaims, Identity, TokenSubject, half_hash, sign

CLI_CLIENT = "gatepost-cli"
MINT_GRANT = "urn:gatepost:params:oauth:grant-type:development-token"
"""The grant behind `gatepost token`: mints for any tenant and subject, for `gatepost-cli` alone."""

OPAQUE_PREFIX = "dev-at-"
SECRET_METHODS = frozenset({"client_secret_basic", "client_secret_post"})


class DevelopmentIssuer:
    """
    The state of a development issuer. All of it is gone when the process ends.

    Nothing here waits, so that one event loop makes every step atomic: a code is used once.
    """

    def __init__(self, settings: IssuerSettings) -> None:
        self.settings = settings
        self.keys = SigningKeys(settings.algorithm)
        self.clients: Bounded[RegisteredClient] = Bounded(1_000)
        self.codes: Bounded[Code] = Bounded(1_000)
        self.refresh_tokens: Bounded[RefreshToken] = Bounded(10_000)
        self.access_tokens: Bounded[AccessToken] = Bounded(10_000)
        self.sessions: Bounded[SignIn] = Bounded(1_000)
        self._secret = secrets.token_bytes(32)
        # Beside the registered clients: strangers who register thousands push out each other,
        # never these.
        self._built_in = {client.client_id: client for client in self._static_clients()}

    def now(self) -> float:
        return self.settings.clock()

    def client(self, client_id: str) -> RegisteredClient | None:
        """Return the client of that id, built in or registered."""
        return self._built_in.get(client_id) or self.clients.get(client_id)

    def rotate(self, *, remove_old: bool = False) -> str:
        """Sign with a new key from now on, and say its id; the old ones go if *remove_old*."""
        return self.keys.rotate(remove_old=remove_old)

    def seal(self, *parts: str) -> str:
        """
        Return a value that only this process can make for exactly *parts*: binds a form to its
        page.
        """
        message = "\0".join(f"{len(part)}:{part}" for part in parts).encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    def sealed(self, seal: str, *parts: str) -> bool:
        """Return whether *seal* was made for *parts*."""
        return hmac.compare_digest(seal.encode(), self.seal(*parts).encode())

    def sign_in(self, person: TokenSubject, acr: str = ACR_VALUES[0]) -> SignIn:
        """Record that *person* has just signed in."""
        return SignIn(person=person, auth_time=int(self.now()), acr=acr)

    def family(self) -> TokenFamily:
        """Return a new set of tokens, which ends when the longest refresh token does."""
        return TokenFamily(self.now() + self.settings.refresh_lifetime_s)

    def access_token(self, grant: AccessTokenClaims, family: TokenFamily, form: str = "") -> str:
        """Return a new access token; *form* (`jwt`, `opaque`) overrides the settings."""
        lifetime = self.settings.token_lifetime_s
        claims = grant.claims(now=self.now(), lifetime_s=lifetime)
        record = AccessToken(claims=claims, client_id=grant.client_id, family=family)
        if (form or self.settings.access_token_format) == "opaque":
            token = OPAQUE_PREFIX + secrets.token_urlsafe(32)
        else:
            token = sign(claims, self.keys.current)
        self.access_tokens.put(digest(token), record)
        return token

    def id_token(self, identity: Identity, access_token: str) -> str:
        """Return a new ID token, tied to the access token that comes with it."""
        claims = identity.claims(
            now=self.now(),
            lifetime_s=self.settings.token_lifetime_s,
            at_hash=half_hash(access_token, self.settings.algorithm),
        )
        return sign(claims, self.keys.current, kind="JWT")

    def refresh_token(self, record: RefreshToken) -> str:
        """Return a new refresh token for *record*."""
        token = "dev-rt-" + secrets.token_urlsafe(32)
        self.refresh_tokens.put(digest(token), record)
        return token

    def active(self, record: AccessToken) -> bool:
        """Return whether the token still opens anything."""
        expires_at = record.claims["exp"]
        assert isinstance(expires_at, int)  # noqa: S101 - we wrote it
        return not (record.revoked or record.family.revoked) and self.now() < expires_at

    def found(self, token: str) -> AccessToken | RefreshToken | None:
        """Return the record of *token* of any kind, or None."""
        key = digest(token)
        return self.access_tokens.get(key) or self.refresh_tokens.get(key)

    def register(self, client: RegisteredClient) -> RegisteredClient:
        """Keep a new client, which may ask for what is offered here."""
        client = self._offering(client)
        self.clients.put(client.client_id, client)
        return client

    def _offering(self, client: RegisteredClient) -> RegisteredClient:
        settings = self.settings
        default = " ".join(settings.default_scopes)
        return msgspec.structs.replace(client, offered=settings.scopes, default_scope=default)

    def _static_clients(self) -> list[RegisteredClient]:
        known = [
            RegisteredClient(
                client_id=client.client_id,
                secret=client.secret,
                name=client.name or client.client_id,
                auth_methods=SECRET_METHODS,
                redirect_uris=client.redirect_uris,
                grant_types=frozenset(
                    ({"client_credentials"} if client.tenant else set())
                    | ({"authorization_code"} if client.redirect_uris else set())
                ),
                tenant=client.tenant,
                introspects=client.introspects,
            )
            for client in self.settings.clients
        ]
        cli = RegisteredClient(
            client_id=CLI_CLIENT,
            secret=self.settings.cli_secret,
            name="Gatepost command line",
            auth_methods=SECRET_METHODS,
            grant_types=frozenset({MINT_GRANT}),
            introspects=True,
        )
        return [self._offering(client) for client in (*known, cli) if client.secret]


def digest(token: str) -> str:
    """Return the digest that is stored instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
