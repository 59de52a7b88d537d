"""Opaque tokens: who is asked about them, what answers count, and for how long."""

import asyncio
from threading import Thread
from typing import Any

import pytest

from gatepost_authz.answer_cache import REMEMBERED, Memory, RandomCache
from gatepost_authz.config import Target
from gatepost_authz.errors import InvalidToken, IssuerUnavailable, WrongAudience
from gatepost_authz.introspector import MAX_RUNNING
from gatepost_authz.tenant import Policy
from tests.authz.conftest import NOW, TARGET, OpaqueTokenGate, tenant_target, until
from tests.support.issuers import b64


async def test_an_active_token_speaks_for_its_caller(opaque_gate: OpaqueTokenGate) -> None:
    """By the same claims, tenants and scopes as a signed one."""
    caller = await opaque_gate.verify()

    assert caller is not None
    assert (caller.tenant_id, caller.subject, caller.subject_kind) == ("acme", "alice", "user")
    assert caller.scopes == {"files:write", "files:read"}
    assert caller.issuer == opaque_gate.idp.issuer("id")
    assert opaque_gate.endpoint.asked == [{"token": "opaque", "token_type_hint": "access_token"}]


REFUSED_ANSWERS: list[tuple[str, dict[str, Any]]] = [
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
    ("no_subject", {"sub": None}),
    ("bad_sub", {"sub": ""}),
    ("bad_scope", {"scope": ["files:write"]}),
    ("sender_constrained", {"token_type": "DPoP"}),
    ("sender_constrained", {"cnf": {"jkt": "x"}}),
    ("wrong_kind", {"token_type": "refresh_token"}),
    ("wrong_kind", {"token_use": "refresh_token"}),
    ("wrong_kind", {"nonce": "n"}),
]


@pytest.mark.requirement("N24")
@pytest.mark.parametrize(("reason", "changes"), REFUSED_ANSWERS)
async def test_an_answer_that_does_not_open_this_resource_is_a_refusal(
    opaque_gate: OpaqueTokenGate, reason: str, changes: dict[str, Any]
) -> None:
    """Active is not enough: the rules for signed tokens hold."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**changes)

    assert await opaque_gate.refused(target=tenant_target("acme")) == reason


async def test_a_good_answer_counts_for_half_a_minute_at_most(opaque_gate: OpaqueTokenGate) -> None:
    """A revoked token works no longer than that, and never beyond its own end."""
    await opaque_gate.verify()
    opaque_gate.now += 29.9
    await opaque_gate.verify()
    assert len(opaque_gate.endpoint.asked) == 1
    opaque_gate.now += 0.1
    opaque_gate.endpoint.answer = {"active": False}
    assert await opaque_gate.refused() == "inactive"

    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(exp=int(opaque_gate.now) + 10)
    await opaque_gate.verify("short")
    opaque_gate.now += 10
    opaque_gate.endpoint.answer = {"active": False}
    assert await opaque_gate.refused(token="short") == "inactive"


async def test_a_refusal_says_whose_token_it_was_each_time(opaque_gate: OpaqueTokenGate) -> None:
    """Issuer, claim and tenant, also where the issuer is not asked again."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(exp=None)
    for _ in range(2):
        with pytest.raises(InvalidToken) as refusal:
            await opaque_gate.verify()
        assert refusal.value.reason == "missing_claim"
        assert refusal.value.claim == "exp"
        assert refusal.value.issuer == opaque_gate.idp.issuer("id")
        assert refusal.value.tenant == "acme"
    assert len(opaque_gate.endpoint.asked) == 1


