"""The key sets of all issuers: whose is whose, and what made-up and dead issuers cost."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatepost_authz.config import Introspection, Issuer, TenantRule
from gatepost_authz.errors import IssuerUnavailable
from gatepost_authz.fetch import Fetcher
from gatepost_authz.issuer_key_sets import PROVEN, UNPROVEN, UNPROVEN_OF_PEER, IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from tests.authz.conftest import WaitingClock, settled, until
from tests.support.issuers import Idp, Receive, Scope, Send, answer, jwk, rsa_key


@pytest.fixture
def idp(idp: Idp) -> Idp:
    """Return the identity provider as if it had just been started."""
    return idp.reset()


class TrustedKeySets:
    """All key sets behind one fetcher and one clock, and issuers to trust."""

    def __init__(self, idp: Idp) -> None:
        self.idp = idp
        self.clock = WaitingClock()
        self.fetcher = Fetcher(development=True)
        self.keys = IssuerKeySets(
            self.fetcher,
            monotonic=self.clock.monotonic,
            sleep=self.clock.sleep,
            random=lambda: 0.0,
        )

    def trust(self, name: str, **settings: Any) -> TrustedIssuer:
        """Return the issuer *name* of the provider, publishing the key of that name."""
        self.idp.issuer(name, [jwk(rsa_key(name), "main")])
        return trusted(self.idp.issuer(name), **settings)

    async def public_key(self, issuer: TrustedIssuer, name: str = "") -> object:
        """Return the key that verifies the issuer's tokens."""
        concrete = name or issuer.settings.issuer
        key = await asyncio.wait_for(
            self.keys.keys_of(concrete, issuer).wait_for("main", "RS256"), 10
        )
        return key[0].public_key if key else None


def trusted(issuer: str, **settings: Any) -> TrustedIssuer:
    usual = {"tenant": TenantRule(value="acme")} | settings
    return IssuerRegistry([Issuer(issuer=issuer, **usual)]).issuers[0]


@pytest.fixture
async def key_sets(idp: Idp) -> AsyncIterator[TrustedKeySets]:
    key_sets = TrustedKeySets(idp)
    yield key_sets
    await key_sets.keys.aclose()
    await key_sets.fetcher.aclose()


@pytest.mark.requirement("N16")
async def test_the_same_key_id_at_two_issuers_means_two_keys(key_sets: TrustedKeySets) -> None:
    """A key set is reached only through its issuer, so no key verifies another's tokens."""
    acme, globex = key_sets.trust("acme"), key_sets.trust("globex")

    assert await key_sets.public_key(acme) == rsa_key("acme").public_key()
    assert await key_sets.public_key(globex) == rsa_key("globex").public_key()


@pytest.mark.requirement("N17")
async def test_issuers_with_one_jwks_uri_have_separate_key_sets(key_sets: TrustedKeySets) -> None:
    """A change of one set does not affect the other."""
    acme = key_sets.trust("acme")
    shared = f"{key_sets.idp.base}/acme/jwks"
    other = trusted(key_sets.idp.issuer("other"), jwks_uri=shared)

    assert await key_sets.public_key(acme) == await key_sets.public_key(other)

    assert key_sets.idp.key_hits("acme") == 2
    first, second = (
        key_sets.keys.keys_of(trusted.settings.issuer, trusted) for trusted in (acme, other)
    )
    assert first is not second
    assert first.version != second.version


@pytest.mark.requirement("N10")
async def test_a_configured_jwks_uri_may_have_another_host(key_sets: TrustedKeySets) -> None:
    """No metadata is fetched; only URLs from metadata must be on the issuer's host."""
    key_sets.trust("keys-only")
    issuer = trusted(key_sets.idp.issuer("silent"), jwks_uri=f"{key_sets.idp.base}/keys-only/jwks")

    assert await key_sets.public_key(issuer) == rsa_key("keys-only").public_key()

    assert not any("well-known" in path for path in key_sets.idp.hits)


NO_SETS = [
    answer(body=b'{"keys":{}}'),
    answer(body=b'{"keys":[]}'),
    answer(body=b"{}"),
    answer(body=b"[]"),
    answer(body=b"<html>", content_type="text/html"),
    answer(body=json.dumps({"keys": [{"kty": "oct", "kid": "main", "k": "c2VjcmV0"}]}).encode()),
    answer(body=json.dumps({"keys": [{"kty": "RSA"}] * 101}).encode()),
    answer(500),
    answer(302, location="/acme/jwks"),
]


