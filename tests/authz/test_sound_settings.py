"""Settings of the gate that `gatepost check` must not complain about."""

from typing import Any

from gatepost_authz.config import ClientRule, TenantRule
from gatepost_authz.token_rules import CallerMark, TokenRules
from tests.authz.test_check import TEMPLATE, find, introspection, issuer
from tests.support.measuring import each


@each(
    "settings",
    [
        {},
        {"resource": TEMPLATE},
        {"resource": "https://mcp.example.com"},
        {"resource": "https://h/{tenant}"},
        {"resource": "http://127.0.0.1:8000/mcp", "development": True,
         "issuers": [issuer(issuer="http://localhost:8000/dev-as")]},
        {"issuers": [issuer(tenants={})], "tenants": ["acme"]},
        {"issuers": [issuer(tenants={})], "create_on_first_use": True, "development": True},
        {"issuers": [issuer()], "create_on_first_use": True},
        {"issuers": [issuer(allow_private=(
            "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fd00::/8"))]},
        {"issuers": [issuer(max_lifetime_s=7 * 86_400, audiences=("https://api.example.com",))]},
        {"issuers": [issuer(allow_private=("0.0.0.0/0",), audiences=("*",))], "development": True},
        {"issuers": [issuer(preset="entra-v2", audiences=("api-guid",), tenant=TenantRule(),
                            issuer="https://login.microsoftonline.com/{tid}/v2.0")]},
        {"resource": TEMPLATE, "issuers": [
            issuer(issuer="https://h.example/{org}", tenant=TenantRule(issuer=True))]},
        {"issuers": [issuer(algorithms=("RS256", "EdDSA", "Ed25519", "ES384"))]},
        {"issuers": [issuer(introspection=introspection(), preset="oidc-provider")]},
        {"scopes": {"scopes.baseline": ["mcp:read"]}},
        {"scopes": {"scopes.request": ["openid", "offline_access"]}},
        {"issuers": [issuer(tokens=TokenRules(
            types=("jwt",), must_equal={"token_use": "access"},
            machine=(CallerMark(no_subject=True), CallerMark(claim="gty", value="cc")),
            person=(CallerMark(claim="scp"), CallerMark(subject=True))))]},
        {"issuers": [issuer(tokens=TokenRules(
            types=("jwt",), required_claims=("client_id", "iat", "jti", "sub")))]},
        {"issuers": [issuer(preset="keycloak", tokens=TokenRules(
            machine=(CallerMark(claim="clientAddress"), CallerMark(claim="gty", value="cc"))))]},
        {"issuers": [issuer(clients={"c": ClientRule("acme", ("files:read",))})]},
        {"issuers": [issuer(introspection=introspection(
            method="private_key_jwt", private_key="file:key.pem", when="always"))]},
    ],
)  # fmt: skip
def test_valid_settings_have_no_problem(settings: dict[str, Any]) -> None:
    """Operators ignore a check that reports false alarms."""
    assert find(**settings) == []
