"""Opaque tokens: who is asked about them, what answers count, and for how long."""

import asyncio
from threading import Thread
from typing import Any

import pytest

from gatepost_authz.answer_cache import REMEMBERED, AnswerCache, RandomCache
from gatepost_authz.errors import InvalidToken, IssuerUnavailable, WrongAudience
from gatepost_authz.introspector import MAX_RUNNING
from gatepost_authz.protected_resource import Target
from gatepost_authz.tenant import Policy
from tests.authz.conftest import NOW, TARGET, OpaqueTokenGate, tenant_target, until
from tests.support.issuers import base64url_encoded


async def test_an_active_opaque_token_identifies_its_caller(opaque_gate: OpaqueTokenGate) -> None:
    """Claims, tenants and scopes follow the same rules as in a signed token."""
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
async def test_an_active_token_that_breaks_a_claim_rule_is_refused(
    opaque_gate: OpaqueTokenGate, reason: str, changes: dict[str, Any]
) -> None:
    """The rules for signed tokens also apply to introspection responses."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**changes)

    assert await opaque_gate.refused(target=tenant_target("acme")) == reason


async def test_an_active_response_is_cached_for_30_seconds_at_most(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A revoked token works no longer than that, and no token beyond its expiry."""
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


async def test_a_cached_refusal_has_the_issuer_claim_and_tenant(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The issuer is asked only once."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(exp=None)
    for _ in range(2):
        with pytest.raises(InvalidToken) as refusal:
            await opaque_gate.verify()
        assert refusal.value.reason == "missing_claim"
        assert refusal.value.claim == "exp"
        assert refusal.value.issuer == opaque_gate.idp.issuer("id")
        assert refusal.value.tenant == "acme"
    assert len(opaque_gate.endpoint.asked) == 1


async def test_a_refusal_is_cached_for_five_seconds(opaque_gate: OpaqueTokenGate) -> None:
    """A client that retries in a loop gets the cached refusal without a request to the issuer."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(aud="https://mcp.example.com/other")
    for _ in range(3):
        assert await opaque_gate.refused(WrongAudience) == "wrong_audience"
    assert len(opaque_gate.endpoint.asked) == 1

    opaque_gate.now += 5
    opaque_gate.endpoint.answer = None

    assert await opaque_gate.verify()


@pytest.mark.requirement("N19", "N20")
async def test_a_response_is_cached_for_the_whole_token(opaque_gate: OpaqueTokenGate) -> None:
    """A token with one more byte neither uses nor changes the cached response."""
    opaque_gate.endpoint.answer = {"active": False}
    await opaque_gate.refused(token="opaque-victim-")
    opaque_gate.endpoint.answer = None
    assert await opaque_gate.verify("opaque-victim")

    opaque_gate.endpoint.answer = {"active": False}
    assert await opaque_gate.refused(token="opaque-victi") == "inactive"
    assert await opaque_gate.verify("opaque-victim")


@pytest.mark.requirement("N18")
async def test_a_cached_response_is_valid_for_one_resource_and_configuration(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A reload may remove the issuer or change its rules."""
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
async def test_simultaneous_requests_introspect_a_token_once(opaque_gate: OpaqueTokenGate) -> None:
    """A request that is cancelled does not end the introspection for the others."""
    opaque_gate.endpoint.open.clear()
    verifications = [asyncio.create_task(opaque_gate.verify()) for _ in range(100)]
    await until(lambda: opaque_gate.endpoint.asked)
    verifications[0].cancel()
    opaque_gate.endpoint.open.set()

    callers = await asyncio.gather(*verifications[1:])

    assert {caller and caller.subject for caller in callers} == {"alice"}
    assert len(opaque_gate.endpoint.asked) == 1


@pytest.mark.requirement("N21")
async def test_requests_with_made_up_tokens_are_limited(opaque_gate: OpaqueTokenGate) -> None:
    """A limited number waits for a slow issuer; further requests get 503 at once."""
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
def test_the_response_cache_is_bounded() -> None:
    """The newest response is always cached."""
    memory: AnswerCache[int] = AnswerCache(3)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(50)]
    for n, key in enumerate(keys):
        memory.put(key, n, now=0, until=10)
        assert memory.get(key, 1) == n

    assert len(memory) == 3
    assert sum(memory.get(key, 1) is not None for key in keys) == 3
    assert AnswerCache[int]().capacity == REMEMBERED


