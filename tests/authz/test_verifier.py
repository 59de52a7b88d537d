"""From a token to a caller, and which requests the verification never makes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz import InvalidToken, IssuerUnavailable, Target, TenantContext, Verifiers
from gatepost_authz.config import TenantRule
from gatepost_authz.jwk import VerificationKey
from gatepost_authz.tenant import Policy, Tenancy
from tests.authz.conftest import (
    FORGE,
    ISSUER,
    NOW,
    RESOURCE,
    RIVAL_ISSUER,
    TARGET,
    FrozenForge,
    PublishedKeys,
    VerifierGate,
    issuer,
)
from tests.support.issuers import ABSENT, ec_key, ed_key, jwk, rsa_key, signer
from tests.support.measuring import each

OTHER_KEY = rsa_key("other")


def signed_by(key: Any, algorithm: str = "RS256", **header: Any) -> str:
    return FORGE.token(header={"alg": algorithm} | header, sign=signer(key, algorithm))


async def test_a_good_token_gives_its_caller() -> None:
    """The caller has tenant, subject, implied scopes and the checked resource."""
    caller = await VerifierGate().accepted(FORGE.token(scope="files:write"))

    assert caller.principal_key == ("acme", ISSUER, "user", "alice")
    assert caller.scopes == {"files:read", "files:write"}
    assert caller.resource == RESOURCE


REFUSED_WITHOUT_KEYS: list[tuple[str, str, Callable[[], str]]] = [
    ("A01", "refused_algorithm", lambda: FORGE.token(header={"alg": "none"}, sign=lambda d: b"")),
    ("A04", "refused_algorithm", lambda: signed_by(b"k" * 32, "HS256")),
    ("A09", "algorithm_not_allowed", lambda: signed_by(rsa_key(), "RS384")),
    ("H09", "wrong_type", lambda: FORGE.token(header={"typ": "JWT"})),
    ("H09", "wrong_type", lambda: FORGE.token(header={"typ": ABSENT})),
    ("C09", "unknown_issuer", lambda: FORGE.token(iss=ABSENT)),
    ("C09", "unknown_issuer", lambda: FORGE.token(iss=[ISSUER])),
    ("C10", "unknown_issuer", lambda: FORGE.token(iss=ISSUER + "/")),
    ("C05", "expired", lambda: FORGE.token(exp=NOW - 30)),
    ("C05", "expired", lambda: FORGE.token(exp=float(NOW - 31))),
    ("H15", "unknown_kind", lambda: "opaque-token"),
    ("H15", "malformed_token", lambda: "e.e.e"),
]


@each(
    ("reason", "make"),
    [
        pytest.param(r, m, id=f"{n}-{r}", marks=pytest.mark.requirement(n))
        for n, r, m in REFUSED_WITHOUT_KEYS
    ],
)
async def test_a_token_refused_without_a_key_causes_no_key_fetch(
    reason: str, make: Callable[[], str]
) -> None:
    """An unauthenticated caller cannot cause a request to the issuer with an invalid token."""
    gate = VerifierGate()

    assert (await gate.refused(make())).reason == reason
    assert sum(key_set.asked for key_set in gate.keys.sets.values()) == 0
    assert len(gate.verdicts) == 0


REFUSED_WITH_KEYS: list[tuple[str, str, Callable[[], str]]] = [
    ("A20", "bad_signature", lambda: signed_by(rsa_key("stranger"))),
    ("H02", "bad_signature", lambda: signed_by(OTHER_KEY, jwk=jwk(OTHER_KEY))),
    ("H04", "unknown_key", lambda: signed_by(rsa_key(), kid="../../../../dev/null")),
    ("H04", "unknown_key", lambda: signed_by(rsa_key(), kid="' OR 1=1--")),
    ("A06", "unknown_key", lambda: signed_by(ec_key(), "ES256")),
    ("C14", "wrong_audience", lambda: FORGE.token(aud=RESOURCE + "/")),
    ("C29", "unknown_tenant", lambda: FORGE.token(org_id="initech")),
]


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        pytest.param(r, m, id=f"{n}-{r}", marks=pytest.mark.requirement(n))
        for n, r, m in REFUSED_WITH_KEYS
    ],
)
async def test_refused_tokens_are_not_cached(reason: str, make: Callable[[], str]) -> None:
    """The refusal has a reason for the log, and the next good token is accepted."""
    gate = VerifierGate()

    assert (await gate.refused(make())).reason == reason
    assert len(gate.verdicts) == 0
    assert (await gate.accepted(FORGE.token())).tenant_id == "acme"


@pytest.mark.requirement("C11", "N16", "N17")
async def test_keys_of_one_issuer_do_not_verify_tokens_of_another() -> None:
    """Both issuers are trusted and use the same key id and algorithm."""
    gate = VerifierGate(
        issuer(),
        issuer(RIVAL_ISSUER, tenants={"x": "rival"}),
        keys={ISSUER: [jwk(rsa_key())], RIVAL_ISSUER: [jwk(OTHER_KEY)]},
    )
    rival = FrozenForge(RIVAL_ISSUER, RESOURCE)
    sign = signer(OTHER_KEY, "RS256")

    assert (await gate.accepted(rival.token(org_id="x", sign=sign))).tenant_id == "rival"
    assert (await gate.refused(FORGE.token(sign=sign))).reason == "bad_signature"
    assert (await gate.refused(rival.token(org_id="x"))).reason == "bad_signature"


@pytest.mark.requirement("A18")
async def test_at_most_four_keys_of_the_same_id_and_type_are_tried() -> None:
    """Issuers reuse ids across types, and each attempt is a signature check."""
    keys = [rsa_key(f"twin-{n}") for n in range(5)]
    gate = VerifierGate(keys={ISSUER: [jwk(key) for key in keys] + [jwk(ec_key()), jwk(ed_key())]})

    for key in keys[:4]:
        await gate.accepted(signed_by(key))
    assert (await gate.refused(signed_by(keys[4]))).reason == "bad_signature"
    await gate.accepted(signed_by(ec_key(), "ES256"))
    await gate.accepted(signed_by(ed_key(), "EdDSA"))


@pytest.mark.requirement("A08")
async def test_a_token_without_key_id_needs_a_single_compatible_key() -> None:
    """With two compatible keys the token is refused."""
    token = signed_by(rsa_key(), kid=ABSENT)
    await VerifierGate().accepted(token)
    gate = VerifierGate(keys={ISSUER: [jwk(rsa_key()), jwk(OTHER_KEY, "other")]})
    assert (await gate.refused(token)).reason == "unknown_key"


@pytest.mark.requirement("N11")
async def test_a_token_with_an_unknown_key_id_waits_for_a_key_fetch() -> None:
    """The first token after a rotation causes the fetch."""
    gate = VerifierGate()
    await gate.accepted(FORGE.token())
    gate.keys[ISSUER].next = [jwk(rsa_key()), jwk(OTHER_KEY, "new")]

    await gate.accepted(signed_by(OTHER_KEY, kid="new"))
    assert gate.keys[ISSUER].asked == 1


@pytest.mark.requirement("N13")
async def test_a_bad_signature_causes_one_key_fetch() -> None:
    """The issuer may have replaced the key under the same id; a forgery causes one fetch."""
    gate = VerifierGate()
    await gate.accepted(FORGE.token())
    gate.keys[ISSUER].next = [jwk(OTHER_KEY)]

    await gate.accepted(signed_by(OTHER_KEY))
    assert gate.keys[ISSUER].asked == 1
    assert (await gate.refused(FORGE.token(jti="again"))).reason == "bad_signature"
    assert gate.keys[ISSUER].asked == 2


@pytest.mark.requirement("N12", "N18")
async def test_removing_a_key_ends_the_cached_verdicts_made_with_it() -> None:
    """A token that was just accepted is refused once its key is gone."""
    gate = VerifierGate()
    token = FORGE.token()
    await gate.accepted(token)
    gate.keys[ISSUER].publish([jwk(OTHER_KEY, "other")])

    assert (await gate.refused(token)).reason == "unknown_key"


class Vanishing(PublishedKeys):
    """Its key is withdrawn between the answer to the wait and the check."""

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        self.publish([jwk(rsa_key())])
        answer = self.find(kid, algorithm)
        self.publish([jwk(OTHER_KEY, "other")])
        return answer


@pytest.mark.requirement("N12")
async def test_a_key_withdrawn_while_a_request_waits_is_not_used() -> None:
    """The key is looked up again after the wait."""
    gate = VerifierGate()
    gate.keys.sets[ISSUER] = Vanishing([jwk(OTHER_KEY, "other")], frozenset({"RS256"}))

    assert (await gate.refused(FORGE.token())).reason == "unknown_key"


class Down(PublishedKeys):
    """An issuer that cannot be reached."""

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        raise IssuerUnavailable("keys_down")


async def test_an_unavailable_issuer_leads_to_503_instead_of_a_refusal() -> None:
    """Clients keep their tokens, and tokens of known keys are still accepted."""
    gate = VerifierGate()
    gate.keys.sets[ISSUER] = Down([jwk(rsa_key())], frozenset({"RS256"}))

    await gate.accepted(FORGE.token())
    with pytest.raises(IssuerUnavailable):
        await gate.verifier.verify(signed_by(OTHER_KEY, kid="new"), TARGET)


@pytest.mark.requirement("N18")
async def test_a_reload_ends_every_verdict() -> None:
    """A token of a removed issuer is refused on the next request."""
    gate = VerifierGate()
    token = FORGE.token()
    first = await gate.accepted(token)
    assert await gate.accepted(token) is first
    gate.trust(issuer(tenants={"acme": "renamed"}))
    assert (await gate.accepted(token)).tenant_id == "renamed"
    gate.trust(issuer(RIVAL_ISSUER))
    assert (await gate.refused(token)).reason == "unknown_issuer"


@pytest.mark.requirement("N18", "N22")
async def test_only_accepted_tokens_are_cached_until_expiry_or_reload() -> None:
    """`cached` returns no caller for another token or another resource."""
    gate = VerifierGate()
    token, other = FORGE.token(exp=NOW + 40), signed_by(OTHER_KEY)
    assert gate.verifier.cached(token.encode(), TARGET) is None
    first = await gate.accepted(token)
    await gate.refused(other)

    assert gate.verifier.cached(token.encode(), TARGET) is first
    assert gate.verifier.cached(other.encode(), TARGET) is None
    assert gate.verifier.cached(token.encode(), Target("https://h/else", "https://h/m")) is None
    gate.clock.now = NOW + 70
    assert gate.verifier.cached(token.encode(), TARGET) is None
    gate.clock.now = float(NOW)
    token = FORGE.token()
    await gate.accepted(token)
    gate.trust(issuer(RIVAL_ISSUER))
    assert gate.verifier.cached(token.encode(), TARGET) is None


@pytest.mark.requirement("N18", "N22")
async def test_a_cached_token_expires_like_any_other() -> None:
    """The wall clock decides to the second, also after it is set back."""
    gate = VerifierGate()
    token = FORGE.token(exp=NOW + 40)
    await gate.accepted(token)
    gate.clock.now = NOW + 69
    await gate.accepted(token)
    gate.clock.now = NOW + 70
    assert (await gate.refused(token)).reason == "expired"
    gate.clock.now = NOW - 31
    assert (await gate.refused(token)).reason == "not_yet_valid"
    gate.clock.now = NOW
    await gate.accepted(token)


@pytest.mark.requirement("N19", "N20")
async def test_a_changed_copy_of_a_cached_token_is_refused() -> None:
    """A verdict is cached for the whole token, not for its id or key id."""
    gate = VerifierGate()
    token = FORGE.token(jti="same")
    await gate.accepted(token)
    head, body, signature = token.split(".")
    forged = FORGE.token(jti="same", org_id="globex").split(".")[1]

    assert (await gate.refused(f"{head}.{forged}.{signature}")).reason == "bad_signature"
    assert (await gate.refused(f"{head}.{body}.{signature[:-4]}AAAA")).reason == "bad_signature"
    await gate.accepted(token)


@pytest.mark.requirement("N21")
async def test_the_verdict_cache_is_bounded_in_a_flood_of_tokens() -> None:
    """Good tokens are cached up to the capacity, bad tokens are not."""
    gate = VerifierGate(capacity=5)
    for number in range(20):
        await gate.accepted(FORGE.token(jti=f"id-{number}"))
        await gate.refused(FORGE.token(jti=f"id-{number}", aud="https://other.example"))

    assert len(gate.verdicts) == 5


async def test_a_cached_verdict_is_valid_for_one_resource() -> None:
    """A token accepted for one tenant's resource is verified again for another resource."""
    gate = VerifierGate()
    urls = [f"https://mcp.example.com/t/{tenant}/mcp" for tenant in ("acme", "globex")]
    acme, globex = (Target(url, url, url.split("/")[4]) for url in urls)
    token = FORGE.token(aud=urls)

    assert (await gate.accepted(token, acme)).shared_audience
    assert (await gate.refused(token, globex)).reason == "tenant_of_another_resource"


