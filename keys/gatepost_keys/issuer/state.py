"""Hold the state of one development issuer, its keys and records, in memory only."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping

import msgspec

from gatepost_keys.imitation.facts import filled
from gatepost_keys.issuer.authlib_records import (
    AccessToken,
    IssuedCode,
    RefreshToken,
    RegisteredClient,
    SignIn,
    TokenFamily,
)
from gatepost_keys.issuer.bounded import BoundedDict
from gatepost_keys.issuer.settings import ACR_VALUES, IssuerSettings, StaticClient
from gatepost_keys.issuer.signing import SigningKeys
from gatepost_keys.mint import AccessTokenClaims, Identity, half_hash, sign
from gatepost_keys.subject import TokenSubject

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
        shape = settings.imitation
        with_next = shape.next_key or shape.identity_key == "other"
        self.keys = SigningKeys(settings.algorithm, with_next=with_next)
        self.clients: BoundedDict[RegisteredClient] = BoundedDict(1_000)
        self.codes: BoundedDict[IssuedCode] = BoundedDict(1_000)
        self.refresh_tokens: BoundedDict[RefreshToken] = BoundedDict(10_000)
        self.access_tokens: BoundedDict[AccessToken] = BoundedDict(10_000)
        self.sessions: BoundedDict[SignIn] = BoundedDict(1_000)
        self._secret = secrets.token_bytes(32)
        # Beside the registered clients: clients that register by the thousand displace each other,
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

    def rotate_when_due(self) -> None:
        """Rotate the keys if the settings say that they have signed long enough."""
        self.keys.rotate_when_due(self.now(), self.settings.rotate_keys_every_s)

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
        self.rotate_when_due()
        lifetime, shape = self.settings.token_lifetime_s, self.settings.imitation
        facts = grant.facts(now=self.now(), lifetime_s=lifetime)
        claims = grant.claims_of(facts)
        record = AccessToken(
            claims=claims,
            described=self._described(facts, claims),
            expires_at=int(self.now()) + lifetime,
            client_id=grant.client_id,
            family=family,
        )
        unbound = shape.unbound_opaque and not grant.resource
        if unbound or (form or self.settings.access_token_format) == "opaque":
            token = shape.opaque_prefix + OPAQUE_PREFIX + secrets.token_urlsafe(32)
        else:
            token = sign(claims, self.keys.current, kind=shape.access_type)
        self.access_tokens.put(digest(token), record)
        return token

    def id_token(self, identity: Identity, access_token: str) -> str:
        """Return a new ID token, tied to the access token that comes with it."""
        claims = identity.claims(
            now=self.now(),
            lifetime_s=self.settings.token_lifetime_s,
            at_hash=half_hash(access_token, self.settings.algorithm),
        )
        uses_other_key = self.settings.imitation.identity_key == "other"
        key = self.keys.newest if uses_other_key else self.keys.current
        return sign(claims, key, kind=self.settings.imitation.identity_type)

    def refresh_token(self, record: RefreshToken) -> str:
        """Return a new refresh token for *record*."""
        token = "dev-rt-" + secrets.token_urlsafe(32)
        self.refresh_tokens.put(digest(token), record)
        return token

    def active(self, record: AccessToken) -> bool:
        """Return whether the token still opens anything."""
        return not (record.revoked or record.family.revoked) and self.now() < record.expires_at

    def token_record(self, token: str) -> AccessToken | RefreshToken | None:
        """Return the record of *token* of any kind, or None."""
        key = digest(token)
        return self.access_tokens.get(key) or self.refresh_tokens.get(key)

    def register(self, client: RegisteredClient) -> RegisteredClient:
        """Register a new client, which may request everything that is offered here."""
        client = self._offering(client)
        self.clients.put(client.client_id, client)
        return client

    def _offering(self, client: RegisteredClient) -> RegisteredClient:
        settings = self.settings
        default = " ".join(settings.default_scopes)
        return msgspec.structs.replace(
            client,
            offered=settings.offered,
            offered_prefixes=settings.scope_prefixes,
            default_scope=default,
            unknown_scopes=settings.imitation.unknown_scopes,
        )

    def _grants_of(self, client: StaticClient) -> frozenset[str]:
        """Return the grants that suit a client of the settings."""
        machine = client.tenant and self.settings.imitation.machine
        signs_in = {"authorization_code"} if client.redirect_uris else set()
        refreshes = {"refresh_token"} if client.refreshes else set()
        return frozenset(({"client_credentials"} if machine else set()) | signs_in | refreshes)

    def _described(
        self, facts: dict[str, object], claims: dict[str, object]
    ) -> Mapping[str, object]:
        """Return what introspection says of an active token, marked as one for development."""
        template = self.settings.imitation.introspection
        if not template:
            return {"active": True, "token_type": "Bearer", **claims}
        person_sub = None if facts["machine"] else claims.get("sub")
        values = {**claims, **facts, "sub": claims.get("sub"), "person_sub": person_sub}
        return filled(template, values) | {"dev": True}

    def _static_clients(self) -> list[RegisteredClient]:
        clients = [
            RegisteredClient(
                client_id=client.client_id,
                secret=client.secret,
                name=client.name or client.client_id,
                auth_methods=frozenset({"none"}) if client.public else SECRET_METHODS,
                redirect_uris=client.redirect_uris,
                grant_types=self._grants_of(client),
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
        return [self._offering(client) for client in (*clients, cli) if usable(client)]


def usable(client: RegisteredClient) -> bool:
    """Return whether the client can prove itself: by its secret, or as a public one by PKCE."""
    return bool(client.secret) or "none" in client.auth_methods


def digest(token: str) -> str:
    """Return the digest that is stored instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