@pytest.mark.requirement("N05")
@pytest.mark.parametrize("document", NO_SETS)
async def test_an_invalid_key_set_document_keeps_the_previous_keys(
    key_sets: TrustedKeySets, document: Any
) -> None:
    """A token with another key id then leads to 503 instead of a refusal."""
    acme = key_sets.trust("acme")
    await key_sets.public_key(acme)
    key_sets.idp.replace("/acme/jwks", document)
    await key_sets.clock.advance(5)
    keys = key_sets.keys.keys_of(acme.settings.issuer, acme)

    with pytest.raises(IssuerUnavailable):
        await asyncio.wait_for(keys.wait_for("new", "RS256"), 10)

    assert keys.find("main", "RS256")


@pytest.mark.requirement("A16")
async def test_a_published_private_key_is_logged_as_an_error(
    key_sets: TrustedKeySets, caplog: pytest.LogCaptureFixture
) -> None:
    """The other keys of the set stay usable."""
    acme = key_sets.trust("acme")
    leaked = jwk(rsa_key("other"), "leaked") | {"d": "c2VjcmV0"}
    key_sets.idp.issuer("acme", [leaked, jwk(rsa_key("acme"), "main")])

    with caplog.at_level(logging.ERROR):
        assert await key_sets.public_key(acme)

    assert "leaked" in caplog.text
    assert "c2VjcmV0" not in caplog.text


async def test_metadata_is_fetched_again_when_its_jwks_uri_fails(key_sets: TrustedKeySets) -> None:
    """The keys have moved before the cached metadata expires."""
    acme = key_sets.trust("acme")
    await key_sets.public_key(acme)
    key_sets.idp.replace("/acme/jwks", answer(404))
    await key_sets.clock.advance(5)
    keys = key_sets.keys.keys_of(acme.settings.issuer, acme)
    with pytest.raises(IssuerUnavailable):
        await asyncio.wait_for(keys.wait_for("new", "RS256"), 10)
    moved = {"issuer": acme.settings.issuer, "jwks_uri": f"{key_sets.idp.base}/moved/jwks"}
    path = "/.well-known/oauth-authorization-server/acme"
    key_sets.idp.replace(path, answer(body=json.dumps(moved).encode()))
    key_sets.idp.issuer("moved", [jwk(rsa_key("moved"), "new")])
    await key_sets.clock.advance(5)

    assert await asyncio.wait_for(keys.wait_for("new", "RS256"), 10)


@pytest.mark.requirement("N01")
async def test_an_unresponsive_issuer_does_not_delay_others(key_sets: TrustedKeySets) -> None:
    """Five hundred requests wait for it while another issuer's keys are fetched."""
    dead, alive = key_sets.trust("dead"), key_sets.trust("alive")
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def stalled(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(release.wait(), loop))
        await answer(500)(scope, receive, send)

    key_sets.idp.replace("/dead/jwks", stalled)
    waiting = [asyncio.create_task(key_sets.public_key(dead)) for _ in range(500)]

    assert await asyncio.wait_for(key_sets.public_key(alive), 5)

    assert not any(task.done() for task in waiting)
    release.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert {type(outcome) for outcome in outcomes} == {IssuerUnavailable}


class Family:
    """A templated issuer at the provider: `{base}/{tid}/v2`."""

    def __init__(self, key_sets: TrustedKeySets) -> None:
        self.key_sets = key_sets
        self.trusted = trusted(
            f"{key_sets.idp.base}/{{tid}}/v2", tenant=TenantRule(issuer=True), tenants={}
        )

    def member(self, name: str) -> str:
        """Return the issuer URL of a member that exists."""
        self.key_sets.idp.issuer(f"{name}/v2", [jwk(rsa_key(), "main")])
        return self.key_sets.idp.issuer(f"{name}/v2")

    def unproven(self, number: int) -> str:
        """Return an issuer URL that fits the template and does not exist."""
        return f"{self.key_sets.idp.base}/absent-{number}/v2"