@pytest.mark.parametrize(
    "make",
    [
        lambda: (ISSUER, FORGE.token(dev=True)),
        lambda: (ISSUER, signed_by(rsa_key(), kid="dev-1")),
        lambda: ("http://127.0.0.1:8000/dev-as", ""),
        lambda: ("http://localhost:8000/dev-as", ""),
    ],
)
async def test_tokens_of_development_issuers_are_refused_in_production(make: Any) -> None:
    """Any attacker can run a development issuer."""
    name, token = make()
    token = token or FrozenForge(name, RESOURCE).token()
    keys = {name: [jwk(rsa_key()), jwk(rsa_key(), "dev-1")]}
    policy = Policy(tenancy=Tenancy(), development=True)

    assert (
        await VerifierGate(issuer(name), keys=keys).refused(token)
    ).reason == "development_token"
    assert await VerifierGate(issuer(name), keys=keys, policy=policy).accepted(token)


@pytest.mark.requirement("C12", "C29")
async def test_each_issuer_of_a_template_has_its_own_keys_and_tenant() -> None:
    """Keys of one tenant's issuer do not verify another tenant's tokens."""
    template = issuer("https://login.example/{tid}", tenant=TenantRule(issuer=True), tenants={})
    acme, globex = (FrozenForge(f"https://login.example/{t}", RESOURCE) for t in ("acme", "globex"))
    policy = Policy(tenancy=Tenancy(known_tenants=frozenset({"acme", "globex"})))
    gate = VerifierGate(template, keys={globex.issuer: [jwk(OTHER_KEY)]}, policy=policy)

    assert (await gate.accepted(acme.token())).tenant_id == "acme"
    assert (await gate.refused(globex.token())).reason == "bad_signature"
    assert (
        await gate.accepted(globex.token(sign=signer(OTHER_KEY, "RS256")))
    ).tenant_id == "globex"


