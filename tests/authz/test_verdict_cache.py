"""Verdicts remembered briefly, and everything that ends one."""

import msgspec
import pytest

from gatepost_authz import signature
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import RevokedToken
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verdict_cache import LIFETIME, VerdictCache, verdict_on
from gatepost_authz.verifier import key_of
from tests.authz.conftest import FORGE, ISSUER, NOW, RESOURCE, TARGET, VerifierGate
from tests.support.issuers import jwk, rsa_key
from tests.support.measuring import count_lines


class Versions(msgspec.Struct):
    version: int = 1


CALLER = TenantContext(
    tenant_id="acme",
    issuer="https://id.example.com",
    subject="alice",
    subject_kind="user",
    resource=RESOURCE,
    expires_at=NOW + 300,
)
KEY = key_of("token", RESOURCE, 1)


def cache_with_verdict(
    keys: Versions, *, capacity: int = 10, caller: TenantContext = CALLER, version: int = 1
) -> VerdictCache:
    verdicts = VerdictCache(capacity)
    verdicts.put(KEY, verdict_on(caller, keys=keys, version=version, now=NOW))
    return verdicts


def test_a_cached_verdict_returns_the_same_caller() -> None:
    """The token is not verified again while nothing has changed."""
    assert cache_with_verdict(Versions()).get(KEY, now=NOW + 1) is CALLER


@pytest.mark.requirement("N18", "N19", "N20")
@pytest.mark.parametrize(
    "key",
    [
        key_of("token2", RESOURCE, 1),
        key_of("Token", RESOURCE, 1),
        key_of("toke", RESOURCE, 1),
        key_of("token", RESOURCE + "/", 1),
        key_of("token", RESOURCE, 2),
    ],
)
def test_cache_keys_differ_by_token_resource_and_configuration(key: tuple[bytes, str, int]) -> None:
    """One changed byte of a token never finds the verdict of another token."""
    assert cache_with_verdict(Versions()).get(key, now=NOW) is None


@pytest.mark.requirement("N18", "N22")
@pytest.mark.parametrize(
    ("expires_at", "now", "hit"),
    [
        (NOW + 300, NOW, True),
        (NOW + 300, NOW + LIFETIME - 0.1, True),
        (NOW + 300, NOW + LIFETIME, False),
        (NOW + 5, NOW + 4.9, True),
        (NOW + 5, NOW + 5, False),
        (NOW, NOW, False),
        (NOW - 10, NOW, False),
        (NOW + 300, NOW - 0.1, False),
        (NOW + 300, NOW + 10**6, False),
    ],
)
def test_a_verdict_ends_with_the_token_or_after_a_minute(
    expires_at: int, now: float, hit: bool
) -> None:
    """The wall clock decides; setting it back ends every verdict made later."""
    caller = msgspec.structs.replace(CALLER, expires_at=expires_at)
    verdicts = cache_with_verdict(Versions(), caller=caller)

    assert (verdicts.get(KEY, now=now) is caller) is hit


@pytest.mark.requirement("N12", "N18")
def test_a_verdict_ends_when_its_issuer_removes_a_key() -> None:
    """This also holds if the key is removed while the verdict is being made."""
    keys = Versions()
    verdicts = cache_with_verdict(keys)
    keys.version += 1
    assert verdicts.get(KEY, now=NOW) is None

    late = cache_with_verdict(keys, version=1)
    assert late.get(KEY, now=NOW) is None


@pytest.mark.requirement("N21")
def test_tokens_that_have_expired_do_not_fill_the_cache() -> None:
    """Of 5,000 tokens one after another, each valid while the next 100 come."""
    keys = Versions()
    verdicts = VerdictCache(10_000)
    for number in range(5_000):
        caller = msgspec.structs.replace(CALLER, expires_at=NOW + number + 100)
        verdict = verdict_on(caller, keys=keys, version=1, now=NOW + number)
        verdicts.put(key_of(f"{number}", RESOURCE, 1), verdict)

    valid = [key_of(f"{number}", RESOURCE, 1) for number in range(4_950, 5_000)]
    assert all(verdicts.get(key, now=NOW + 5_000) for key in valid)
    assert len(verdicts) < 200  # 133 are expected


@pytest.mark.requirement("N21")
def test_a_thousand_new_tokens_replace_a_thousand_expired_ones() -> None:
    """A burst of short-lived tokens must not hold memory for as long as a server runs."""
    keys = Versions()
    verdicts = VerdictCache(10_000)
    for number in range(1_000):
        verdict = verdict_on(CALLER, keys=keys, version=1, now=NOW)
        verdicts.put(key_of(f"old {number}", RESOURCE, 1), verdict)
    later = CALLER.expires_at
    caller = msgspec.structs.replace(CALLER, expires_at=later + 100)
    for number in range(1_000):
        verdict = verdict_on(caller, keys=keys, version=1, now=later)
        verdicts.put(key_of(f"new {number}", RESOURCE, 1), verdict)

    assert len(verdicts) == 1_000
    assert all(verdicts.get(key_of(f"new {n}", RESOURCE, 1), now=later) for n in range(1_000))