async def test_issuers_of_one_template_have_separate_key_sets(key_sets: TrustedKeySets) -> None:
    """The metadata of each issuer names that issuer."""
    family = Family(key_sets)
    first, two = family.member("one"), family.member("two")

    assert await key_sets.public_key(family.trusted, first)
    assert await key_sets.public_key(family.trusted, two)

    assert key_sets.keys.keys_of(first, family.trusted) is not key_sets.keys.keys_of(
        two, family.trusted
    )
    assert key_sets.keys.keys_of(first, family.trusted) is key_sets.keys.keys_of(
        first, family.trusted
    )


@pytest.mark.requirement("H05")
async def test_made_up_issuers_cannot_evict_issuers_with_keys(key_sets: TrustedKeySets) -> None:
    """A limited number of made-up issuers is looked up in each interval."""
    family = Family(key_sets)
    member = family.member("one")
    await key_sets.public_key(family.trusted, member)
    key_set = key_sets.keys.keys_of(member, family.trusted)
    for number in range(UNPROVEN):
        with pytest.raises(IssuerUnavailable):
            await key_sets.public_key(family.trusted, family.unproven(number))

    with pytest.raises(IssuerUnavailable) as refusal:
        key_sets.keys.keys_of(family.unproven(UNPROVEN), family.trusted)

    assert refusal.value.reason == "keys_too_many_issuers"
    assert key_sets.keys.keys_of(member, family.trusted) is key_set
    assert key_set.find("main", "RS256")
    await key_sets.clock.advance(5)
    assert not key_sets.keys.keys_of(family.unproven(UNPROVEN), family.trusted).has_keys
    late = family.member("two")
    assert await key_sets.public_key(family.trusted, late)


