"""Every provider's row, against what its documentation shows of metadata and tokens."""

import time
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest

from gatepost_authz.check import ASYMMETRIC, problems
from gatepost_authz.config import Issuer
from gatepost_authz.errors import InvalidToken, IssuerUnavailable
from gatepost_authz.introspector import Introspectors, active
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey, import_set
from gatepost_authz.presets import PRESETS
from gatepost_authz.protected_resource import Resource
from gatepost_authz.signed_introspection import SignedTokenIntrospection
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier, Verifiers
from tests.support.issuers import (
    ABSENT,
    RECORDED_PROVIDERS,
    compact_jws,
    ec_key,
    jwk,
    rsa_key,
    signer,
)
from tests.support.measuring import each

SIGNED_PROVIDERS = [name for name, recorded in RECORDED_PROVIDERS.items() if recorded["access"]]
TIME_CLAIMS = ("exp", "iat", "nbf", "auth_time")


class ProviderKeys:
    """The provider's one key, always at hand; its algorithm is the recorded token's."""

    version = 1

    def __init__(self, algorithm: str) -> None:
        self.private = ec_key("preset", "P-384") if algorithm == "ES384" else rsa_key("preset")
        self.document = {"keys": [jwk(self.private, alg=algorithm)]}

    def keys_of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> "ProviderKeys":
        self.known = import_set(self.document, allowed=trusted.algorithms)
        return self

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        return tuple(key for key in self.known if algorithm in key.algorithms)

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        return self.find(kid, algorithm)

    async def after_bad_signature(self) -> bool:
        return False


class RecordedAnswer:
    """The issuer's recorded answer, whatever token it is asked about."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    async def ask(self, token: str, trusted: TrustedIssuer) -> dict[str, object]:
        return active(with_current_times(self.answer))


class RecordedProvider:
    """A provider as recorded, with a key of our own in the place of its key."""

    def __init__(self, name: str) -> None:
        self.recorded = RECORDED_PROVIDERS[name]
        self.settings = msgspec.convert(self.recorded["settings"], Issuer)
        access = self.recorded["access"] or self.recorded["identity"]
        self.keys = ProviderKeys(access["header"]["alg"])
        registry = IssuerRegistry([self.settings])
        self.answer = RecordedAnswer(dict(self.recorded.get("answer") or {}))
        signed = JwtVerifier(
            registry,
            self.keys,
            VerdictCache(),
            signed_introspection=SignedTokenIntrospection(cast("Introspectors", self.answer)),
        )
        self.gate = Verifiers([signed])
        self.target = Resource(self.recorded["resource"]).of_tenant("")

    def token(self, kind: str, **changes: Any) -> str:
        """Return the recorded token of this kind, freshly signed; an opaque one as recorded."""
        recorded = self.recorded[kind]
        if isinstance(recorded, str):
            return recorded
        # The answer is about the token: it has the same values.
        common = {name: value for name, value in changes.items() if name in self.answer.answer}
        self.answer.answer |= common
        sign = signer(self.keys.private, recorded["header"]["alg"])
        return compact_jws(
            recorded["header"], with_current_times(recorded["claims"]) | changes, sign
        )


def with_current_times(claims: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded claims with current times; recorded times are seconds from now."""
    now = int(time.time())
    return claims | {name: now + claims[name] for name in TIME_CLAIMS if name in claims}


@each("name", SIGNED_PROVIDERS)
async def test_a_recorded_access_token_of_each_provider_is_accepted(name: str) -> None:
    """The token maps to its tenant, its stable subject, its client and its scopes."""
    provider, expected = RecordedProvider(name), RECORDED_PROVIDERS[name]["expected"]

    caller = await provider.gate.verify(provider.token("access"), provider.target)

    assert {
        "tenant": caller.tenant_id,
        "subject": caller.subject,
        "subject_kind": caller.subject_kind,
        "client": caller.client_id,
        "scopes": sorted(caller.scopes),
    } == expected


@pytest.mark.requirement("C18")
@each("name", ["entra-v2", "entra-v1"])
async def test_a_token_of_a_person_without_scopes_is_refused(name: str) -> None:
    """A missing `scp` alone would mean a program, but `idtyp` says user."""
    provider = RecordedProvider(name)
    token = provider.token("access", scp=ABSENT, roles=ABSENT, idtyp="user")

    with pytest.raises(InvalidToken, match="unknown_caller_kind"):
        await provider.gate.verify(token, provider.target)


async def test_canaille_tokens_need_introspection() -> None:
    """Canaille's signed tokens name neither client nor scopes."""
    provider = RecordedProvider("canaille")
    alone = JwtVerifier(IssuerRegistry([provider.settings]), provider.keys, VerdictCache())
    without = msgspec.structs.replace(provider.settings, introspection=None)
    reported_problems = problems(
        resource=RECORDED_PROVIDERS["canaille"]["resource"], issuers=[without]
    )

    with pytest.raises(IssuerUnavailable, match="introspection"):
        await alone.verify(provider.token("access"), provider.target)
    assert "authz.E043" in {problem.id for problem in reported_problems}


