"""Opaque tokens: who is asked about them, what answers count, and for how long."""

import asyncio
from typing import Any

import pytest

from gatepost_authz.config import Target
from gatepost_authz.errors import IssuerUnavailable, WrongAudience
from gatepost_authz.introspection import QUESTIONS, REMEMBERED, Memory
from gatepost_authz.tenant import Policy
from tests.authz.clock import until
from tests.authz.office import NOW, TARGET, Office, tenant_target


async def test_an_active_token_speaks_for_its_caller(office: Office) -> None:
    """By the same claims, tenants and scopes as a signed one."""
    caller = await office.verify()

    assert caller is not None
    assert (caller.tenant_id, caller.subject, caller.subject_kind) == ("acme", "alice", "user")
    assert caller.scopes == {"files:write", "files:read"}
    assert caller.issuer == office.idp.issuer("id")
    assert office.desk.asked == [{"token": "opaque", "token_type_hint": "access_token"}]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("inactive", {"active": False}),
    ("inactive", {"active": "true"}),
    ("inactive", {"active": 1}),
    ("inactive", {"active": None}),
    ("no_audience", {"aud": None}),
    ("wrong_audience", {"aud": "https://mcp.example.com/other"}),
    ("wrong_audience", {"aud": ["client-1"]}),
    ("tenant_of_another_resource", {"org_id": "globex"}),
    ("unknown_tenant", {"org_id": "initech"}),
    ("no_tenant", {"org_id": None}),
    ("wrong_issuer", {"iss": "https://rival.example.com"}),
    ("missing_claim", {"exp": None}),
    ("expired", {"exp": NOW - 60}),
    ("bad_exp", {"exp": str(NOW + 300)}),
    ("not_yet_valid", {"nbf": NOW + 600}),
    ("missing_claim", {"sub": None}),
    ("bad_sub", {"sub": ""}),
    ("bad_scope", {"scope": ["files:write"]}),
    ("sender_constrained", {"token_type": "DPoP"}),
    ("sender_constrained", {"cnf": {"jkt": "x"}}),
    ("wrong_kind", {"token_type": "refresh_token"}),
    ("wrong_kind", {"token_use": "refresh_token"}),
    ("wrong_kind", {"nonce": "n"}),
]


@pytest.mark.requirement("N24")
@pytest.mark.parametrize(("reason", "changes"), REFUSED)
async def test_an_answer_that_does_not_open_this_resource_is_a_refusal(
    office: Office, reason: str, changes: dict[str, Any]
) -> None:
    """Active is not enough: the rules for signed tokens hold."""
    office.desk.answer = office.desk.good(**changes)

    assert await office.refused(target=tenant_target("acme")) == reason


async def test_a_good_answer_counts_for_half_a_minute_at_most(office: Office) -> None:
    """A revoked token works no longer than that, and never beyond its own end."""
    await office.verify()
    office.now += 29.9
    await office.verify()
    assert len(office.desk.asked) == 1
    office.now += 0.1
    office.desk.answer = {"active": False}
    assert await office.refused() == "inactive"

    office.desk.answer = office.desk.good(exp=int(office.now) + 10)
    await office.verify("short")
    office.now += 10
    office.desk.answer = {"active": False}
    assert await office.refused(token="short") == "inactive"


async def test_a_refusal_counts_for_five_seconds(office: Office) -> None:
    """A client in a loop asks us, not the issuer; and hears the same as the first time."""
    office.desk.answer = office.desk.good(aud="https://mcp.example.com/other")
    for _ in range(3):
        assert await office.refused(WrongAudience) == "wrong_audience"
    assert len(office.desk.asked) == 1

    office.now += 5
    office.desk.answer = None

    assert await office.verify()


@pytest.mark.requirement("N19", "N20")
async def test_an_answer_belongs_to_the_whole_token(office: Office) -> None:
    """One byte more is another token: neither poisoned by the other nor opened by it."""
    office.desk.answer = {"active": False}
    await office.refused(token="opaque-victim-")
    office.desk.answer = None
    assert await office.verify("opaque-victim")

    office.desk.answer = {"active": False}
    assert await office.refused(token="opaque-victi") == "inactive"
    assert await office.verify("opaque-victim")


