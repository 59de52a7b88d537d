"""The imitations beside servers that are not ours: the same tables, the same shapes."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gatepost.config.settings import Config
from gatepost.dev.composition import IssuerOptions, dev_config, dev_issuer
from gatepost.dev.imitating import (
    API_CLIENT,
    APP_CLIENT,
    MACHINE_CLIENT,
    SECRET_FILES,
    client_id,
    members,
    scopes_of,
    sign_in_scopes,
)
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Issuer
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey, import_set
from gatepost_authz.protected_resource import Resource
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier, Verifiers
from gatepost_keys.imitation import IMITATIONS
from gatepost_keys.imitation.facts import api_of
from tests.support import programs
from tests.support.commands import FAST_LIMITS, serve
from tests.support.issuers import base64url_decoded
from tests.support.measuring import each
from tests.support.processes import Process, free_port
from tests.support.sign_in import (
    MACHINE,
    RESOURCE,
    RESOURCE_SERVER,
    SECRET,
    CodeFlow,
    RunningOidcProvider,
    authorization_server,
)

TOOL_SCOPES = frozenset({"files:read", "files:write"})


APP_CALLBACK = "http://localhost:8123/callback"


class PublishedSet:
    """The issuer's published keys as the gate sees them: fetched anew for every token."""

    version = 1

    def __init__(self, walk: CodeFlow) -> None:
        self.walk = walk
        self.known: tuple[VerificationKey, ...] = ()

    def keys_of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> "PublishedSet":
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

    def __init__(self, name: str, state: Path, **options: Any) -> None:
        self.shape = IMITATIONS[name]
        made = IssuerOptions(imitation=self.shape, **options)
        config = dev_config(8000, tools=(), state=state, issuer_options=made)
        secrets = {client: f"secret-of-{client}" for client in SECRET_FILES}
        plan = dev_issuer(config, TOOL_SCOPES, made, client_secrets=secrets)
        self.walk = CodeFlow(plan)
        self.walk.client_id = client_id(self.shape, APP_CLIENT)
        self.secrets = secrets
        self.config: Config = msgspec.structs.replace(config, scopes=scopes_of(plan))
        self.api = api_of(self.shape, RESOURCE)

    @property
    def scope(self) -> str:
        """Return the scopes of a client that needs all scopes."""
        wanted = sign_in_scopes(self.shape, self.api)
        return " ".join(["openid", "offline_access", *self.walk.issuer.settings.offered, *wanted])

    async def sign_in(self, user: str = "alice", **changes: str | None) -> httpx2.Response:
        """Return the token endpoint's answer to a person's code."""
        ask = {
            "scope": self.scope,
            "redirect_uri": APP_CALLBACK,
            "audience": RESOURCE if self.shape.audience == "audience" else None,
            "access_type": "offline" if self.shape.refresh == "access_type" else None,
            "nonce": "n-1",
        } | changes
        code = await self.walk.code(user, **ask)
        return await self.walk.exchange(code, redirect_uri=APP_CALLBACK, client_secret=self.secret)

    @property
    def secret(self) -> str | None:
        """Return the secret of the client on a person's computer, if it has one."""
        return None if self.shape.public_clients else self.secrets[APP_CLIENT]

    async def machine(self, **changes: str) -> httpx2.Response:
        """Return the token endpoint's answer to a program."""
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
        """Return the caller that a gate with the printed table reads from *token*."""
        registry = IssuerRegistry([table or self.config.issuers[0]])
        policy = Policy(
            tenancy=Tenancy(known_tenants=frozenset(self.config.tenancy.tenants)),
            implications=Implications(self.config.scopes.implied),
            development=True,
        )
        keys = PublishedSet(self.walk)
        verifier = JwtVerifier(registry, keys, VerdictCache(), policy=policy, clock=self.walk.clock)
        return await Verifiers([verifier]).verify(token, Resource(resource).of_tenant(""))


pytestmark = pytest.mark.slow