async def test_a_refusal_counts_for_five_seconds(opaque_gate: OpaqueTokenGate) -> None:
    """A client in a loop asks us, not the issuer; and gets the same answer as the first time."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(aud="https://mcp.example.com/other")
    for _ in range(3):
        assert await opaque_gate.refused(WrongAudience) == "wrong_audience"
    assert len(opaque_gate.endpoint.asked) == 1

    opaque_gate.now += 5
    opaque_gate.endpoint.answer = None

    assert await opaque_gate.verify()


@pytest.mark.requirement("N19", "N20")
async def test_an_answer_belongs_to_the_whole_token(opaque_gate: OpaqueTokenGate) -> None:
    """One byte more is another token: neither poisoned by the other nor opened by it."""
    opaque_gate.endpoint.answer = {"active": False}
    await opaque_gate.refused(token="opaque-victim-")
    opaque_gate.endpoint.answer = None
    assert await opaque_gate.verify("opaque-victim")

    opaque_gate.endpoint.answer = {"active": False}
    assert await opaque_gate.refused(token="opaque-victi") == "inactive"
    assert await opaque_gate.verify("opaque-victim")


@pytest.mark.requirement("N18")
async def test_an_answer_ends_with_the_configuration_and_belongs_to_one_resource(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """After a reload the issuer may be gone or its rules others."""
    await opaque_gate.verify()
    await opaque_gate.refused(target=Target("https://mcp.example.com/x", TARGET.metadata_url))
    assert len(opaque_gate.endpoint.asked) == 2

    opaque_gate.trust(opaque_gate.issuer("id", tenants={"acme": "renamed"}))
    caller = await opaque_gate.verify()
    assert caller is not None
    assert caller.tenant_id == "renamed"
    assert len(opaque_gate.endpoint.asked) == 3

    opaque_gate.trust(opaque_gate.issuer("id", introspection=None))
    assert await opaque_gate.verify() is None


@pytest.mark.requirement("N14", "N15")
async def test_one_token_at_a_hundred_requests_is_introspected_once(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """And none of them ends it for the others."""
    opaque_gate.endpoint.open.clear()
    verifications = [asyncio.create_task(opaque_gate.verify()) for _ in range(100)]
    await until(lambda: opaque_gate.endpoint.asked)
    verifications[0].cancel()
    opaque_gate.endpoint.open.set()

    callers = await asyncio.gather(*verifications[1:])

    assert {caller and caller.subject for caller in callers} == {"alice"}
    assert len(opaque_gate.endpoint.asked) == 1


@pytest.mark.requirement("N21")
async def test_made_up_tokens_do_not_pile_up(opaque_gate: OpaqueTokenGate) -> None:
    """While the issuer is slow, so many requests wait; those beyond get 503 at once."""
    opaque_gate.endpoint.open.clear()
    verifications = [
        asyncio.create_task(opaque_gate.verify(f"made-up-{n}")) for n in range(MAX_RUNNING)
    ]
    await until(lambda: len(opaque_gate.endpoint.asked) == 10)

    reason = await opaque_gate.refused(IssuerUnavailable, token="one-more")

    assert reason == "introspection_too_many_requests"
    assert len(opaque_gate.endpoint.asked) == 10  # connections to one issuer
    opaque_gate.endpoint.open.set()
    await asyncio.wait_for(asyncio.gather(*verifications), 20)


@pytest.mark.requirement("N21")
def test_what_is_remembered_is_bounded() -> None:
    """However many tokens come, the newest is remembered with as many others as fit."""
    memory: Memory[int] = Memory(3)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(50)]
    for n, key in enumerate(keys):
        memory.put(key, n, now=0, until=10)
        assert memory.get(key, 1) == n

    assert len(memory) == 3
    assert sum(memory.get(key, 1) is not None for key in keys) == 3
    assert Memory[int]().capacity == REMEMBERED


def test_a_cache_that_lost_its_room_keeps_no_place_without_an_entry() -> None:
    """A reload may set its size to 0 while another thread stores an answer."""
    memory: Memory[int] = Memory(3)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(5)]
    memory.put(keys[0], 0, now=0, until=1)
    memory.capacity = 0
    for n, key in enumerate(keys[1:4], 1):
        memory.put(key, n, now=2, until=9)
    memory.capacity = 3
    memory.put(keys[4], 4, now=2, until=9)

    assert [memory.get(key, 3) for key in keys] == [None, None, None, None, 4]


@pytest.mark.requirement("N21")
def test_an_answer_that_was_renewed_is_kept_until_its_new_end() -> None:
    """Its place in the cache was made for the first answer, which ended long before."""
    memory: Memory[int] = Memory(100)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(50)]
    memory.put(keys[0], 0, now=0, until=1)
    memory.put(keys[0], 1, now=2, until=9)
    for n, key in enumerate(keys[1:], 1):
        memory.put(key, n, now=3, until=9)

    assert memory.get(keys[0], 3) == 1


@pytest.mark.requirement("N22")
def test_threads_that_fill_a_cache_at_once_leave_bounded_traces() -> None:
    """Two of them would replace the same place, and nothing would remove one entry."""
    cache = RandomCache[object, int](1)
    other = Thread(target=cache.keep, args=("other", 1))

    class Replaced:
        """A key that another thread replaces at the moment at which it is looked up."""

        def __hash__(self) -> int:
            if cache.entries and other.ident is None:
                other.start()
                other.join(0.05)
            return 1

    for key in (Replaced(), "new"):
        cache.keep(key, 2)
    other.join()

    assert len(cache.entries) == 1


def test_an_entry_that_another_thread_replaced_does_not_end() -> None:
    """Its reader found the one before; and a key that is gone must not come back."""
    cache = RandomCache[str, list[int]](1)
    old, new = [1], [2]
    cache.keep("key", old)
    cache.keep("key", new)
    cache.end("key", old)
    assert cache.entries == {"key": new}
    cache.end("key", new)
    assert cache.entries == {"key": None}
    cache.drop(lambda _: True)
    cache.end("key", new)
    assert cache.entries == {}


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
    opaque_gate: OpaqueTokenGate, token: str
) -> None:
    """It may be another issuer's, and this one could use it there."""
    assert await opaque_gate.verify(token) is None
    assert opaque_gate.endpoint.asked == []