@pytest.mark.requirement("N21")
def test_a_cache_slightly_too_small_still_finds_most_tokens() -> None:
    """Evicting the oldest entry would lose each token just before it comes again."""
    keys = Versions()
    verdicts = VerdictCache(500)
    tokens = [key_of(f"{n}", RESOURCE, 1) for n in range(600)]

    def hits() -> int:
        hit_count = 0
        for key in tokens:
            if verdicts.get(key, now=NOW) is not None:
                hit_count += 1
            else:
                verdicts.put(key, verdict_on(CALLER, keys=keys, version=1, now=NOW))
            assert len(verdicts) <= 500
        return hit_count

    assert hits() == 0
    for _ in range(5):
        hits()
    assert sum(hits() for _ in range(5)) > 5 * len(tokens) / 2  # 0.69 is expected


def test_a_token_that_is_verified_again_takes_no_second_cache_entry() -> None:
    """A new verdict each minute evicts no other token from a cache with room for all."""
    keys = Versions()
    verdicts = VerdictCache(3)
    tokens = [key_of(name, RESOURCE, 1) for name in "abc"]
    caller = msgspec.structs.replace(CALLER, expires_at=NOW + 10**6)
    for minute in range(10):
        now = NOW + minute * LIFETIME
        for key in tokens:
            assert verdicts.get(key, now=now) is None
            verdicts.put(key, verdict_on(caller, keys=keys, version=1, now=now))
        assert all(verdicts.get(key, now=now) is caller for key in tokens)


def test_a_smaller_cache_keeps_as_many_as_fit() -> None:
    """A reload may change the size; verdicts made under the old rules are dropped."""
    keys = Versions()
    verdicts = cache_with_verdict(keys)
    verdicts.restart(2)
    assert verdicts.get(KEY, now=NOW) is None
    for name in "abcde":
        verdict = verdict_on(CALLER, keys=keys, version=1, now=NOW)
        verdicts.put(key_of(name, RESOURCE, 2), verdict)
    assert len(verdicts) == 2


@pytest.mark.requirement("N21")
def test_a_cache_of_size_0_stores_no_verdict() -> None:
    """A deployment can turn the cache off."""
    assert cache_with_verdict(Versions(), capacity=0).get(KEY, now=NOW) is None


def test_finding_a_cached_verdict_takes_few_steps() -> None:
    """The number of tokens and their length do not matter."""
    verdicts = VerdictCache(10_000)
    keys = Versions()
    tokens = [f"{n:06}" * 120 for n in range(1_000)]
    for token in tokens:
        verdicts.put(key_of(token, RESOURCE, 1), verdict_on(CALLER, keys=keys, version=1, now=NOW))

    def rotation() -> None:
        for token in tokens:
            assert verdicts.get(key_of(token, RESOURCE, 1), now=NOW) is CALLER

    assert 0 < count_lines(rotation) < 20 * len(tokens)


class Refusing:
    """Admits a caller until it is told otherwise, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked, self.refuses = 0, False

    def __call__(self, caller: TenantContext) -> None:
        self.asked += 1
        if self.refuses:
            raise RevokedToken


@pytest.mark.requirement("N12", "N18", "N22")
async def test_a_known_token_is_admitted_again_each_minute_by_key_and_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signature is checked again only if the key has changed."""
    admit = Refusing()
    gate = VerifierGate(policy=Policy(tenancy=Tenancy(), admit=admit))
    token, checks = FORGE.token(), list[str]()
    first = await gate.accepted(token)
    real = signature.verify
    monkeypatch.setattr(
        signature, "verify", lambda parts, key: checks.append("checked") or real(parts, key)
    )
    for minute in range(1, 4):
        gate.clock.now = NOW + minute * LIFETIME
        assert gate.verifier.cached(token.encode(), TARGET) is None
        assert await gate.accepted(token) is first
        assert gate.verifier.cached(token.encode(), TARGET) is first
        assert (admit.asked, checks) == (1 + minute, [])

    gate.clock.now += LIFETIME
    admit.refuses = True
    assert (await gate.refused(token)).tenant == "acme"
    assert gate.verifier.cached(token.encode(), TARGET) is None
    admit.refuses = False
    gate.keys[ISSUER].publish([jwk(rsa_key())])
    assert await gate.accepted(token) is not first
    assert checks == ["checked"]
    gate.keys[ISSUER].keys = ()
    gate.clock.now += LIFETIME - 1
    assert (await gate.refused(FORGE.token(jti="2"))).reason == "unknown_key"
    gate.clock.now += 1
    assert (await gate.refused(token)).reason == "unknown_key"