PUBLIC_CLIENT = "public"
OPAQUE_RESOURCE = f"{RESOURCE}/opaque"
SIGNED_PROVIDERS = [name for name, shape in IMITATIONS.items() if shape.opaque != "always"]


def parts_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims of a signed token."""
    head, claims = (json.loads(base64url_decoded(part)) for part in token.split(".")[:2])
    return head, claims


@contextmanager
def mock_issuers(wanted: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Run an oauth2-mock-server for each of *wanted*; yields their issuers by name."""
    script = programs.command("mock_issuers.mjs", json.dumps(wanted))
    process = Process(script, env=programs.environment())
    try:
        yield json.loads(process.next_line())
    finally:
        process.kill()


def call(url: str, token: str) -> httpx2.Response:
    """Return the REST protocol's answer to a call of `whoami`."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.post(f"{url.removesuffix('/mcp')}/tool/whoami/call", headers=headers, json={})


async def claims_of(name: str, folder: Path, resource: str) -> dict[str, Any]:
    """Return the header and claims that the imitation gives a person's token for *resource*."""
    provider = Imitated(name, folder)
    head, claims = parts_of((await provider.sign_in()).json()["access_token"])
    # What marks it as ours: the claim, and the id of the key.
    written = json.loads(json.dumps(claims).replace(RESOURCE, resource))
    times = {key: value for key, value in written.items() if key in {"iat", "nbf", "exp"}}
    assert times["exp"] - times.get("iat", times["exp"] - 600) == 600
    return {
        "header": {"typ": head.get("typ")},
        "claims": {key: value for key, value in written.items() if key != "dev"},
        "algorithm": head["alg"],
    }


async def test_the_printed_table_accepts_tokens_of_oauth2_mock_server(tmp_path: Path) -> None:
    """That server signs the claims of every imitation, each accepted by its own table."""
    port = free_port()
    resource = f"http://127.0.0.1:{port}/mcp"
    payloads = {}
    for name in SIGNED_PROVIDERS:
        payload = await claims_of(name, tmp_path / name, resource)
        payloads[name] = payload
    with mock_issuers(in_time(payloads)) as issuers:
        for name, issuer in issuers.items():
            printed = Imitated(name, tmp_path / name).config.issuers[0]
            table = msgspec.structs.replace(printed, issuer=issuer, dashboard=None)
            audiences = tuple(text.replace(RESOURCE, resource) for text in table.audiences)
            table = msgspec.structs.replace(table, audiences=audiences)
            lines = [f'resource = "{resource}"', 'mode = "development"']
            lines += ["[listen]", f"port = {port}", "[tools]", 'packs = ["demo"]', "[[issuers]]"]
            folder = tmp_path / f"{name}-gate"
            folder.mkdir()
            form = {"grant_type": "client_credentials", "scope": "x"}
            signed = httpx2.post(f"{issuer}/token", data=form).json()["access_token"]
            with serve(
                "\n".join([*lines, *members(table), ""]), folder, env=FAST_LIMITS
            ) as gatepost:
                answer = call(gatepost.url, signed)
                assert answer.status_code == 200, (name, answer.text, gatepost.output)
                assert "acme" in answer.text
            assert parts_of(signed)[0].get("typ") == payloads[name]["header"]["typ"], name


def in_time(payloads: dict[str, Any]) -> dict[str, Any]:
    """Move the tokens' times, which the clock of the imitation wrote, to the present."""

    now = int(time.time())
    for payload in payloads.values():
        claims = payload["claims"]
        start = claims.get("iat", claims["exp"] - 600)
        for key in {"iat", "nbf", "exp", "auth_time"} & claims.keys():
            claims[key] += now - start
    return payloads


@contextmanager
def oidc_provider() -> Iterator[RunningOidcProvider]:
    """Run the real one, from npm: JWTs for RESOURCE, opaque tokens for OPAQUE_RESOURCE."""
    with authorization_server(
        {RESOURCE: "jwt", OPAQUE_RESOURCE: "opaque"},
        scopes=["files:read", "files:write"],
        tenants={MACHINE: "acme"},
        clients=[
            {
                "client_id": PUBLIC_CLIENT,
                "redirect_uris": [APP_CALLBACK],
                "token_endpoint_auth_method": "none",
            }
        ],
    ) as running:
        yield running


