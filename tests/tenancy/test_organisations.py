"""First shape: issuers whose tokens name the organisation in a claim."""

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import (
    Server,
    check_errors,
    check_problems,
    issuer_settings,
    running_server,
)

OPEN_TENANCY = {"create_on_first_use": True}


def hashed_tenant(issuer: str, value: str) -> str:
    """Return the tenant id of a value outside the grammar, as the design page defines it."""
    digest = hashlib.sha256(issuer.encode() + b"\0" + value.encode()).digest()
    return "t-" + base64.b32encode(digest).decode().lower()[:26]


@pytest.fixture(scope="module")
def open_server(idp: Idp) -> Iterator[Server]:
    """Yield a server with one issuer, whose tokens may name any tenant."""
    with running_server(idp, [issuer_settings(idp)], tenancy=OPEN_TENANCY) as server:
        yield server


@pytest.fixture(scope="module")
def closed_server(idp: Idp) -> Iterator[Server]:
    """Yield a server with one issuer, whose table names all tenants."""
    table = {"acme": "acme", "org_AbC": "globex", "ACME": "shouting"}
    with running_server(idp, [issuer_settings(idp, tenants=table)], tenancy=OPEN_TENANCY) as server:
        yield server


@pytest.mark.requirement("A6", "C29")
@pytest.mark.parametrize("value", ["acme", "0", "a-b_c", "x" * 63])
def test_an_organisation_within_the_grammar_is_the_tenant(open_server: Server, value: str) -> None:
    """Ids that are valid tenant ids need no configuration."""
    assert open_server.tenant_of(open_server.token(org_id=value)) == value


HASHED_VALUES = [
    "Acme", "ACME", "org_AbCdEf", "-acme", "_acme", "x" * 64, "ac me", " acme", "acme ", "acmé",
    "../acme", "acme/..", "acme%2e", ".", "t-" + "a" * 26, "\uff41cme", "acme:globex",
]  # fmt: skip


@pytest.mark.requirement("A6", "C29")
@each("value", HASHED_VALUES)
def test_any_other_organisation_gets_an_id_of_its_own(open_server: Server, value: str) -> None:
    """An id names a folder, so no lower-casing, cut or cleaning turns it into another's id."""
    token = open_server.token(org_id=value)

    assert open_server.tenant_of(token) == hashed_tenant(open_server.idp.issuer("main"), value)


def test_two_organisations_never_share_a_tenant(open_server: Server) -> None:
    """Spellings that a file system or a careless comparison takes for the same stay apart."""
    values = ["acme", *HASHED_VALUES]
    tenants = {open_server.tenant_of(open_server.token(org_id=value)) for value in values}

    assert len(tenants) == len(values)


def test_an_organisation_cannot_take_the_id_that_anothers_name_hashes_to(
    open_server: Server,
) -> None:
    """Gatepost hashes again the name of an organisation that looks like a hashed id."""
    victim = hashed_tenant(open_server.idp.issuer("main"), "Acme")

    assert open_server.tenant_of(open_server.token(org_id=victim)) != victim


@pytest.mark.requirement("C29")
@each(
    "value",
    [None, "", [], ["acme"], {"id": "acme"}, 1, True, "acme\n", "acme\x00", "a\u202ecme",
     "x" * 5000],
    ids=repr,
)  # fmt: skip
@each("server", ["open_server", "closed_server"])
def test_an_invalid_claim_value_names_no_tenant(
    request: pytest.FixtureRequest, server: str, value: Any
) -> None:
    """There is no default tenant."""
    home: Server = request.getfixturevalue(server)

    assert home.tenant_of(home.token(org_id=value)) is None


@pytest.mark.requirement("C29")
@pytest.mark.parametrize(
    ("value", "tenant"),
    [("acme", "acme"), ("org_AbC", "globex"), ("ACME", "shouting"), ("Acme", None),
     ("globex", None), ("initech", None), ("org_abc", None), ("acme ", None)],
)  # fmt: skip
def test_only_exact_values_of_the_table_name_a_tenant(
    closed_server: Server, value: str, tenant: str | None
) -> None:
    """Exact values only, also where other tenants could be created on first use."""
    assert closed_server.tenant_of(closed_server.token(org_id=value)) == tenant


@pytest.mark.requirement("C29")
def test_a_tenant_without_configuration_is_unknown(idp: Idp) -> None:
    """Without `create_on_first_use`, only tenants of some setting exist."""
    tenancy = {"create_on_first_use": False, "tenants": ["acme"]}
    with running_server(idp, [issuer_settings(idp)], tenancy=tenancy) as server:
        assert server.tenant_of(server.token(org_id="acme")) == "acme"
        assert server.tenant_of(server.token(org_id="globex")) is None
        assert server.tenant_of(server.token(org_id="Acme")) is None