@pytest.mark.requirement("C29", "H05")
async def test_no_keys_are_fetched_for_template_issuers_outside_of_the_table() -> None:
    """Made-up issuers cause no fetch and do not evict keys of real tenants."""
    gate = VerifierGate(issuer("https://login.example/{tid}", tenant=TenantRule(issuer=True)))
    invented = FrozenForge("https://login.example/invented", RESOURCE)

    assert (await gate.refused(invented.token())).reason == "unknown_tenant"
    assert gate.keys.sets == {}


class OneAnswerVerifier:
    """A verifier with one of the three answers."""

    def __init__(self, answer: TenantContext | InvalidToken | None) -> None:
        self.answer = answer
        self.asked = 0

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        self.asked += 1
        if isinstance(self.answer, InvalidToken):
            raise self.answer
        return self.answer

    def cached(self, token: bytes, target: Target) -> TenantContext | None:
        return None


async def test_the_first_verifier_that_handles_a_token_decides() -> None:
    """A forged token is not tried at the next verifier, and an unknown token is refused."""
    caller = await VerifierGate().accepted(FORGE.token())
    last = OneAnswerVerifier(caller)

    assert await Verifiers([OneAnswerVerifier(None), last]).verify("x", TARGET) is caller
    with pytest.raises(InvalidToken, match="forged"):
        await Verifiers([OneAnswerVerifier(InvalidToken("forged")), last]).verify("x", TARGET)
    assert last.asked == 1
    with pytest.raises(InvalidToken, match="unknown_kind"):
        await Verifiers([OneAnswerVerifier(None), VerifierGate().verifier]).verify("opaque", TARGET)


TOKEN_PARTS = FORGE.token().split(".")


@given(
    st.lists(
        st.sampled_from([*TOKEN_PARTS, "e30", "eyJhbGciOiJub25lIn0", "e", ""])
        | st.text("eAZ-_=", max_size=6)
    )
    .map(".".join)
    .filter(lambda token: token != ".".join(TOKEN_PARTS))
)
def test_recombined_parts_of_good_tokens_are_refused(token: str) -> None:
    """No combination raises another error."""
    gate = VerifierGate()
    assert asyncio.run(gate.refused(token)).reason
