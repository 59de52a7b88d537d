"""Third shape: one template for the issuers of many organisations, as Entra has it."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost_authz.issuer_key_sets import UNPROVEN
from tests.support import issuers as f
from tests.support.client import WELL_KNOWN, comparable_answer
from tests.support.issuers import ABSENT, Idp, TokenFactory, rsa_key, signer
from tests.support.measuring import each
from tests.support.server import Server, check_problems, running_server

FIRST_TENANT = "11111111-aaaa-4bbb-8ccc-000000000001"
SECOND_TENANT = "22222222-aaaa-4bbb-8ccc-000000000002"
UNKNOWN_TENANT = "99999999-aaaa-4bbb-8ccc-000000000009"
OTHER_KEY = signer(rsa_key("other"), "RS256")
AUDIENCE = "api://gatepost"


def entra(idp: Idp, **settings: Any) -> dict[str, Any]:
    """Return a multi-tenant application that fits any organisation and has two customers."""
    for tid in (FIRST_TENANT, UNKNOWN_TENANT):
        idp.issuer(f"{tid}/v2.0", [f.jwk(rsa_key())])
    idp.issuer(f"{SECOND_TENANT}/v2.0", [f.jwk(rsa_key("other"))])
    return {
        "issuer": f"{idp.base}/{{tid}}/v2.0",
        "preset": "entra-v2",
        "audiences": [AUDIENCE],
        "tenant": {"issuer": True},
        "tenants": {FIRST_TENANT: "acme", SECOND_TENANT: "globex"},
    } | settings


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    with running_server(idp, [entra(idp)]) as server:
        yield server


def token(server: Server, org: str = FIRST_TENANT, **claims: Any) -> str:
    """Return an access token as Entra's v2 endpoint makes it for an organisation."""
    usual = {
        "iss": server.idp.issuer(f"{org}/v2.0"),
        "aud": AUDIENCE,
        "tid": org,
        "ver": "2.0",
        "azp": "client-1",
        "oid": "oid-of-alice",
        "scp": "files:write",
        "nbf": int(time.time()) - 1,
        "scope": ABSENT,
        "client_id": ABSENT,
        "org_id": ABSENT,
    }
    sign = claims.pop("sign", OTHER_KEY if org == SECOND_TENANT else None)
    return TokenFactory(server.idp.base, AUDIENCE).token(
        header={"typ": "JWT"}, sign=sign, **usual | claims
    )


@pytest.mark.requirement("C12", "A6")
@pytest.mark.parametrize(("tid", "tenant"), [(FIRST_TENANT, "acme"), (SECOND_TENANT, "globex")])
def test_each_organisation_of_the_table_is_its_tenant(
    server: Server, tid: str, tenant: str
) -> None:
    """The concrete issuer names the organisation; its own keys prove it."""
    assert server.tenant_of(token(server, tid)) == tenant


@pytest.mark.requirement("C12", "C29")
def test_an_organisation_that_is_no_customer_is_refused(server: Server) -> None:
    """Any person can create an organisation with valid keys at the provider."""
    assert server.tenant_of(token(server, UNKNOWN_TENANT)) is None


@pytest.mark.requirement("C29", "C12")
@pytest.mark.parametrize(
    "tid",
    [
        SECOND_TENANT,
        UNKNOWN_TENANT,
        "",
        FIRST_TENANT.upper(),
        None,
        [FIRST_TENANT],
        ABSENT,
        f"{FIRST_TENANT}\n",
    ],
)
def test_the_issuer_and_the_claim_must_agree(server: Server, tid: Any) -> None:
    """A provider that signs for all with shared keys repeats the organisation in a claim."""
    assert server.tenant_of(token(server, tid=tid)) is None