def test_a_mapped_name_is_not_mapped_again(idp: Idp) -> None:
    """A table that swaps two names swaps them once."""
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "globex", "globex": "acme"})]
    ) as server:
        assert server.tenant_of(server.token(org_id="acme")) == "globex"
        assert server.tenant_of(server.token(org_id="globex")) == "acme"


@pytest.fixture(scope="module")
def two_issuers(idp: Idp) -> Iterator[Server]:
    """Yield a server with two issuers that share a tenant; both have an `acme`, which differ."""
    issuers = [
        issuer_settings(idp, "a", tenants={"acme": "acme", "both": "shared"}),
        issuer_settings(
            idp, "b", tenants={"globex": "globex", "acme": "acme-of-b", "both": "shared"}
        ),
    ]
    with running_server(idp, issuers, tenancy=OPEN_TENANCY) as server:
        yield server


@pytest.mark.requirement("A6", "C11")
@pytest.mark.parametrize(
    ("name", "value", "tenant"),
    [("a", "acme", "acme"), ("b", "acme", "acme-of-b"), ("b", "globex", "globex"),
     ("a", "globex", None), ("a", "acme-of-b", None), ("a", "both", "shared"),
     ("b", "both", "shared")],
)  # fmt: skip
def test_two_issuers_share_a_tenant_only_where_both_tables_name_it(
    two_issuers: Server, name: str, value: str, tenant: str | None
) -> None:
    """B's administrator can write any claim into B's tokens; A's tenants stay A's."""
    assert two_issuers.tenant_of(two_issuers.token(name, org_id=value)) == tenant


@pytest.mark.requirement("A6", "C29")
def test_an_issuer_without_a_table_cannot_name_another_issuers_tenant(idp: Idp) -> None:
    """Issuer B claims A's tenant: refused; B's own tenants are created."""
    issuers = [issuer_settings(idp, "a", tenant={"value": "acme"}), issuer_settings(idp, "b")]
    with running_server(idp, issuers, tenancy=OPEN_TENANCY) as server:
        assert server.tenant_of(server.token("a", org_id="anything")) == "acme"
        assert server.tenant_of(server.token("b", org_id="globex")) == "globex"
        assert server.tenant_of(server.token("b", org_id="acme")) is None


@pytest.mark.requirement("A6", "C29")
def test_a_disabled_issuer_keeps_its_tenants(idp: Idp) -> None:
    """Another issuer cannot name A's tenants after A is disabled."""
    issuers = [
        issuer_settings(idp, "a", tenant={"value": "acme"}, enabled=False),
        issuer_settings(idp, "b"),
    ]
    with running_server(idp, issuers, tenancy=OPEN_TENANCY) as server:
        assert server.tenant_of(server.token("a")) is None
        assert server.tenant_of(server.token("b", org_id="acme")) is None
        assert server.tenant_of(server.token("b", org_id="globex")) == "globex"


@pytest.mark.requirement("A6", "C29")
def test_two_issuers_without_tables_admit_no_caller(idp: Idp) -> None:
    """A server that skips `check` does not admit more callers by a configuration it refuses."""
    issuers = [issuer_settings(idp, "a"), issuer_settings(idp, "b")]
    with running_server(idp, issuers, tenancy=OPEN_TENANCY, checked=False) as server:
        assert server.tenant_of(server.token("a", org_id="acme")) is None
        assert server.tenant_of(server.token("b", org_id="acme")) is None


def test_check_demands_tables_where_several_issuers_map_claims(idp: Idp) -> None:
    """Each issuer without a table is named; a fixed value is no mapping."""
    a, b = issuer_settings(idp, "a"), issuer_settings(idp, "b")
    table = {"tenants": {"acme": "acme"}}
    settings = [problem.setting for problem in check_problems([a, b]) if problem.id == "authz.E019"]

    assert settings == ["issuers[0].tenants", "issuers[1].tenants"]
    assert check_errors([a | table, b]) == ["authz.E019"]
    assert check_errors([a | table, b | {"tenants": {"x": "globex"}}]) == []
    assert check_errors([a | {"tenant": {"value": "acme"}}, b], tenancy=OPEN_TENANCY) == []


def test_check_refuses_a_tenant_that_a_value_and_a_table_share(idp: Idp) -> None:
    """Sharing is said on both sides, in the tables."""
    a = issuer_settings(idp, "a", tenant={"value": "acme"})
    b = issuer_settings(idp, "b", tenants={"acme": "acme"})

    assert check_errors([a, b]) == ["authz.E020"]
