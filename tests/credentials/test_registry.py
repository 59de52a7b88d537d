"""What a registry's credentials send: tokens by client credentials, API keys and headers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest

from gatepost.config.credentials import CredentialSettings
from gatepost.config.settings import Config
from gatepost.credentials.credential import CredentialUnavailable, OutboundCredential
from gatepost.credentials.keyring_key import key_set
from gatepost.credentials.tenant_credentials import CredentialRegistry
from gatepost.credentials.token_client import CredentialServices
from gatepost.outbound.http_client import OutboundClient
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretStore
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.issuers import Idp, answer
from tests.support.sign_in import MACHINE, SECRET, RunningOidcProvider, authorization_server

TENANT = "acme"


class CredentialsReplicas:
    """Processes over the same records and keys."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.records, self.keyring = MemoryRecords(), KeyRing.ephemeral()
        self.shared_store = MemorySharedStore()
        self._stack = stack

    def one(self, *hosts: str) -> CredentialServices:
        """Return the credential services of another process, which may reach these hosts."""
        network = Network(allow_hosts=tuple(urlsplit(host).netloc for host in hosts))
        fetcher = Fetcher(development=True, network=network)
        outbound = OutboundClient(network, tls=fetcher.tls)
        for opened in (fetcher, outbound):
            self._stack.push_async_callback(opened.aclose)
        return CredentialServices(
            records=self.records,
            shared_store=self.shared_store,
            secrets=SecretCache(SecretStore(self.records, self.keyring)),
            keyring=self.keyring,
            outbound=outbound,
        )


@pytest.fixture
async def replicas() -> AsyncIterator[CredentialsReplicas]:
    async with AsyncExitStack() as stack:
        yield CredentialsReplicas(stack)


KEYED_CLIENT = "keyed-client"
RING = KeyRing.ephemeral()
METADATA = "/.well-known/oauth-protected-resource/mcp"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Idp]:
    """Serve the resource that the credentials are for; it has only its metadata."""
    with Idp() as server:
        yield server


@pytest.fixture(scope="module")
def idp(upstream: Idp) -> Iterator[RunningOidcProvider]:
    """Serve oidc-provider with tokens for the upstream and a client that signs with the ring."""
    client = {
        "client_id": KEYED_CLIENT,
        "grant_types": ["client_credentials"],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "private_key_jwt",
        "token_endpoint_auth_signing_alg": "EdDSA",
        "jwks": key_set(RING),
    }
    resource = f"{upstream.base}/mcp"
    with authorization_server(
        {resource: "opaque"}, scopes=["crm:read"], tenants={}, clients=[client]
    ) as server:
        publish_metadata(upstream, server, resource)
        yield server


def publish_metadata(upstream: Idp, idp: RunningOidcProvider, resource: str) -> None:
    """Let the upstream's metadata (RFC 9728) name that resource and the provider."""
    described = {"resource": resource, "authorization_servers": [idp.issuer]}
    upstream.replace(METADATA, answer(body=json.dumps(described).encode()))


def table(**settings: object) -> CredentialSettings:
    """Return the table of a client with a secret, which the tenant has stored."""
    usual: dict[str, object] = {
        "type": "client",
        "tenants": (TENANT,),
        "client_id": MACHINE,
        "client_secret": "secret:CLIENT_SECRET",
        "scopes": ("crm:read",),
    }
    return msgspec.convert(usual | settings, CredentialSettings)


async def credential_of(
    replica: CredentialServices, upstream: Idp, tenant: str = TENANT, **settings: object
) -> OutboundCredential:
    """Return the credential `crm` of one process, for the upstream."""
    await replica.secrets.put(tenant, "CLIENT_SECRET", SECRET)
    registry = CredentialRegistry(replica)
    registry.apply(
        Config(resource="https://mcp.example.com/mcp", credentials={"crm": table(**settings)})
    )
    return registry.named(tenant, "crm", f"{upstream.base}/mcp")


async def is_active(idp: RunningOidcProvider, token: str) -> bool:
    """Return whether the authorization server knows the token as active."""
    async with httpx2.AsyncClient() as client:
        answer = await client.post(
            f"{idp.issuer}/token/introspection",
            data={"token": token.removeprefix("Bearer ")},
            auth=(MACHINE, SECRET),
        )
    return bool(answer.json()["active"])