async def test_with_several_issuers_the_tenant_in_the_path_decides(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """They are never tried in turn: each would see the others' tokens."""
    ours = opaque_gate.issuer("id", tenants={"acme": "acme"})
    theirs = opaque_gate.issuer("rival", tenants={"globex": "globex"})
    opaque_gate.trust(ours, theirs)
    assert await opaque_gate.refused() == "undecided_issuer"
    assert opaque_gate.endpoint.asked == []

    caller = await opaque_gate.verify(target=tenant_target("acme"))

    assert caller is not None
    assert caller.issuer == ours.issuer
    assert await opaque_gate.verify(target=tenant_target("initech")) is None
    assert len(opaque_gate.endpoint.asked) == 1


async def test_an_issuer_that_leaves_the_subject_out_for_clients(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Only where the preset says that it means the client; elsewhere all users would be one."""
    opaque_gate.trust(opaque_gate.issuer("id", preset="oidc-provider"))
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(sub=None)

    caller = await opaque_gate.verify()

    assert caller is not None
    assert (caller.subject, caller.subject_kind) == ("client-1", "client")


async def test_loopback_issuers_and_development_tokens_are_for_development(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Any attacker can run one."""
    opaque_gate.verifier.policy = Policy()

    assert await opaque_gate.verify() is None
    assert opaque_gate.endpoint.asked == []


@pytest.mark.parametrize("head", ['{ "alg":"dir"}', '{\n"alg":"dir"}', '{\r\n "alg":"dir"}'])
async def test_an_encrypted_token_is_shown_to_no_issuer_however_its_header_is_laid_out(
    opaque_gate: OpaqueTokenGate, head: str
) -> None:
    """It is another issuer's, and a reader of the page could use it."""
    token = f"{b64(head.encode())}..iv.text.tag"

    assert await opaque_gate.verifier.verify(token, TARGET) is None
    assert opaque_gate.endpoint.asked == []