NOT_ISSUERS = [
    "{base}/{ONE}/v2.0/", "{base}/{ONE}/v2.0\n", "{base}/{ONE}/v2.0?x", "{base}/{ONE}/v2.0#x",
    "{base}/{ONE}/x/v2.0", "{base}/x/{ONE}/v2.0", "{base}/{ONE}", "{base}//v2.0",
    "{base}/{ONE}\n/v2.0", "{base}/{tid}/v2.0", "{base}/../{ONE}/v2.0", "{base}/%2e/v2.0",
    "{base}/common/v2.0", "{base}/organizations/v2.0", "{base}.evil.example/{ONE}/v2.0",
    "http://evil.example/{base}/{ONE}/v2.0", "{base}@evil.example/{ONE}/v2.0",
    "{base}/11111111-AAAA-4BBB-8CCC-000000000001/v2.0", "{base}/{ONE}{ONE}/v2.0",
    "{base}/11111111-aaaa-4bbb-8ccc-00000000000\uff11/v2.0",
]  # fmt: skip


@pytest.mark.requirement("C12", "C09", "C10")
@each("issuer", NOT_ISSUERS, ids=ascii)
def test_only_a_whole_valid_segment_matches_the_issuer_template(
    server: Server, issuer: str
) -> None:
    """Gatepost asks no server about an issuer that only resembles the template."""
    named = issuer.replace("{base}", server.idp.base).replace("{ONE}", FIRST_TENANT)
    before = server.idp.hits.total()

    assert server.tenant_of(token(server, iss=named)) is None
    assert server.idp.hits.total() == before


@pytest.mark.requirement("N16", "C11")
def test_each_concrete_issuer_has_its_own_keys(server: Server) -> None:
    """The same key id of organisation two does not verify a token of organisation one."""
    assert server.tenant_of(token(server, FIRST_TENANT)) == "acme"
    assert server.tenant_of(token(server, SECOND_TENANT)) == "globex"
    assert server.tenant_of(token(server, FIRST_TENANT, sign=OTHER_KEY)) is None
    assert server.tenant_of(token(server, SECOND_TENANT, sign=signer(rsa_key(), "RS256"))) is None


REALMS = "/t/{tenant}/mcp"


def realms(idp: Idp, **settings: Any) -> dict[str, Any]:
    """Return a provider with a realm for each organisation and plain RFC 9068 tokens."""
    for name, key in (("acme", "main"), ("globex", "other"), ("Acme", "main"), ("north", "main")):
        idp.issuer(f"realms/{name}", [f.jwk(rsa_key(key))])
    template = {"issuer": f"{idp.base}/realms/{{realm}}", "tenant": {"issuer": True}}
    return template | settings


