"""API keys and headers: read by reference, sent to their host only, renewed when they change."""

import pytest

from gatepost.config.credentials import CredentialSettings
from gatepost.config.settings import Config
from gatepost.credentials.credential import CredentialUnavailable
from gatepost.credentials.tenant_credentials import CredentialRegistry
from tests.credentials.conftest import TENANT, CredentialsReplica, CredentialsReplicas

URL = "https://crm.example.com/mcp"
KEY, VALUE = "the-key-of-the-crm", "the-value-of-a-header"


def registry_of(replica: CredentialsReplica, **settings: object) -> CredentialRegistry:
    table = CredentialSettings(type="static", **settings)  # type: ignore[arg-type]
    registry = CredentialRegistry(replica.services)
    registry.apply(Config(resource="https://mcp.example.com/mcp", credentials={"crm": table}))
    return registry


async def test_key_and_headers_are_sent_and_redacted(
    replicas: CredentialsReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`secret:` of the tenant and `env:` of the server."""
    monkeypatch.setenv("CRM_VALUE", VALUE)
    replica = replicas.one()
    await replica.services.secrets.put(TENANT, "CRM_KEY", KEY)
    registry = registry_of(
        replica, tenants=("*",), api_key="secret:CRM_KEY", headers={"X-Team": "env:CRM_VALUE"}
    )
    credential = registry.named(TENANT, "crm", URL)
    signed = await credential.headers()

    assert signed.headers == {"authorization": f"Bearer {KEY}", "x-team": VALUE}
    assert KEY in replica.services.secrets.known(TENANT).values.values()
    assert KEY not in repr(signed)


async def test_a_changed_secret_is_sent_from_then_on(replicas: CredentialsReplicas) -> None:
    """And a 401 is worth one attempt only if the secret is another one by then."""
    replica = replicas.one()
    await replica.services.secrets.put(TENANT, "CRM_KEY", KEY)
    credential = registry_of(replica, tenants=("*",), api_key="secret:CRM_KEY").named(
        TENANT, "crm", URL
    )
    first = await credential.headers()
    assert not await credential.refused(first)

    await replica.services.secrets.put(TENANT, "CRM_KEY", f"{KEY}-2")
    assert await credential.refused(first)
    second = await credential.headers()
    assert second.headers == {"authorization": f"Bearer {KEY}-2"}
    assert second.version != first.version


async def test_a_secret_goes_to_its_hosts_only(replicas: CredentialsReplicas) -> None:
    """A secret that is bound to another host is not sent."""
    replica = replicas.one()
    await replica.services.secrets.put(TENANT, "CRM_KEY", KEY, ("other.example.com",))
    registry = registry_of(replica, tenants=("*",), api_key="secret:CRM_KEY")

    with pytest.raises(CredentialUnavailable, match=r"bound to other\.example\.com"):
        await registry.named(TENANT, "crm", URL).headers()
    bound = registry.named(TENANT, "crm", "https://other.example.com/mcp")
    assert (await bound.headers()).headers == {"authorization": f"Bearer {KEY}"}


async def test_another_tenant_has_neither_the_credential_nor_the_secret(
    replicas: CredentialsReplicas,
) -> None:
    """The table names the tenants, and a reference means the tenant's own secret."""
    replica = replicas.one()
    await replica.services.secrets.put(TENANT, "CRM_KEY", KEY)
    named = registry_of(replica, tenants=(TENANT,), api_key="secret:CRM_KEY")
    every = registry_of(replica, tenants=("*",), api_key="secret:CRM_KEY")

    with pytest.raises(CredentialUnavailable, match="may not use"):
        await named.named("globex", "crm", URL).headers()
    with pytest.raises(CredentialUnavailable, match="There is no secret CRM_KEY"):
        await every.named("globex", "crm", URL).headers()
    with pytest.raises(CredentialUnavailable, match="no credential"):
        await every.named(TENANT, "crn", URL).headers()
