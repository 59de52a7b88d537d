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

from gatepost.dev.imitating import API_CLIENT, client_id, members
from gatepost_keys.imitation import IMITATIONS
from tests.keys.conftest import (
    APP_CALLBACK,
    MACHINE,
    RESOURCE,
    RESOURCE_SERVER,
    SECRET,
    Imitated,
    RunningOidcProvider,
    authorization_server,
)
from tests.support import programs
from tests.support.commands import HURRIED, serve
from tests.support.issuers import unb64
from tests.support.measuring import each
from tests.support.processes import Process, free_port

pytestmark = pytest.mark.slow

PUBLIC_CLIENT = "public"
OPAQUE_RESOURCE = f"{RESOURCE}/opaque"
SIGNED_PROVIDERS = [name for name, shape in IMITATIONS.items() if shape.opaque != "always"]


def parts_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims of a signed token."""
    head, claims = (json.loads(unb64(part)) for part in token.split(".")[:2])
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
    """The answer of the REST protocol to a call of `whoami`."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.post(f"{url.removesuffix('/mcp')}/tool/whoami/call", headers=headers, json={})


async def claims_of(name: str, folder: Path, resource: str) -> dict[str, Any]:
    """The header and claims that the imitation gives a person's token for *resource*."""
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


async def test_the_printed_table_fits_tokens_that_another_server_signs(tmp_path: Path) -> None:
    """
    oauth2-mock-server signs the claims of every imitation; a gate with the printed table, and that
    server as its issuer, accepts each at its own table only.
    """
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
            with serve("\n".join([*lines, *members(table), ""]), folder, env=HURRIED) as gatepost:
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


async def test_tokens_have_the_members_that_oidc_provider_gives_them(tmp_path: Path) -> None:
    """The header, the claims, and a program's `sub`; ours add the mark of development."""
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


async def test_introspection_has_the_members_that_oidc_provider_gives_it(tmp_path: Path) -> None:
    """Of a program's token: no `sub` and no `jti`."""
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
    """Status, code and description: a wrong secret, a bad code, an unknown resource or grant."""
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
async def test_oidc_provider_has_its_metadata_where_the_imitation_has_them(
    tmp_path: Path, endpoint_path: str
) -> None:
    """Both addresses, and no member of the imitation's that the real one lacks but ours alone."""
    ours = Imitated("oidc-provider", tmp_path)
    own = (await ours.walk.http.get(f"/dev-as{endpoint_path}")).json()
    with authorization_server({RESOURCE: "jwt"}, scopes=["files:read"], tenants={}) as theirs:
        document = httpx2.get(f"{theirs.issuer}{endpoint_path}").json()
    endpoints = {name for name in own if name.endswith(("_endpoint", "_uri"))}

    assert endpoints <= document.keys()
    for name in endpoints:
        path = str(own[name]).removeprefix(str(own["issuer"]))
        assert str(document[name]) == f"{theirs.issuer}{path}", name
