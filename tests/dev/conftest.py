"""One imitation in process: an issuer, a client, and a gate with the table that `dev` prints."""

from pathlib import Path
from typing import Any

import httpx2
import msgspec

from gatepost.config.settings import Config
from gatepost.dev.composition import IssuerHabits, dev_config, dev_issuer
from gatepost.dev.imitating import (
    APP_CLIENT,
    MACHINE_CLIENT,
    SECRET_FILES,
    client_id,
    scopes_of,
    sign_in_scopes,
)
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Issuer, Resource
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey, import_set
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier, Verifiers
from gatepost_keys.imitation import IMITATIONS
from gatepost_keys.imitation.facts import api_of
from tests.keys.conftest import RESOURCE, CodeFlow

TOOL_SCOPES = frozenset({"files:read", "files:write"})
CALLBACK = "http://localhost:8123/callback"


class PublishedSet:
    """The issuer's published keys as the gate sees them: fetched anew for every token."""

    version = 1

    def __init__(self, walk: CodeFlow) -> None:
        self.walk = walk
        self.known: tuple[VerificationKey, ...] = ()

    def of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> "PublishedSet":
        lacks = self.walk.issuer.settings.imitation.key_lacks
        published = self.walk.issuer.keys.document(lacks)
        self.known = tuple(import_set(published, allowed=trusted.algorithms))
        return self

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        return tuple(one for one in self.known if one.kid == kid and algorithm in one.algorithms)

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        return self.find(kid, algorithm)

    async def after_bad_signature(self) -> bool:
        return False


class Imitated:
    """One imitation: a client that walks through its flows, and a gate that trusts it."""

    def __init__(self, name: str, state: Path, **habits: Any) -> None:
        self.shape = IMITATIONS[name]
        made = IssuerHabits(imitation=self.shape, **habits)
        config = dev_config(8000, tools=(), state=state, habits=made)
        secrets = {client: f"secret-of-{client}" for client in SECRET_FILES}
        plan = dev_issuer(config, TOOL_SCOPES, made, client_secrets=secrets)
        self.walk = CodeFlow(plan)
        self.walk.client_id = client_id(self.shape, APP_CLIENT)
        self.secrets = secrets
        self.config: Config = msgspec.structs.replace(config, scopes=scopes_of(plan))
        self.api = api_of(self.shape, RESOURCE)

    @property
    def scope(self) -> str:
        """The scopes of a client that needs all there is."""
        wanted = sign_in_scopes(self.shape, self.api)
        return " ".join(["openid", "offline_access", *self.walk.issuer.settings.offered, *wanted])

    async def sign_in(self, user: str = "alice", **changes: str | None) -> httpx2.Response:
        """The answer of the token endpoint to a person's code."""
        ask = {
            "scope": self.scope,
            "redirect_uri": CALLBACK,
            "audience": RESOURCE if self.shape.audience == "audience" else None,
            "access_type": "offline" if self.shape.refresh == "access_type" else None,
            "nonce": "n-1",
        } | changes
        code = await self.walk.code(user, **ask)
        return await self.walk.exchange(code, redirect_uri=CALLBACK, client_secret=self.secret)

    @property
    def secret(self) -> str | None:
        """The secret of the client on a person's computer, if it has one."""
        return None if self.shape.public_clients else self.secrets[APP_CLIENT]

    async def machine(self, **changes: str) -> httpx2.Response:
        """The answer of the token endpoint to a program."""
        resource = self.walk.issuer.settings.resources[0]
        scope = self.shape.machine_scope.format(resource=resource) or self.scope
        known = {"openid", "offline_access"} if not self.shape.machine_scope else set()
        form = {
            "grant_type": "client_credentials",
            "client_id": client_id(self.shape, MACHINE_CLIENT),
            "client_secret": self.secrets[MACHINE_CLIENT],
            "scope": " ".join(name for name in scope.split() if name not in known),
        }
        rule = self.shape.audience
        named = {"audience": {"audience": RESOURCE}, "resource": {"resource": RESOURCE}}.get(rule)
        return await self.walk.token(**(form | (named or {}) | changes))

    async def verify(
        self, token: str, *, table: Issuer | None = None, resource: str = RESOURCE
    ) -> TenantContext:
        """The caller that a gate with the printed table makes of *token*."""
        registry = IssuerRegistry([table or self.config.issuers[0]])
        policy = Policy(
            tenancy=Tenancy(known=frozenset(self.config.tenancy.tenants)),
            implications=Implications(self.config.scopes.implied),
            development=True,
        )
        keys = PublishedSet(self.walk)
        verifier = JwtVerifier(registry, keys, VerdictCache(), policy=policy, clock=self.walk.clock)
        return await Verifiers([verifier]).verify(token, Resource(resource).of_tenant(""))
