"""Issuers that match a template and claim tenants of other issuers."""

import pytest

from gatepost_authz.config import Issuer, TenantRule
from gatepost_authz.errors import InvalidToken
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.tenant import tenant_of


@pytest.mark.parametrize("realm", ["acme", "evil"])
@pytest.mark.parametrize("tenants", [{}, {"acme": "acme"}])
def test_one_issuer_of_a_template_cannot_claim_the_tenant_of_another(
    realm: str, tenants: dict[str, str]
) -> None:
    """The administrator of a realm writes its claims, so only the issuer tells realms apart."""
    template = "https://sso.example/realms/{realm}"
    settings = Issuer(issuer=template, tenant=TenantRule(claim="org_id"), tenants=tenants)
    issuer = f"https://sso.example/realms/{realm}"
    trusted = IssuerRegistry([settings]).find(issuer)
    assert trusted is not None

    with pytest.raises(InvalidToken) as refused:
        tenant_of({"org_id": "acme"}, trusted[0].rules, issuer=issuer, captured=trusted[1])

    assert refused.value.reason == "tenant_not_exclusive"