async def test_a_token_is_obtained_by_the_metadata_of_the_upstream(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """The steps are RFC 9728, RFC 8414 and the grant; the token is added to the redaction."""
    replica = replicas.one(upstream.base, idp.issuer)
    credential = await credential_of(replica, upstream)
    signed = await credential.headers()
    token = signed.headers["authorization"].removeprefix("Bearer ")

    assert await is_active(idp, token)
    assert token in replica.secrets.known_secrets(TENANT).values.values()
    assert token not in repr(signed)
    assert await credential.headers() == signed


async def test_a_key_of_the_key_ring_authenticates_by_private_key_jwt(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """`gatepost upstream jwks` prints the public key."""
    replicas.keyring = RING
    replica = replicas.one(upstream.base, idp.issuer)
    credential = await credential_of(
        replica, upstream, client_id=KEYED_CLIENT, method="private_key_jwt", client_secret=""
    )

    assert await is_active(idp, (await credential.headers()).headers["authorization"])


async def test_one_replica_gets_the_token_and_the_others_use_it(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """This also holds if all replicas need the token at the same moment."""
    credentials = [
        await credential_of(replicas.one(upstream.base, idp.issuer), upstream) for _ in range(4)
    ]
    signed = await asyncio.gather(
        *(credential.headers() for credential in credentials for _ in range(3))
    )

    assert len({request.version for request in signed}) == 1
    assert len({request.headers["authorization"] for request in signed}) == 1


async def test_a_refused_token_is_renewed_once(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """After a 401 a new token is fetched; a second 401 soon after causes no request."""
    credential = await credential_of(replicas.one(upstream.base, idp.issuer), upstream)
    first = await credential.headers()

    assert await credential.refused(first)
    second = await credential.headers()
    assert second.version != first.version
    assert second.headers != first.headers
    assert await credential.refused(first)
    assert not await credential.refused(second)
    assert await credential.headers() == second


async def test_each_tenant_gets_its_own_token(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """The tenants share the table, the upstream and the client."""
    replica = replicas.one(upstream.base, idp.issuer)
    tenants = ("*",)
    acme = await credential_of(replica, upstream, tenants=tenants)
    globex = await credential_of(replica, upstream, "globex", tenants=tenants)
    first, second = await acme.headers(), await globex.headers()

    assert first.headers != second.headers
    assert (
        first.headers["authorization"][7:]
        not in replica.secrets.known_secrets("globex").values.values()
    )


REFUSED_SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "wrong secret": ({"client_secret": "secret:OTHER"}, "There is no secret OTHER"),
    "unknown client": ({"client_id": "unknown"}, "(401, invalid_client)"),
    "another resource": ({"resource": "https://other.example.com"}, "(400, invalid_target)"),
    "another tenant": ({"tenants": ("globex",)}, "may not use"),
    "an issuer without metadata": ({"issuer": "UPSTREAM"}, "publishes no metadata"),
    "a host that is not allowed": ({"issuer": "http://127.0.0.1:65001"}, "127.0.0.1"),
}


@pytest.mark.parametrize("name", REFUSED_SETTINGS)
async def test_an_unavailable_credential_has_a_reason_without_the_secret(
    replicas: CredentialsReplicas,
    upstream: Idp,
    idp: RunningOidcProvider,
    name: str,
) -> None:
    """The reason is a sentence for the operator."""
    settings, reason = REFUSED_SETTINGS[name]
    if settings.get("issuer") == "UPSTREAM":
        settings = {"issuer": upstream.base}
    replica = replicas.one(upstream.base, idp.issuer)
    credential = await credential_of(replica, upstream, **settings)
    with pytest.raises(CredentialUnavailable) as failure:
        await credential.headers()

    assert reason in str(failure.value)
    assert SECRET not in str(failure.value)


async def test_metadata_about_another_resource_are_refused(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """An upstream must not get a token for another server (RFC 9728 section 3.3)."""
    publish_metadata(upstream, idp, "https://neighbour.example.com/mcp")
    try:
        credential = await credential_of(replicas.one(upstream.base, idp.issuer), upstream)
        with pytest.raises(CredentialUnavailable, match="another resource"):
            await credential.headers()
    finally:
        publish_metadata(upstream, idp, f"{upstream.base}/mcp")


async def test_only_a_configured_issuer_gets_the_client_secret(
    replicas: CredentialsReplicas, upstream: Idp, idp: RunningOidcProvider
) -> None:
    """The metadata of the upstream are not fetched."""
    credential = await credential_of(
        replicas.one(upstream.base, idp.issuer), upstream, issuer=idp.issuer
    )
    before = upstream.hits.total()
    signed = await credential.headers()

    assert await is_active(idp, signed.headers["authorization"])
    assert upstream.hits.total() == before


URL = "https://crm.example.com/mcp"
KEY, HEADER_VALUE = "the-key-of-the-crm", "the-value-of-a-header"


def registry_of(replica: CredentialServices, **settings: object) -> CredentialRegistry:
    table = CredentialSettings(type="static", **settings)  # type: ignore[arg-type]
    registry = CredentialRegistry(replica)
    registry.apply(Config(resource="https://mcp.example.com/mcp", credentials={"crm": table}))
    return registry


async def test_key_and_headers_are_sent_and_redacted(
    replicas: CredentialsReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from `secret:` of the tenant and `env:` of the server."""
    monkeypatch.setenv("CRM_VALUE", HEADER_VALUE)
    replica = replicas.one()
    await replica.secrets.put(TENANT, "CRM_KEY", KEY)
    registry = registry_of(
        replica, tenants=("*",), api_key="secret:CRM_KEY", headers={"X-Team": "env:CRM_VALUE"}
    )
    credential = registry.named(TENANT, "crm", URL)
    signed = await credential.headers()

    assert signed.headers == {"authorization": f"Bearer {KEY}", "x-team": HEADER_VALUE}
    assert KEY in replica.secrets.known_secrets(TENANT).values.values()
    assert KEY not in repr(signed)


async def test_a_changed_secret_is_used_for_the_next_request(replicas: CredentialsReplicas) -> None:
    """A 401 causes a retry only if the secret has changed by then."""
    replica = replicas.one()
    await replica.secrets.put(TENANT, "CRM_KEY", KEY)
    credential = registry_of(replica, tenants=("*",), api_key="secret:CRM_KEY").named(
        TENANT, "crm", URL
    )
    first = await credential.headers()
    assert not await credential.refused(first)

    await replica.secrets.put(TENANT, "CRM_KEY", f"{KEY}-2")
    assert await credential.refused(first)
    second = await credential.headers()
    assert second.headers == {"authorization": f"Bearer {KEY}-2"}
    assert second.version != first.version


async def test_a_secret_is_sent_only_to_the_hosts_it_is_bound_to(
    replicas: CredentialsReplicas,
) -> None:
    """A secret that is bound to another host is not sent."""
    replica = replicas.one()
    await replica.secrets.put(TENANT, "CRM_KEY", KEY, ("other.example.com",))
    registry = registry_of(replica, tenants=("*",), api_key="secret:CRM_KEY")

    with pytest.raises(CredentialUnavailable, match=r"bound to other\.example\.com"):
        await registry.named(TENANT, "crm", URL).headers()
    bound = registry.named(TENANT, "crm", "https://other.example.com/mcp")
    assert (await bound.headers()).headers == {"authorization": f"Bearer {KEY}"}


async def test_another_tenant_cannot_use_a_credential_or_its_secret(
    replicas: CredentialsReplicas,
) -> None:
    """The table names its tenants, and a reference means the caller's tenant's own secret."""
    replica = replicas.one()
    await replica.secrets.put(TENANT, "CRM_KEY", KEY)
    named = registry_of(replica, tenants=(TENANT,), api_key="secret:CRM_KEY")
    every = registry_of(replica, tenants=("*",), api_key="secret:CRM_KEY")

    with pytest.raises(CredentialUnavailable, match="may not use"):
        await named.named("globex", "crm", URL).headers()
    with pytest.raises(CredentialUnavailable, match="There is no secret CRM_KEY"):
        await every.named("globex", "crm", URL).headers()
    with pytest.raises(CredentialUnavailable, match="no credential"):
        await every.named(TENANT, "crn", URL).headers()
