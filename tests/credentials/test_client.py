"""The client credentials grant against oidc-provider: discovery, cache, renewal and refusals."""

import asyncio
from collections.abc import Iterator

import httpx2
import msgspec
import pytest

from gatepost.config.credentials import CredentialSettings
from gatepost.config.settings import Config
from gatepost.credentials.credential import CredentialUnavailable, OutboundCredential
from gatepost.credentials.keyring_key import key_set
from gatepost.credentials.registry import CredentialRegistry
from gatepost.secrets.keyring import KeyRing
from tests.credentials.conftest import (
    TENANT,
    CredentialsReplica,
    CredentialsReplicas,
    MetadataServer,
)
from tests.keys.conftest import MACHINE, SECRET, RunningOidcProvider, authorization_server

KEYED = "keyed-client"
RING = KeyRing.ephemeral()
METADATA = "/.well-known/oauth-protected-resource/mcp"


@pytest.fixture(scope="module")
def idp(upstream: MetadataServer) -> Iterator[RunningOidcProvider]:
    """oidc-provider, with tokens for the upstream, and a client that signs with the key ring."""
    client = {
        "client_id": KEYED,
        "grant_types": ["client_credentials"],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "private_key_jwt",
        "token_endpoint_auth_signing_alg": "EdDSA",
        "jwks": key_set(RING),
    }
    resource = f"{upstream.origin}/mcp"
    with authorization_server(
        {resource: "opaque"}, scopes=["crm:read"], tenants={}, clients=[client]
    ) as server:
        upstream.documents[METADATA] = {
            "resource": resource,
            "authorization_servers": [server.issuer],
        }
        yield server


def table(**settings: object) -> CredentialSettings:
    """A table of a client with a secret, which the tenant has stored."""
    usual: dict[str, object] = {
        "type": "client",
        "tenants": (TENANT,),
        "client_id": MACHINE,
        "client_secret": "secret:CLIENT_SECRET",
        "scopes": ("crm:read",),
    }
    return msgspec.convert(usual | settings, CredentialSettings)


async def credential_of(
    replica: CredentialsReplica, upstream: MetadataServer, tenant: str = TENANT, **settings: object
) -> OutboundCredential:
    """The credential `crm` of one process, for the upstream."""
    await replica.services.secrets.put(tenant, "CLIENT_SECRET", SECRET)
    registry = CredentialRegistry(replica.services)
    registry.apply(
        Config(resource="https://mcp.example.com/mcp", credentials={"crm": table(**settings)})
    )
    return registry.named(tenant, "crm", f"{upstream.origin}/mcp")


async def works(idp: RunningOidcProvider, token: str) -> bool:
    """Whether the authorization server knows the token as active."""
    async with httpx2.AsyncClient() as client:
        answer = await client.post(
            f"{idp.issuer}/token/introspection",
            data={"token": token.removeprefix("Bearer ")},
            auth=(MACHINE, SECRET),
        )
    return bool(answer.json()["active"])


async def test_a_token_is_found_by_the_metadata_of_the_upstream(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """RFC 9728, then RFC 8414, then the grant; and the token is in the redaction set."""
    replica = replicas.one(upstream.origin, idp.issuer)
    credential = await credential_of(replica, upstream)
    signed = await credential.headers()
    token = signed.headers["authorization"].removeprefix("Bearer ")

    assert await works(idp, token)
    assert token in replica.services.secrets.known(TENANT).values.values()
    assert token not in repr(signed)
    assert await credential.headers() == signed


async def test_a_key_of_the_key_ring_signs_in(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """By `private_key_jwt`, with the public key that `gatepost upstream jwks` prints."""
    replicas.keyring = RING
    replica = replicas.one(upstream.origin, idp.issuer)
    credential = await credential_of(
        replica, upstream, client_id=KEYED, method="private_key_jwt", client_secret=""
    )

    assert await works(idp, (await credential.headers()).headers["authorization"])


async def test_one_replica_gets_the_token_and_the_others_use_it(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """Also when all of them need it at the same moment."""
    found = [
        await credential_of(replicas.one(upstream.origin, idp.issuer), upstream) for _ in range(4)
    ]
    signed = await asyncio.gather(*(one.headers() for one in found for _ in range(3)))

    assert len({one.version for one in signed}) == 1
    assert len({one.headers["authorization"] for one in signed}) == 1


async def test_a_refused_token_is_renewed_once(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """After a 401 there is a new one, and a second 401 soon after changes nothing."""
    credential = await credential_of(replicas.one(upstream.origin, idp.issuer), upstream)
    first = await credential.headers()

    assert await credential.refused(first)
    second = await credential.headers()
    assert second.version != first.version
    assert second.headers != first.headers
    assert await credential.refused(first)
    assert not await credential.refused(second)
    assert await credential.headers() == second


async def test_tokens_of_two_tenants_never_meet(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """The same table, upstream and client, and yet a token each."""
    replica = replicas.one(upstream.origin, idp.issuer)
    tenants = ("*",)
    acme = await credential_of(replica, upstream, tenants=tenants)
    globex = await credential_of(replica, upstream, "globex", tenants=tenants)
    first, second = await acme.headers(), await globex.headers()

    assert first.headers != second.headers
    assert (
        first.headers["authorization"][7:]
        not in replica.services.secrets.known("globex").values.values()
    )


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "wrong secret": ({"client_secret": "secret:OTHER"}, "There is no secret OTHER"),
    "unknown client": ({"client_id": "unknown"}, "(401, invalid_client)"),
    "another resource": ({"resource": "https://other.example.com"}, "(400, invalid_target)"),
    "another tenant": ({"tenants": ("globex",)}, "may not use"),
    "an issuer without metadata": ({"issuer": "UPSTREAM"}, "publishes no metadata"),
    "a host that is not allowed": ({"issuer": "http://127.0.0.1:65001"}, "127.0.0.1"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_credential_that_cannot_be_had_says_why(
    replicas: CredentialsReplicas,
    upstream: MetadataServer,
    idp: RunningOidcProvider,
    name: str,
) -> None:
    """In a sentence without the secret."""
    settings, reason = REFUSED[name]
    if settings.get("issuer") == "UPSTREAM":
        settings = {"issuer": upstream.origin}
    replica = replicas.one(upstream.origin, idp.issuer)
    credential = await credential_of(replica, upstream, **settings)
    with pytest.raises(CredentialUnavailable) as failure:
        await credential.headers()

    assert reason in str(failure.value)
    assert SECRET not in str(failure.value)


async def test_metadata_about_another_resource_are_not_believed(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """An upstream cannot have a token for another server (RFC 9728 section 3.3)."""
    right = upstream.documents[METADATA]
    upstream.documents[METADATA] = right | {"resource": "https://neighbour.example.com/mcp"}
    try:
        credential = await credential_of(replicas.one(upstream.origin, idp.issuer), upstream)
        with pytest.raises(CredentialUnavailable, match="another resource"):
            await credential.headers()
    finally:
        upstream.documents[METADATA] = right


async def test_a_configured_issuer_is_the_only_one_that_gets_the_secret(
    replicas: CredentialsReplicas, upstream: MetadataServer, idp: RunningOidcProvider
) -> None:
    """The metadata of the upstream are not even read."""
    credential = await credential_of(
        replicas.one(upstream.origin, idp.issuer), upstream, issuer=idp.issuer
    )
    before = len(upstream.asked)
    signed = await credential.headers()

    assert await works(idp, signed.headers["authorization"])
    assert len(upstream.asked) == before