async def test_tokens_have_the_members_of_oidc_provider(tmp_path: Path) -> None:
    """Header, claims and a machine's `sub` match; ours add the development mark."""
    ours = Imitated("oidc-provider", tmp_path)
    with oidc_provider() as theirs:
        head, claims = parts_of(theirs.machine_token(RESOURCE, ["files:read"]))
    own_head, own_claims = parts_of((await ours.machine()).json()["access_token"])

    assert head.keys() == own_head.keys()
    assert head["typ"] == own_head["typ"]
    assert own_claims.keys() - claims.keys() == {"dev"}
    assert claims.keys() <= own_claims.keys()
    assert claims["sub"] == claims["client_id"]
    assert own_claims["sub"] == own_claims["client_id"]


async def test_introspection_responses_have_the_members_of_oidc_provider(tmp_path: Path) -> None:
    """The response about a machine's token has no `sub` and no `jti`."""
    ours = Imitated("oidc-provider", tmp_path, opaque=True)
    with oidc_provider() as theirs:
        answer = httpx2.post(
            f"{theirs.issuer}/token/introspection",
            data={"token": theirs.machine_token(OPAQUE_RESOURCE, ["files:read"])},
            auth=(RESOURCE_SERVER, SECRET),
        ).json()
    own_told = await ours.walk.http.post(
        ours.walk.path("introspection"),
        data={"token": (await ours.machine()).json()["access_token"]},
        auth=(client_id(ours.shape, API_CLIENT), ours.secrets[API_CLIENT]),
    )

    assert own_told.json().keys() - answer.keys() == {"dev"}
    assert answer.keys() <= own_told.json().keys()
    assert answer["token_type"] == own_told.json()["token_type"]


async def test_errors_are_those_of_oidc_provider(tmp_path: Path) -> None:
    """The cases are a wrong secret, a bad code, and an unknown resource or grant."""
    ours = Imitated("oidc-provider", tmp_path)
    machine = {"grant_type": "client_credentials"}
    stray = machine | {"resource": "https://other.example"}
    code = {"grant_type": "authorization_code", "code": "none", "redirect_uri": APP_CALLBACK}
    own = [
        await ours.machine(client_secret="wrong"),
        await ours.machine(resource=stray["resource"]),
        await ours.walk.exchange("none"),
        await ours.machine(grant_type="made:up"),
    ]
    with oidc_provider() as theirs:
        url, right = f"{theirs.issuer}/token", (MACHINE, SECRET)
        errors = [
            httpx2.post(url, data=machine, auth=(MACHINE, "wrong")),
            httpx2.post(url, data=stray, auth=right),
            httpx2.post(url, data=code | {"client_id": PUBLIC_CLIENT, "code_verifier": "v" * 43}),
            httpx2.post(url, data={"grant_type": "made:up"}, auth=right),
        ]

    assert [(response.status_code, response.json()) for response in own] == [
        (error.status_code, error.json()) for error in errors
    ]


@each(
    "endpoint_path",
    ["/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"],
)
async def test_the_metadata_locations_and_members_match_oidc_provider(
    tmp_path: Path, endpoint_path: str
) -> None:
    """Only members of the development issuer itself are additional."""
    ours = Imitated("oidc-provider", tmp_path)
    own = (await ours.walk.http.get(f"/dev-as{endpoint_path}")).json()
    with authorization_server({RESOURCE: "jwt"}, scopes=["files:read"], tenants={}) as theirs:
        document = httpx2.get(f"{theirs.issuer}{endpoint_path}").json()
    endpoints = {name for name in own if name.endswith(("_endpoint", "_uri"))}

    assert endpoints <= document.keys()
    for name in endpoints:
        path = str(own[name]).removeprefix(str(own["issuer"]))
        assert str(document[name]) == f"{theirs.issuer}{path}", name