def test_shrinking_the_response_cache_to_0_leaves_no_empty_entry() -> None:
    """A reload may set its size to 0 while another thread stores an answer."""
    memory: AnswerCache[int] = AnswerCache(3)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(5)]
    memory.put(keys[0], 0, now=0, until=1)
    memory.capacity = 0
    for n, key in enumerate(keys[1:4], 1):
        memory.put(key, n, now=2, until=9)
    memory.capacity = 3
    memory.put(keys[4], 4, now=2, until=9)

    assert [memory.get(key, 3) for key in keys] == [None, None, None, None, 4]


@pytest.mark.requirement("N21")
def test_a_renewed_response_is_cached_until_its_new_expiry() -> None:
    """The cache entry was created for the first response, which has expired."""
    memory: AnswerCache[int] = AnswerCache(100)
    keys = [(bytes([n]), "issuer", "resource", 1) for n in range(50)]
    memory.put(keys[0], 0, now=0, until=1)
    memory.put(keys[0], 1, now=2, until=9)
    for n, key in enumerate(keys[1:], 1):
        memory.put(key, n, now=3, until=9)

    assert memory.get(keys[0], 3) == 1


@pytest.mark.requirement("N22")
def test_the_cache_stays_bounded_when_several_threads_fill_it() -> None:
    """Two threads that replace the same entry must not leave one behind."""
    cache = RandomCache[object, int](1)
    other = Thread(target=cache.set_entry, args=("other", 1))

    class Replaced:
        """A key that another thread replaces at the moment at which it is looked up."""

        def __hash__(self) -> int:
            if cache.entries and other.ident is None:
                other.start()
                other.join(0.05)
            return 1

    for key in (Replaced(), "new"):
        cache.set_entry(key, 2)
    other.join()

    assert len(cache.entries) == 1


def test_ending_an_entry_does_not_remove_its_replacement() -> None:
    """Another thread may have replaced the entry, or removed its key."""
    cache = RandomCache[str, list[int]](1)
    old, new = [1], [2]
    cache.set_entry("key", old)
    cache.set_entry("key", new)
    cache.end("key", old)
    assert cache.entries == {"key": new}
    cache.end("key", new)
    assert cache.entries == {"key": None}
    cache.drop(lambda _: True)
    cache.end("key", new)
    assert cache.entries == {}


def test_setting_the_clock_back_ends_cached_responses() -> None:
    """Otherwise a step of a day would keep a revoked token valid for a day."""
    memory: AnswerCache[int] = AnswerCache()
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
async def test_tokens_that_look_signed_are_never_introspected(
    opaque_gate: OpaqueTokenGate, token: str
) -> None:
    """The token may be another issuer's, and the endpoint's operator could use it there."""
    assert await opaque_gate.verify(token) is None
    assert opaque_gate.endpoint.asked == []


async def test_the_tenant_in_the_path_selects_the_introspecting_issuer(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Trying issuers in turn would show each one the others' tokens."""
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


async def test_a_missing_subject_means_the_client_if_the_preset_says_so(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Under other presets, all users of a client would become one caller."""
    opaque_gate.trust(opaque_gate.issuer("id", preset="oidc-provider"))
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(sub=None)

    caller = await opaque_gate.verify()

    assert caller is not None
    assert (caller.subject, caller.subject_kind) == ("client-1", "client")


async def test_loopback_issuers_and_development_tokens_are_refused_in_production(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Any attacker can run such an issuer."""
    opaque_gate.verifier.policy = Policy()

    assert await opaque_gate.verify() is None
    assert opaque_gate.endpoint.asked == []


@pytest.mark.parametrize("head", ['{ "alg":"dir"}', '{\n"alg":"dir"}', '{\r\n "alg":"dir"}'])
async def test_an_encrypted_token_is_never_introspected(
    opaque_gate: OpaqueTokenGate, head: str
) -> None:
    """Another issuer made the token, and white space in its header must not hide that."""
    token = f"{base64url_encoded(head.encode())}..iv.text.tag"

    assert await opaque_gate.verifier.verify(token, TARGET) is None
    assert opaque_gate.endpoint.asked == []
