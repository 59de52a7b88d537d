"""A third-party FastAPI app behind the gate alone, against a real issuer on this machine."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from examples.fastapi_app import create_app
from gatepost_authz import Issuer, Resource, TenantRule
from tests.support.issuers import Idp, TokenFactory, jwk, rsa_key

RESOURCE = "http://127.0.0.1:9000/invoices"
WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture
def forge(idp: Idp) -> TokenFactory:
    return TokenFactory(idp.issuer("main", [jwk(rsa_key())]), RESOURCE)


@pytest.fixture
async def client(forge: TokenFactory) -> AsyncIterator[httpx2.AsyncClient]:
    issuer = Issuer(
        issuer=forge.issuer, tenant=TenantRule(claim="org_id"), tenants={"acme": "acme"}
    )
    app = create_app(Resource(RESOURCE), issuer, development=True)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:9000"
        ) as client,
    ):
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_for_the_resource_reaches_the_route(
    client: httpx2.AsyncClient, forge: TokenFactory
) -> None:
    """The route reads the caller from the gate."""
    token = forge.token(scope="invoices:read")

    answer = await client.get("/invoices/", headers=bearer(token))

    assert answer.status_code == 200
    assert answer.json() == {"tenant": "acme", "subject": "alice", "invoices": []}


@pytest.mark.requirement("A6")
@pytest.mark.parametrize("name", ["x-account", "X-ACCOUNT", "x_account", "X_Account"])
async def test_a_route_can_trust_the_identity_headers_of_the_gate(
    client: httpx2.AsyncClient, forge: TokenFactory, name: str
) -> None:
    """The gate removes such headers from the request, in any notation, and writes its own."""
    token = forge.token(scope="invoices:read")
    sent = [("Authorization", f"Bearer {token}"), (name, "globex"), (name, "initech")]

    answer = await client.get("/invoices/archive", headers=sent)

    assert answer.json() == {"account": "acme", "invoices": []}


@pytest.mark.requirement("A3", "A5")
async def test_the_route_gets_no_refused_request(
    client: httpx2.AsyncClient, forge: TokenFactory
) -> None:
    """The tokens are missing, for another resource, of an unknown tenant or short of a scope."""
    refused = {
        (await client.get("/invoices/", headers=headers)).status_code
        for headers in (
            {},
            bearer(forge.token(scope="invoices:read", aud="https://neighbour.example")),
            bearer(forge.token(scope="invoices:read", org_id="stranger")),
        )
    }
    short = await client.get("/invoices/", headers=bearer(forge.token(scope="other")))

    assert refused == {401}
    assert short.status_code == 403
    assert short.headers["www-authenticate"] == (
        f'Bearer resource_metadata="{RESOURCE}{WELL_KNOWN}", error="insufficient_scope", '
        'scope="invoices:read", error_description="More permissions are required"'
    )


@pytest.mark.requirement("A4")
async def test_a_client_finds_the_issuer_from_the_challenge(
    client: httpx2.AsyncClient, forge: TokenFactory
) -> None:
    """Both metadata locations answer without a token."""
    documents = [
        await client.get(path) for path in (f"/invoices{WELL_KNOWN}", f"{WELL_KNOWN}/invoices")
    ]

    assert [document.status_code for document in documents] == [200, 200]
    assert documents[0].content == documents[1].content
    assert documents[0].json()["authorization_servers"] == [forge.issuer]
    assert documents[0].json()["resource"] == RESOURCE