@pytest.fixture(scope="module")
def open_realm_server(idp: Idp) -> Iterator[Server]:
    """Yield a server where the name of a realm is the tenant."""
    with running_server(
        idp, [realms(idp)], REALMS, tenancy={"create_on_first_use": True}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def two_realm_server(idp: Idp) -> Iterator[Server]:
    """Yield a server where two realms are tenants; the spelling of one needs the table."""
    with running_server(
        idp, [realms(idp, tenants={"Acme": "acme", "north": "north"})], REALMS
    ) as server:
        yield server


def realm_token(server: Server, realm: str, tenant: str, key: str = "main", **claims: Any) -> str:
    return server.token(
        f"realms/{realm}", tenant=tenant, sign=signer(rsa_key(key), "RS256"), **claims
    )


@pytest.mark.requirement("C12", "A-01")
@pytest.mark.parametrize(("realm", "key"), [("acme", "main"), ("globex", "other")])
def test_issuer_templates_work_for_any_provider(
    open_realm_server: Server, realm: str, key: str
) -> None:
    """Configuration only: the segment is the tenant, its document names its concrete issuer."""
    where = f"/t/{realm}/mcp"
    document = json.loads(open_realm_server.client.send("GET", f"{where}{WELL_KNOWN}").body)
    caller = open_realm_server.client.whoami(
        realm_token(open_realm_server, realm, realm, key), path=where
    )

    assert document["authorization_servers"] == [open_realm_server.idp.issuer(f"realms/{realm}")]
    assert (caller["tenant"], caller["issuer"]) == (
        realm,
        open_realm_server.idp.issuer(f"realms/{realm}"),
    )


@pytest.mark.requirement("A5", "C29")
@pytest.mark.parametrize(("realm", "tenant"), [("acme", "globex"), ("Acme", "acme")])
def test_a_token_of_a_realm_is_accepted_at_its_own_resource_only(
    open_realm_server: Server, realm: str, tenant: str
) -> None:
    """This also excludes a realm whose name differs only in case."""
    bent = realm_token(open_realm_server, realm, tenant, org_id=tenant)

    with open_realm_server.nothing_runs():
        assert open_realm_server.client.call(bent, path=f"/t/{tenant}/mcp").status == 401


@pytest.mark.requirement("C29", "A-01")
def test_a_table_limits_the_issuers_of_a_template(two_realm_server: Server) -> None:
    """Listed realms open and have a document; any other is unknown in both ways."""
    at = "/t/{}/mcp".format
    caller = two_realm_server.client.whoami(
        realm_token(two_realm_server, "Acme", "acme"), path=at("acme")
    )
    document = json.loads(two_realm_server.client.send("GET", f"{at('acme')}{WELL_KNOWN}").body)

    assert caller["tenant"] == "acme"
    assert document["authorization_servers"] == [two_realm_server.idp.issuer("realms/Acme")]
    with two_realm_server.nothing_runs():
        assert (
            two_realm_server.client.call(
                realm_token(two_realm_server, "acme", "acme"), path=at("acme")
            ).status
            == 401
        )
        attacker = realm_token(two_realm_server, "globex", "globex", "other")
        assert two_realm_server.client.call(attacker, path=at("globex")).status == 401
    unknown = two_realm_server.client.send("GET", f"{at('globex')}{WELL_KNOWN}")
    assert comparable_answer(unknown) == comparable_answer(
        two_realm_server.client.send("GET", "/nowhere")
    )


@pytest.mark.requirement("A-01", "A-05", "A-03")
@pytest.mark.parametrize("rule", [{"issuer": True}, {"claim": "tid"}, {}])
def test_the_table_fills_the_template_in_the_document(idp: Idp, rule: dict[str, Any]) -> None:
    """The address that every challenge names answers, and names issuers that clients can find."""
    with running_server(idp, [entra(idp, tenant=rule)]) as server:
        document = json.loads(server.client.send("GET", f"/mcp{WELL_KNOWN}").body)
        assert server.tenant_of(token(server)) == "acme"

    assert document["authorization_servers"] == [
        idp.issuer(f"{tid}/v2.0") for tid in (FIRST_TENANT, SECOND_TENANT)
    ]


def test_check_says_when_no_client_can_find_the_issuer(idp: Idp) -> None:
    """Without values for its template the document lists no issuer."""
    open_ = {"create_on_first_use": True}
    lost = [
        problem
        for problem in check_problems([realms(idp)], tenancy=open_)
        if problem.id == "authz.W007"
    ]
    by_claim = realms(idp, tenant={"claim": "org_id"}, tenants={"acme": "acme"})

    assert [(problem.setting, problem.level) for problem in lost] == [
        ("issuers[0].issuer", "warning")
    ]
    assert "authz.W007" in {problem.id for problem in check_problems([by_claim], REALMS)}
    assert "authz.W007" not in {
        problem.id for problem in check_problems([entra(idp, tenant={})], REALMS)
    }
    assert "authz.W003" in {problem.id for problem in check_problems([entra(idp)])}


def test_made_up_issuers_do_not_delay_a_new_tenant(idp: Idp) -> None:
    """Without a table the attacker's address uses up its own limit, not that of others."""
    settings = {
        "listen": {"trusted_proxies": ["127.0.0.1/32"]},
        "tenancy": {"create_on_first_use": True},
    }
    members = [f"33333333-aaaa-4bbb-8ccc-{number:012}" for number in range(10)]
    with running_server(idp, [entra(idp, tenants={})], **settings) as server:

        def status_of(org: str, peer: str) -> int:
            fields = [("X-Forwarded-For", peer), ("X-Forwarded-Proto", "https")]
            return server.client.call(token(server, org), fields=fields).status

        made_up = [
            status_of(f"44444444-aaaa-4bbb-8ccc-{number:012}", "192.0.2.66")
            for number in range(UNPROVEN + 1)
        ]
        for member in members:
            idp.issuer(f"{member}/v2.0", [f.jwk(rsa_key())])
        welcomed = [status_of(org, f"198.51.100.{at}") for at, org in enumerate(members, start=1)]

    assert set(made_up) == {503}
    assert welcomed == [200] * len(members)