@pytest.mark.requirement("N18")
async def test_an_answer_ends_with_the_configuration_and_belongs_to_one_resource(
    office: Office,
) -> None:
    """After a reload the issuer may be gone or its rules others."""
    await office.verify()
    await office.refused(target=Target("https://mcp.example.com/x", TARGET.metadata_url))
    assert len(office.desk.asked) == 2

    office.trust(office.issuer("id", tenants={"acme": "renamed"}))
    caller = await office.verify()
    assert caller is not None
    assert caller.tenant_id == "renamed"
    assert len(office.desk.asked) == 3

    office.trust(office.issuer("id", introspection=None))
    assert await office.verify() is None


@pytest.mark.requirement("N14", "N15")
async def test_one_token_at_a_hundred_requests_is_one_question(office: Office) -> None:
    """And none of them ends it for the others."""
    office.desk.open.clear()
    asked = [asyncio.create_task(office.verify()) for _ in range(100)]
    await until(lambda: office.desk.asked)
    asked[0].cancel()
    office.desk.open.set()

    callers = await asyncio.gather(*asked[1:])

    assert {caller and caller.subject for caller in callers} == {"alice"}
    assert len(office.desk.asked) == 1


@pytest.mark.requirement("N21")
async def test_made_up_tokens_do_not_pile_up(office: Office) -> None:
    """While the issuer is slow, so many questions wait; those beyond hear 503 at once."""
    office.desk.open.clear()
    asked = [asyncio.create_task(office.verify(f"made-up-{n}")) for n in range(QUESTIONS)]
    await until(lambda: len(office.desk.asked) == 10)

    reason = await office.refused(IssuerUnavailable, token="one-more")

    assert reason == "introspection_too_many_questions"
    assert len(office.desk.asked) == 10  # connections to one issuer
    office.desk.open.set()
    await asyncio.wait_for(asyncio.gather(*asked), 20)


@pytest.mark.requirement("N21")
def test_what_is_remembered_is_bounded() -> None:
    """However many tokens come, the least used are forgotten first."""
    memory: Memory[int] = Memory(3)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(5)]
    for n, key in enumerate(keys[:3]):
        memory.put(key, n, now=0, until=10)
    assert memory.get(keys[0], 1) == 0
    for n, key in enumerate(keys[3:]):
        memory.put(key, n, now=0, until=10)

    assert len(memory) == 3
    assert memory.get(keys[0], 1) == 0
    assert memory.get(keys[1], 1) is None
    assert Memory[int]().capacity == REMEMBERED


@pytest.mark.requirement("N22")
def test_a_clock_that_steps_back_ends_what_was_remembered() -> None:
    """Otherwise a step of a day would keep a revoked token alive for a day."""
    memory: Memory[int] = Memory()
    key = (b"x", "issuer", "resource", 1)
    memory.put(key, 1, now=1000, until=1030)

    assert memory.get(key, 999) is None
    assert memory.get(key, 1001) is None


@pytest.mark.parametrize(
    "token",
    [
        "eyJhbGciOiJSUzI1NiJ9.e30.c2ln",
        "eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..iv.text.tag",
        "eyJhbGciOiJSUzI1NiJ9.e30",
        "eA.b.c",
    ],
)
async def test_what_looks_signed_is_never_shown_to_an_introspection_endpoint(
    office: Office, token: str
) -> None:
    """It may be another issuer's, and this one could use it there."""
    assert await office.verify(token) is None
    assert office.desk.asked == []


async def test_with_several_issuers_the_tenant_in_the_path_decides(office: Office) -> None:
    """They are never tried in turn: each would see the others' tokens."""
    ours = office.issuer("id", tenants={"acme": "acme"})
    theirs = office.issuer("rival", tenants={"globex": "globex"})
    office.trust(ours, theirs)
    assert await office.refused() == "undecided_issuer"
    assert office.desk.asked == []

    caller = await office.verify(target=tenant_target("acme"))

    assert caller is not None
    assert caller.issuer == ours.issuer
    assert await office.verify(target=tenant_target("initech")) is None
    assert len(office.desk.asked) == 1


async def test_an_issuer_that_leaves_the_subject_out_for_clients(office: Office) -> None:
    """Only where the preset says that it means the client; elsewhere all users would be one."""
    office.trust(office.issuer("id", preset="oidc-provider"))
    office.desk.answer = office.desk.good(sub=None)

    caller = await office.verify()

    assert caller is not None
    assert (caller.subject, caller.subject_kind) == ("client-1", "client")


async def test_loopback_issuers_and_development_tokens_are_for_development(
    office: Office,
) -> None:
    """Anybody with a laptop can run one."""
    office.verifier.policy = Policy()

    assert await office.verify() is None
    assert office.desk.asked == []