async def test_made_up_issuers_do_not_fill_the_log(
    key_sets: TrustedKeySets, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in ten seconds covers all of them; a configured issuer has its own line."""
    family = Family(key_sets)
    leaky = key_sets.idp.issuer(
        "leaky/v2", [{"kty": "oct", "k": "c2VjcmV0", "kid": f"k{n}"} for n in range(9)]
    )
    with caplog.at_level(logging.WARNING):
        for issuer in (*(family.unproven(number) for number in range(20)), leaky):
            with pytest.raises(IssuerUnavailable):
                await key_sets.public_key(family.trusted, issuer)
        # A server of another test may end meanwhile, and log what it could not fetch.
        own = [message for message in caplog.messages if key_sets.idp.base in message]
        assert len(own) == 2, caplog.messages
        with pytest.raises(IssuerUnavailable):
            await key_sets.public_key(trusted(f"{key_sets.idp.base}/gone"))
        assert f"{key_sets.idp.base}/gone" in caplog.messages[-1]
        await key_sets.clock.advance(10)
        with pytest.raises(IssuerUnavailable):
            await key_sets.public_key(family.trusted, family.unproven(100))

    mine = [record for record in caplog.records if "absent-100" in record.getMessage()]
    assert [vars(record)["times"] for record in mine] == [21]


async def test_made_up_issuers_are_limited_for_each_peer(key_sets: TrustedKeySets) -> None:
    """A /64 network is one peer, and failed lookups free the limit after the interval."""
    family = Family(key_sets)
    for number in range(UNPROVEN_OF_PEER):
        key_sets.keys.keys_of(
            family.unproven(number), family.trusted, peer=f"2001:db8::{number}"
        ).warm()
    for peer in ("2001:db8::ffff", "2001:db8:0:0:1::"):
        with pytest.raises(IssuerUnavailable, match="keys_too_many_issuers"):
            key_sets.keys.keys_of(family.unproven(100), family.trusted, peer=peer)

    assert key_sets.keys.keys_of(family.unproven(101), family.trusted, peer="2001:db8:0:1::1")
    assert key_sets.keys.keys_of(family.unproven(102), family.trusted, peer="192.0.2.1")
    await until(
        lambda: all(
            key_sets.keys.keys_of(family.unproven(number), family.trusted).failure
            for number in range(UNPROVEN_OF_PEER)
        )
    )
    await key_sets.clock.advance(5)
    assert key_sets.keys.keys_of(family.unproven(103), family.trusted, peer="2001:db8::ffff")


async def test_issuers_with_keys_do_not_count_towards_the_limit_of_a_peer(
    key_sets: TrustedKeySets,
) -> None:
    """A platform calls for many new issuers from one address."""
    family = Family(key_sets)
    for number in range(2 * UNPROVEN_OF_PEER):
        member = family.member(f"member-{number}")
        keys = key_sets.keys.keys_of(member, family.trusted, peer="192.0.2.1")
        assert await keys.wait_for("main", "RS256")


def test_the_limits_of_proven_and_unproven_issuers_have_their_values() -> None:
    """There is room for a thousand issuers with keys and for few made-up ones."""
    assert PROVEN == 1000
    assert UNPROVEN == 128
    assert UNPROVEN_OF_PEER == 8


async def test_keys_are_fetched_at_the_start_without_waiting(key_sets: TrustedKeySets) -> None:
    """The first request finds keys; for introspecting issuers only metadata is fetched."""
    acme, down = key_sets.trust("acme"), key_sets.trust("down")
    key_sets.idp.replace("/down/jwks", answer(503))
    client = Introspection(client_id="g", client_secret="env:S")
    introspected, lost = (
        key_sets.trust("asked", introspection=client),
        key_sets.trust("lost", introspection=client),
    )
    asks_at = {
        "issuer": introspected.settings.issuer,
        "introspection_endpoint": f"{key_sets.idp.base}/ask",
    }
    path = "/.well-known/oauth-authorization-server/asked"
    key_sets.idp.replace(path, answer(200, json.dumps(asks_at).encode()))
    every = [acme, down, introspected, lost, Family(key_sets).trusted]

    key_sets.keys.warm(every)

    assert [key_sets.keys.state_of(issuer) for issuer in every[:2]] == ["not_fetched"] * 2
    await until(
        lambda: "not_fetched" not in [key_sets.keys.state_of(issuer) for issuer in every[:2]]
    )
    await until(lambda: key_sets.keys.state_of(introspected) == "asked")
    states = [key_sets.keys.state_of(issuer) for issuer in every]
    assert states == ["ready", "status", "asked", "not_fetched", "template"]
    assert key_sets.idp.key_hits("asked") == 0


@pytest.mark.requirement("N18")
async def test_a_reload_keeps_key_sets_with_the_same_source(key_sets: TrustedKeySets) -> None:
    """A set with a new source is replaced, and verdicts made with the old set end."""
    acme = key_sets.trust("acme")
    issuer = acme.settings.issuer
    await key_sets.public_key(acme)
    before = key_sets.keys.keys_of(issuer, acme)

    same = trusted(issuer, tenants={"x": "globex"}, tenant=TenantRule(claim="org"))
    assert key_sets.keys.keys_of(issuer, same) is before
    version = before.version
    moved = trusted(issuer, jwks_uri=f"{key_sets.idp.base}/other/jwks")
    assert key_sets.keys.keys_of(issuer, moved) is not before
    narrower = trusted(issuer, algorithms=("ES256",))
    assert key_sets.keys.keys_of(issuer, narrower) is not before

    assert before.version > version
    assert not before.has_keys


@pytest.mark.requirement("N18")
async def test_an_issuer_that_is_no_longer_trusted_is_forgotten(key_sets: TrustedKeySets) -> None:
    """Its keys are removed, and those of every issuer of a removed template."""
    acme, globex, family = key_sets.trust("acme"), key_sets.trust("globex"), Family(key_sets)
    member = family.member("one")
    for issuer, name in [(acme, ""), (globex, ""), (family.trusted, member)]:
        await key_sets.public_key(issuer, name)
    gone = [
        key_sets.keys.keys_of(acme.settings.issuer, acme),
        key_sets.keys.keys_of(member, family.trusted),
    ]

    key_sets.keys.retain({globex.settings.issuer})

    assert not any(keys.has_keys for keys in gone)
    assert key_sets.keys.keys_of(globex.settings.issuer, globex).has_keys


async def test_closing_the_key_sets_ends_all_background_tasks(key_sets: TrustedKeySets) -> None:
    """No refresh or fetch continues."""
    acme = key_sets.trust("acme")
    await key_sets.public_key(acme)
    lookup = asyncio.create_task(
        key_sets.keys.keys_of(acme.settings.issuer, acme).wait_for("new", "RS256")
    )
    await settled()

    await key_sets.keys.aclose()

    with pytest.raises(IssuerUnavailable):
        await lookup
    assert [task for task in asyncio.all_tasks() if "https" in task.get_name()] == []