async def test_a_user_name_that_equals_a_client_id_does_not_make_a_machine() -> None:
    """People choose their user names at Canaille."""
    provider = RecordedProvider("canaille")

    with pytest.raises(InvalidToken, match="unknown_caller_kind"):
        await provider.gate.verify(provider.token("access", sub="agent"), provider.target)


@pytest.mark.requirement("C24", "C25")
@each("kind", ["identity", "refresh"])
@each("name", RECORDED_PROVIDERS)
async def test_id_tokens_and_refresh_tokens_of_each_provider_are_refused(
    name: str, kind: str
) -> None:
    """The same keys sign them."""
    provider = RecordedProvider(name)

    with pytest.raises(InvalidToken):
        await provider.gate.verify(provider.token(kind), provider.target)


@pytest.mark.requirement("C24")
@each("name", RECORDED_PROVIDERS)
async def test_an_id_token_for_our_audience_is_refused(name: str) -> None:
    """The kinds stay apart, even if the client is named like the resource."""
    provider = RecordedProvider(name)
    access = RECORDED_PROVIDERS[name]["access"]
    ours = (*provider.settings.audiences, RECORDED_PROVIDERS[name]["resource"])[0]
    audience = access["claims"].get("aud", "app1") if access else ours

    with pytest.raises(InvalidToken, match=r"wrong_type|wrong_kind|missing_claim"):
        await provider.gate.verify(provider.token("identity", aud=audience), provider.target)


@pytest.mark.requirement("A5", "A-13")
@each("name", SIGNED_PROVIDERS)
async def test_a_token_for_another_resource_is_refused(name: str) -> None:
    """Its audience, or its client where there is no audience, is another one."""
    provider = RecordedProvider(name)
    changes = {"aud": "https://neighbour.example.com"}
    if "aud" not in RECORDED_PROVIDERS[name]["access"]["claims"]:
        changes = {"client_id": "another-app"}

    with pytest.raises(InvalidToken, match=r"wrong_audience|no_audience"):
        await provider.gate.verify(provider.token("access", **changes), provider.target)


@pytest.mark.parametrize(
    "name", [name for name in RECORDED_PROVIDERS if RECORDED_PROVIDERS[name]["opaque"]]
)
async def test_the_verifier_of_signed_tokens_does_not_decide_about_opaque_tokens(name: str) -> None:
    """The verifier of signed tokens reports that the token is not its own."""
    provider = RecordedProvider(name)

    with pytest.raises(InvalidToken, match="unknown_kind"):
        await provider.gate.verify(provider.token("opaque"), provider.target)


@each("name", RECORDED_PROVIDERS)
def test_the_recorded_settings_of_each_provider_pass_the_check(name: str) -> None:
    """The settings table of the provider page causes only warnings that the page explains."""
    settings = msgspec.convert(RECORDED_PROVIDERS[name]["settings"], Issuer)
    reported_problems = list(
        problems(resource=RECORDED_PROVIDERS[name]["resource"], issuers=[settings])
    )

    assert {problem.id for problem in reported_problems} <= {
        "authz.W004",
        "authz.W007",
        "authz.W010",
    }


@each("name", RECORDED_PROVIDERS)
def test_the_recorded_metadata_names_the_issuer_of_the_tokens(name: str) -> None:
    """It also has an https URL for the keys."""
    recorded = RECORDED_PROVIDERS[name]
    access = recorded["access"] or recorded["identity"]

    assert recorded["metadata"]["issuer"] == access["claims"]["iss"]
    assert urlsplit(recorded["metadata"]["jwks_uri"]).scheme == "https"


def test_every_preset_has_recorded_tokens_and_a_documentation_url() -> None:
    """A preset without a recorded token would be a guess."""
    assert set(PRESETS) == set(RECORDED_PROVIDERS)
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert preset.documentation.startswith("https://")
        assert preset.documentation == RECORDED_PROVIDERS[name]["documentation"]
        assert set(preset.algorithms) <= ASYMMETRIC
        assert preset.types or preset.opaque


def test_every_preset_requires_an_expiry_and_an_audience_or_client() -> None:
    """`generic` requires every claim of RFC 9068."""
    for preset in PRESETS.values():
        assert "exp" in preset.required
        assert "aud" in preset.required or preset.client_as_audience
        assert preset.access_marks <= preset.required
    assert PRESETS["generic"].required == {
        "iss", "aud", "exp", "iat", "sub", "client_id", "jti"
    }  # fmt: skip
    assert PRESETS["generic"].types == {"at+jwt"}
