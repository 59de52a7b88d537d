"""The problems in the gate's settings: one case per id, all found at once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gatepost_authz.check import HINTS, problems
from gatepost_authz.config import ClientRule, Introspection, Issuer, Problem, RoleRule, TenantRule
from gatepost_authz.token_rules import CallerMark, TokenRules
from tests.support.measuring import each

VALID_ISSUER: dict[str, Any] = {
    "issuer": "https://id.example.com",
    "tenant": TenantRule(claim="org_id"),
    "tenants": {"org_1": "acme"},
}
RESOURCE = "https://mcp.example.com/mcp"
TEMPLATE = "https://mcp.example.com/t/{tenant}/mcp"


def issuer(**changes: Any) -> Issuer:
    return Issuer(**(VALID_ISSUER | changes))


def find(
    resource: str = RESOURCE, issuers: Sequence[Issuer] | None = None, **more: Any
) -> list[Problem]:
    return list(problems(resource=resource, issuers=[issuer()] if issuers is None else issuers,
                         **more))  # fmt: skip


def introspection(**changes: Any) -> Introspection:
    return Introspection(**({"client_id": "gatepost", "client_secret": "env:SECRET"} | changes))


SECOND_ISSUER = issuer(issuer="https://other.example.com", tenants={"o": "globex"})


def asked_twice(prefix: str, other: str, **changes: Any) -> dict[str, Any]:
    """Return two issuers with introspection and these prefixes."""
    first = issuer(introspection=introspection(token_prefix=prefix, **changes))
    second = introspection(token_prefix=other, **changes)
    return {"issuers": [first, msgspec.structs.replace(SECOND_ISSUER, introspection=second)]}


PROBLEM_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("authz.E001", "resource", {"resource": "mcp.example.com/mcp"}),
    ("authz.E001", "resource", {"resource": "ftp://mcp.example.com"}),
    ("authz.E001", "resource", {"resource": "https://[::1/mcp"}),
    ("authz.E001", "resource", {"resource": "https://h:99999/mcp"}),
    ("authz.E001", "issuers[0].issuer", {"issuers": [issuer(issuer="")]}),
    ("authz.E002", "resource", {"resource": "http://mcp.example.com/mcp"}),
    ("authz.E002", "resource", {"resource": "http://127.0.0.1/mcp"}),
    ("authz.E002", "resource", {"resource": "http://h/mcp", "development": True}),
    ("authz.E002", "issuers[0].issuer", {"issuers": [issuer(issuer="http://id.example.com")]}),
    ("authz.E002", "issuers[0].jwks_uri", {"issuers": [issuer(jwks_uri="http://id.example/k")]}),
    ("authz.E002", "issuers[0].introspection.endpoint",
     {"issuers": [issuer(introspection=introspection(endpoint="http://id.example/i"))]}),
    ("authz.E003", "resource", {"resource": f"{RESOURCE}#top"}),
    ("authz.E003", "resource", {"resource": f"{RESOURCE}#"}),
    ("authz.E003", "issuers[0].issuer", {"issuers": [issuer(issuer="https://id.example/#x")]}),
    ("authz.E004", "resource", {"resource": "https://user:hunter2@mcp.example.com/mcp"}),
    ("authz.E005", "resource", {"resource": 'https://mcp.example.com/"mcp'}),
    ("authz.E005", "resource", {"resource": "https://mcp.example.com/mcp\\x"}),
    ("authz.E005", "resource", {"resource": "https://mcp.example.com/m%20p"}),
    ("authz.E005", "resource", {"resource": "https://mcp.exämple.com/mcp"}),
    ("authz.E005", "resource", {"resource": "https://mcp.example.com/mcp\r\nX: y"}),
    ("authz.E006", "resource", {"resource": "https://h/t/{tenant}x/mcp"}),
    ("authz.E006", "resource", {"resource": "https://h/{tenant}/{tenant}/mcp"}),
    ("authz.E006", "resource", {"resource": "https://{tenant}.h/mcp"}),
    ("authz.E006", "resource", {"resource": "https://{tenant}/mcp"}),
    ("authz.E006", "resource", {"resource": "https://h/t/{org}/mcp"}),
    ("authz.E006", "resource", {"resource": "https://h/mcp?t={tenant}"}),
    ("authz.E006", "resource", {"resource": "https://h/mcp/}"}),
    ("authz.E007", "issuers[0].issuer", {"issuers": [issuer(issuer="https://id.example/?a=b")]}),
    ("authz.E008", "issuers[0].issuer", {"issuers": [issuer(issuer="https://{tid}.example/")]}),
    ("authz.E008", "issuers[0].issuer", {"issuers": [issuer(issuer="https://h/{a}/{b}")]}),
    ("authz.E008", "issuers[0].issuer", {"issuers": [issuer(issuer="https://h/x{tid}/v2")]}),
    ("authz.E010", "issuers", {"issuers": []}),
    ("authz.E011", "issuers[1].issuer", {"issuers": [issuer(), issuer()]}),
    ("authz.E012", "issuers[0].preset", {"issuers": [issuer(preset="keyclock")]}),
    ("authz.E013", "issuers[0].algorithms", {"issuers": [issuer(algorithms=("RS256", "HS256"))]}),
    ("authz.E013", "issuers[0].algorithms", {"issuers": [issuer(algorithms=("none",))]}),
    ("authz.E013", "issuers[0].algorithms", {"issuers": [issuer(algorithms=("rs256",))]}),
    ("authz.E014", "issuers[0].leeway_s", {"issuers": [issuer(leeway_s=301)]}),
    ("authz.E014", "issuers[0].leeway_s", {"issuers": [issuer(leeway_s=-1)]}),
    ("authz.E014", "issuers[0].leeway_s", {"issuers": [issuer(leeway_s=315_360_000)]}),
    ("authz.E015", "issuers[0].max_lifetime_s", {"issuers": [issuer(max_lifetime_s=0)]}),
    ("authz.E016", "issuers[0].allow_private[1]",
     {"issuers": [issuer(allow_private=("10.0.0.0/8", "10.0.0.1/8"))]}),
    ("authz.E016", "issuers[0].allow_private[0]", {"issuers": [issuer(allow_private=("lan",))]}),
    ("authz.E017", "issuers[0].tenant", {"issuers": [issuer(tenant=TenantRule())]}),
    ("authz.E017", "issuers[0].tenant",
     {"issuers": [issuer(tenant=TenantRule(claim="org_id", issuer=True))]}),
    ("authz.E018", "issuers[0].tenants", {"issuers": [issuer(tenants={"x": "Acme"})]}),
    ("authz.E018", "issuers[0].tenant.value",
     {"issuers": [issuer(tenant=TenantRule(value="../acme"), tenants={})]}),
    ("authz.E018", "tenancy.tenants[0]", {"tenants": ["acme\n"]}),
    ("authz.E019", "issuers[0].tenants", {"issuers": [issuer(tenants={}), SECOND_ISSUER]}),
    ("authz.E020", "issuers[1].tenants",
     {"issuers": [issuer(), issuer(issuer="https://b.example", tenants={},
                                   tenant=TenantRule(value="acme"))]}),
    ("authz.E021", "issuers[0].tenants", {"issuers": [issuer(tenant=TenantRule(value="acme"))]}),
    *[
        ("authz.E021", "issuers[0].clients.c.tenant",
         {"issuers": [issuer(tenant=rule, tenants={}, preset=preset,
                             clients={"c": ClientRule(tenant="globex")})]})
        for rule in (TenantRule(value="acme"), TenantRule(issuer=True))
        for preset in ("generic", "keycloak")
    ],
    ("authz.E022", "issuers[0].introspection.client_secret",
     {"issuers": [issuer(introspection=introspection(client_secret="hunter2"))]}),
    ("authz.E022", "issuers[0].introspection.client_secret",
     {"issuers": [issuer(introspection=introspection(client_secret="env:"))]}),
    ("authz.E023", "issuers[0].roles",
     {"issuers": [issuer(roles={"aprover": RoleRule("roles", "x")})]}),
    ("authz.E023", "issuers[0].roles.operator",
     {"issuers": [issuer(issuer="https://id.example/{tenant}",
                         roles={"operator": RoleRule("roles", "x")})]}),
    ("authz.E024", "issuers[0].issuer", {"issuers": [issuer(issuer="https://localhost/realm")]}),
    ("authz.E024", "issuers[0].issuer", {"issuers": [issuer(issuer="https://127.9.9.9/")]}),
    ("authz.E024", "issuers[0].issuer", {"issuers": [issuer(issuer="https://h.example/dev-as")]}),
    ("authz.E025", "issuers[0].audiences", {"issuers": [issuer(preset="entra-v2")]}),
    ("authz.E026", "issuers[0].tenant.value",
     {"issuers": [issuer(issuer="https://login.microsoftonline.com/{tid}/v2.0",
                         tenant=TenantRule(value="acme"), tenants={})]}),
    ("authz.E027", "scopes.baseline", {"scopes": {"scopes.baseline": ["a b"]}}),
    ("authz.E027", "scopes.obtainable", {"scopes": {"scopes.obtainable": ["offline_access"]}}),
    ("authz.E027", "scopes.baseline", {"scopes": {"scopes.baseline": ["a\r\nSet-Cookie: x"]}}),
    *[
        ("authz.E034", f"issuers[0].tokens.{name}[0]",
         {"issuers": [issuer(tokens=TokenRules(**{name: (mark,)}))]})
        for name, mark in (
            ("machine", CallerMark()),
            ("machine", CallerMark(no_subject=True, subject_is_client=True)),
            ("machine", CallerMark(claim="gty", suffix="@clients")),
            ("machine", CallerMark(no_subject=True, value="x")),
            ("machine", CallerMark(subject=True)),
            ("person", CallerMark(subject=True, claim="scp")),
        )
    ],
    *[
        ("authz.E035", "issuers[0].tokens.person[0]",
         {"issuers": [issuer(tokens=TokenRules(person=(mark,)))]})
        for mark in (CallerMark(no_subject=True), CallerMark(subject_is_client=True),
                     CallerMark(absent="gty"))
    ],
    *[
        ("authz.E036", f"issuers[0].tokens.{name}",
         {"issuers": [issuer(tokens=TokenRules(**rules))]})
        for name, rules in (
            ("types", {"types": ()}),
            ("subject_claims", {"subject_claims": ()}),
            ("subject_claims", {"subject_claims": ("",)}),
            ("client_claims", {"client_claims": ()}),
            ("scope_claims", {"scope_claims": ("scp", "")}),
            ("person", {"machine": (), "person": ()}),
        )
    ],
    ("authz.E036", "issuers[0].tokens",
     {"issuers": [issuer(tokens=TokenRules(forbidden={"": ()}))]}),
    ("authz.E037", "issuers[0].tokens.must_equal",
     {"issuers": [issuer(preset="keycloak", tokens=TokenRules(must_equal={"typ": "ID"}))]}),
    *[
        ("authz.E038", "issuers[0].tokens.types",
         {"issuers": [issuer(tokens=TokenRules(types=("at+jwt", kind)))]})
        for kind in ("dpop+jwt", "application/logout+JWT", "secevent+jwt", "rt+jwt")
    ],
    ("authz.E039", "issuers[0].clients",
     {"issuers": [issuer(issuer="https://h.example/{org}", tenant=TenantRule(issuer=True),
                         clients={"c": ClientRule(tenant="acme")})]}),
    ("authz.E018", "issuers[0].clients.c.tenant",
     {"issuers": [issuer(clients={"c": ClientRule(tenant="Acme")})]}),
    ("authz.E027", "issuers[0].clients.c.scopes",
     {"issuers": [issuer(clients={"c": ClientRule(scopes=("a b",))})]}),
    ("authz.E028", "issuers[0].clients", {"issuers": [issuer(clients={"": ClientRule()})]}),
    ("authz.E021", "issuers[0].clients.c.tenant",
     {"issuers": [issuer(preset="keycloak", tenant=TenantRule(value="acme"), tenants={},
                         clients={"c": ClientRule(tenant="globex")})]}),
    ("authz.E022", "issuers[0].introspection.private_key",
     {"issuers": [issuer(introspection=introspection(method="private_key_jwt",
                                                     private_key="-----BEGIN"))]}),
    ("authz.E022", "issuers[0].introspection.client_secret",
     {"issuers": [issuer(introspection=introspection(client_secret=""))]}),
    ("authz.E040", "issuers[0].introspection.private_key",
     {"issuers": [issuer(introspection=introspection(method="private_key_jwt"))]}),
    ("authz.E041", "issuers[1].introspection.token_prefix", asked_twice("ory_at_", "ory_")),
    ("authz.E041", "issuers[1].introspection.token_prefix", asked_twice("a_", "a_")),
    ("authz.E042", "issuers[0].introspection.when",
     {"issuers": [issuer(issuer="https://h.example/{org}", tenant=TenantRule(issuer=True),
                         introspection=introspection(when="always"))]}),
    ("authz.E043", "issuers[0].introspection",
     {"issuers": [issuer(preset="canaille", audiences=("gatepost",))]}),
    ("authz.W012", "issuers[0].tokens.types",
     {"issuers": [issuer(tokens=TokenRules(types=("at+jwt", "JWT")))]}),
    ("authz.W012", "issuers[0].tokens.types",
     {"issuers": [issuer(tokens=TokenRules(types=("",)))]}),
    ("authz.W012", "issuers[0].tokens.types",
     {"issuers": [issuer(preset="auth0", tokens=TokenRules(
         types=("",), required_claims=("iat", "sub", "azp", "jti")))]}),
    *[
        ("authz.W012", "issuers[0].tokens.types",
         {"issuers": [issuer(tokens=TokenRules(types=("jwt",), required_claims=required))]})
        for required in ((), ("sub",), ("iat", "azp", "auth_time", "jti"))
    ],
    *[
        ("authz.W013", "issuers[0].tokens.subject_claims",
         {"issuers": [issuer(tokens=TokenRules(subject_claims=(claim, "sub")))]})
        for claim in ("email", "preferred_username", "username", "upn")
    ],
    ("authz.W014", "issuers[0].tokens.client_as_audience",
     {"issuers": [issuer(audiences=("c",), tokens=TokenRules(client_as_audience=True))]}),
    ("authz.W015", "issuers[0].tokens.required_claims",
     {"issuers": [issuer(tokens=TokenRules(required_claims=("iat", "sub", "client_id")))]}),
    ("authz.W016", "issuers[0].tokens.audience_claims",
     {"issuers": [issuer(tokens=TokenRules(audience_claims=("resource",)))]}),
    ("authz.W017", "issuers[0].introspection.audience",
     {"issuers": [issuer(introspection=introspection(audience="client"))]}),
    ("authz.W018", "issuers[1].introspection.ask_in_turn", asked_twice("", "", ask_in_turn=True)),
    ("authz.W019", "issuers[1].introspection.token_prefix", asked_twice("", "")),
    ("authz.W020", "issuers[0].tokens.machine[0]",
     {"issuers": [issuer(tokens=TokenRules(machine=(CallerMark(claim="email"),)))]}),
    *[
        ("authz.W021", "issuers[0].tokens.machine",
         {"issuers": [issuer(preset=preset, tokens=TokenRules(machine=marks))]})
        for preset, marks in (
            ("keycloak", ()),
            ("keycloak", (CallerMark(subject_is_client=True),)),
            ("auth0", (CallerMark(claim="gty", value="client-credentials"),)),
        )
    ],
    *[
        ("authz.W021", "issuers[0].tokens.person[0]",
         {"issuers": [issuer(preset=preset, tokens=TokenRules(person=(CallerMark(claim=claim),)))]})
        for preset, claim in (("generic", "sub"), ("generic", "client_id"), ("keycloak", "azp"),
                              ("auth0", "iss"))
    ],
    ("authz.E028", "issuers[0].audiences", {"issuers": [issuer(audiences=("",))]}),
    ("authz.E028", "issuers[0].tenants", {"issuers": [issuer(tenants={"": "acme"})]}),
    ("authz.E028", "issuers[0].roles.admin",
     {"issuers": [issuer(roles={"admin": RoleRule("roles", "")})]}),
    ("authz.E028", "issuers[0].introspection.client_id",
     {"issuers": [issuer(introspection=introspection(client_id=""))]}),
    ("authz.E029", "issuers[0].tenant", {"issuers": [issuer(issuer="https://h/realms/{realm}")]}),
    ("authz.E029", "issuers[0].tenant",
     {"issuers": [issuer(issuer="https://h/realms/{realm}", tenants={}, tenant=TenantRule(),
                         preset="keycloak")]}),
    *[
        ("authz.E030", "issuers[0].allow_private", {"issuers": [issuer(allow_private=networks)]})
        for networks in (
            ("0.0.0.0/0",),
            ("::/0",),
            ("0.0.0.0/1", "128.0.0.0/1"),
            ("10.0.0.0/7",),
            tuple(f"{at}.0.0.0/8" for at in range(256)),
            ("::ffff:0:0/96",),
            ("::ffff:0:0/97", "::ffff:8000:0/97"),
            ("2000::/3",),
            ("::/1", "8000::/1"),
        )
    ],
    *[
        ("authz.E031", "issuers[0].allow_private", {"issuers": [issuer(allow_private=(network,))]})
        for network in (
            "169.254.169.254/32",
            "169.254.0.0/16",
            "::ffff:a9fe:a9fe/128",
            "fe80::/10",
            "fd00:ec2::254/128",
            "100.100.100.200/32",
            "168.63.129.16/32",
        )
    ],
    *[
        ("authz.E032", "issuers[0].max_lifetime_s", {"issuers": [issuer(max_lifetime_s=seconds)]})
        for seconds in (366 * 86_400 + 1, 10**12)
    ],
    *[
        ("authz.E033", "issuers[0].audiences", {"issuers": [issuer(audiences=(audience,))]})
        for audience in ("*", "**", "https://*", "https://*.example.com/mcp", "/", "?", "%")
    ],
    ("authz.W008", "issuers[0].max_lifetime_s", {"issuers": [issuer(max_lifetime_s=30 * 86_400)]}),
    *[
        ("authz.W009", "issuers[0].audiences", {"issuers": [issuer(audiences=(audience,))]})
        for audience in ("account", "https://graph.microsoft.com/",
                         "00000003-0000-0000-c000-000000000000")
    ],
    *[
        ("authz.W010", "issuers[0].tenant",
         {"issuers": [issuer(issuer=url, tenant=rule, tenants={}, **more)]})
        for rule in (TenantRule(value="acme"), TenantRule(issuer=True))
        for url, more in (
            ("https://accounts.google.com", {"preset": "google", "audiences": ("x",)}),
            ("https://accounts.google.com", {}),
            ("https://token.actions.githubusercontent.com", {}),
            ("https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0", {}),
        )
    ],
    ("authz.W011", "issuers[0].tenants",
     {"issuers": [issuer(tenants={})], "create_on_first_use": True}),
    ("authz.W011", "issuers[0].tenants",
     {"issuers": [issuer(issuer="https://h.example/{org}", tenant=TenantRule(issuer=True),
                         tenants={})], "create_on_first_use": True}),
    ("authz.W001", "resource", {"resource": "https://mcp.example.com/mcp/"}),
    ("authz.W002", "resource", {"resource": "https://mcp.example.com/mcp?v=2"}),
    ("authz.W003", "issuers", {"issuers": [issuer(), SECOND_ISSUER]}),
    ("authz.W003", "issuers[1].tenants",
     {"resource": TEMPLATE, "issuers": [issuer(), issuer(issuer="https://b.example")]}),
    ("authz.W003", "issuers",
     {"issuers": [issuer(issuer="https://h.example/{org}", tenant=TenantRule(issuer=True),
                         tenants={"org_1": "acme", "org_2": "globex"})]}),
    ("authz.W004", "issuers[0].introspection", {"issuers": [issuer(preset="oidc-provider")]}),
    ("authz.W005", "tenancy", {"issuers": [issuer(tenants={})]}),
    ("authz.W006", "issuers[0].tenants", {"resource": TEMPLATE, "issuers": [issuer(tenants={})]}),
    ("authz.W007", "issuers[0].issuer", {"issuers": [issuer(issuer="https://h.example/{org}")]}),
    ("authz.W007", "issuers[0].issuer",
     {"resource": TEMPLATE, "issuers": [issuer(issuer="https://h.example/{org}")]}),
]  # fmt: skip


@pytest.mark.requirement("W21", "C08", "N09")
@each(("identifier", "setting", "settings"), PROBLEM_CASES)
def test_each_setting_error_is_reported_under_its_id(
    identifier: str, setting: str, settings: dict[str, Any]
) -> None:
    """Each problem names the setting and has a message and a hint."""
    problems = [problem for problem in find(**settings) if problem.id == identifier]

    assert [problem.setting for problem in problems] == [setting]
    assert problems[0].message
    assert HINTS[identifier] in problems[0].hint
    assert problems[0].level == ("warning" if ".W" in identifier else "error")


def test_every_problem_id_has_a_test_case() -> None:
    """A problem id that no setting can cause must not be documented."""
    assert {identifier for identifier, _, _ in PROBLEM_CASES} == set(HINTS)


def test_five_errors_are_five_problems() -> None:
    """The operator sees all of them at once, not one for each start."""
    problems = find(
        "http://mcp.example.com/mcp#x",
        [issuer(preset="keyclock", algorithms=("HS256",), leeway_s=900)],
    )

    assert {problem.id for problem in problems} == {
        "authz.E002", "authz.E003", "authz.E012", "authz.E013", "authz.E014"
    }  # fmt: skip


def test_an_unknown_name_is_reported_with_the_nearest_known_name() -> None:
    """Most errors are typing errors."""
    problems = find(issuers=[issuer(preset="keyclock", roles={"aprover": RoleRule("a", "b")})])

    assert [problem.hint.split("?")[0] for problem in problems] == [
        "did you mean 'keycloak'",
        "did you mean 'approver'",
    ]


def test_a_password_in_a_url_is_not_printed() -> None:
    """The output of a check ends up in tickets."""
    for problem in find("https://user:hunter2@mcp.example.com/mcp"):
        assert "hunter2" not in repr(problem)
    for problem in find(issuers=[issuer(introspection=introspection(client_secret="hunter2"))]):
        assert "hunter2" not in repr(problem)
