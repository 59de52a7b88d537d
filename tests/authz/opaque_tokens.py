"""A verifier of opaque tokens before a real introspection endpoint."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import pytest

from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Introspection, Issuer, Target, TenantRule
from gatepost_authz.discovery import Discovery
from gatepost_authz.errors import AuthError, InvalidToken
from gatepost_authz.fetch import Fetcher
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy
from tests.support.issuers import Idp, Receive, Scope, Send, respond

RESOURCE = "https://mcp.example.com/mcp"
TARGET = Target(RESOURCE, f"{RESOURCE}/.well-known/oauth-protected-resource")
NOW = 1_900_000_000
SECRET = "p%ss:w0rd+é"
OPAQUE = "opaque"


class IntrospectionEndpoint:
    """An introspection endpoint: what it says about every token, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Mapping[str, Any] | None = None
        self.status = 200
        self.open = asyncio.Event()
        self.open.set()
        self.loop = asyncio.get_running_loop()

    def good(self, **changes: Any) -> dict[str, Any]:
        claims = {
            "active": True,
            "token_type": "Bearer",
            "aud": RESOURCE,
            "sub": "alice",
            "client_id": "client-1",
            "org_id": "acme",
            "scope": "files:write",
            "iat": NOW - 10,
            "exp": NOW + 300,
        } | changes
        return {name: value for name, value in claims.items() if value is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        self.asked.append({name: value[0] for name, value in parse_qs(body.decode()).items()})
        self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        waiting = asyncio.run_coroutine_threadsafe(self.open.wait(), self.loop)
        await asyncio.wrap_future(waiting)
        shown = self.good() if self.answer is None else self.answer
        await respond(send, self.status, json.dumps(shown).encode())


class OpaqueTokenGate:
    """A verifier before issuers whose tokens are opaque."""

    def __init__(self, idp: Idp) -> None:
        self.idp = idp
        self.now = float(NOW)
        self.endpoint = IntrospectionEndpoint()
        self.fetcher = Fetcher(development=True)
        self.introspectors = Introspectors(
            self.fetcher,
            Discovery(self.fetcher),
            secret_of={"env:S": SECRET}.__getitem__,
            monotonic=lambda: self.now,
        )
        self.verifier = IntrospectionVerifier(
            IssuerRegistry([self.issuer("id")]),
            self.introspectors,
            policy=Policy(
                tenancy=Tenancy(),
                implications=Implications({"files:write": ["files:read"]}),
                development=True,
            ),
            clock=lambda: self.now,
        )

    def issuer(self, name: str, **changes: Any) -> Issuer:
        """An issuer whose endpoint is this endpoint, unless *changes* say otherwise."""
        self.idp.issuer(name, [])
        self.idp.replace(f"/{name}/introspect", self.endpoint)
        usual: dict[str, Any] = {
            "tenant": TenantRule(claim="org_id"),
            "tenants": {"acme": "acme", "globex": "globex"},
            "introspection": Introspection(
                client_id="gate post",
                client_secret="env:S",
                endpoint=f"{self.idp.base}/{name}/introspect",
            ),
        }
        return Issuer(issuer=self.idp.issuer(name), **usual | changes)

    def trust(self, *issuers: Issuer) -> None:
        """Reload with these issuers."""
        self.verifier.registry = IssuerRegistry(issuers)

    async def verify(self, token: str = OPAQUE, target: Target = TARGET) -> TenantContext | None:
        return await asyncio.wait_for(self.verifier.verify(token, target), 10)

    async def refused(
        self, kind: type[AuthError] = InvalidToken, token: str = OPAQUE, target: Target = TARGET
    ) -> str:
        with pytest.raises(kind) as refusal:
            await self.verify(token, target)
        return refusal.value.reason


def tenant_target(tenant: str) -> Target:
    return Target(RESOURCE, TARGET.metadata_url, tenant)
