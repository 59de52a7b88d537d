"""Signed tokens that are introspected too: for revocation, and for claims that they lack."""

from typing import Any

import pytest

from gatepost_authz import JwtVerifier, VerdictCache
from gatepost_authz.config import Introspection, TenantRule
from gatepost_authz.errors import InvalidToken, IssuerUnavailable, WrongAudience
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.protected_resource import Target
from gatepost_authz.signed_introspection import SignedTokenIntrospection
from gatepost_authz.tenant import Policy
from gatepost_authz.token_rules import TokenRules
from tests.authz.conftest import NOW, RESOURCE, TARGET, AuthzKeys, OpaqueTokenGate
from tests.support.issuers import ABSENT, TokenFactory, answer
from tests.support.measuring import each


class ConfirmedGate:
    """A verifier of signed tokens at an issuer that is asked about each of them."""

    def __init__(self, opaque: OpaqueTokenGate, *, confirmed: bool = True, **changes: Any) -> None:
        self.endpoint = opaque.endpoint
        self.opaque = opaque
        introspection = Introspection(
            client_id="gate post",
            client_secret="env:S",
            endpoint=f"{opaque.idp.base}/id/introspect",
            when="always",
        )
        self.settings = opaque.issuer("id", introspection=introspection, **changes)
        self.forge = TokenFactory(self.settings.issuer, RESOURCE)
        self.verifier = JwtVerifier(
            IssuerRegistry([self.settings]),
            AuthzKeys(),
            VerdictCache(),
            policy=Policy(development=True),
            signed_introspection=SignedTokenIntrospection(
                opaque.introspectors, clock=lambda: opaque.now
            )
            if confirmed
            else None,
            clock=lambda: opaque.now,
        )

    def token(self, **changes: Any) -> str:
        return self.forge.token(**{"iat": NOW - 10, "exp": NOW + 300, "jti": "id-1"} | changes)

    async def verify(self, token: str, target: Target = TARGET) -> Any:
        return await self.verifier.verify(token, target)


async def test_a_revoked_signed_token_is_refused_within_30_seconds(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A client that retries in a loop causes one request to the issuer."""
    gate = ConfirmedGate(opaque_gate)
    token = gate.token()
    assert (await gate.verify(token)).subject == "alice"
    await gate.verify(token)
    assert len(gate.endpoint.asked) == 1

    gate.endpoint.answer = {"active": False}
    opaque_gate.now += 30
    for _ in range(3):
        with pytest.raises(InvalidToken, match="inactive"):
            await gate.verify(token)
    assert len(gate.endpoint.asked) == 2


async def test_the_introspection_response_adds_missing_claims(opaque_gate: OpaqueTokenGate) -> None:
    """Lightweight tokens leave claims to introspection."""
    gate = ConfirmedGate(opaque_gate)

    caller = await gate.verify(gate.token(org_id=ABSENT, scope=ABSENT))

    assert (caller.tenant_id, caller.scopes) == ("acme", {"files:write"})


DIFFERING_CLAIMS: list[tuple[str, dict[str, Any]]] = [
    ("iss", {"iss": "https://other.example"}),
    ("sub", {"sub": "mallory"}),
    ("client_id", {"client_id": "client-2"}),
    ("jti", {"jti": "another"}),
    ("act", {"act": {"sub": "mallory"}}),
    ("aud", {"aud": "https://other.example"}),
    ("aud", {"aud": [RESOURCE, "https://other.example"]}),
]


@each(("claim", "changes"), DIFFERING_CLAIMS)
async def test_a_response_about_another_subject_client_or_audience_is_refused(
    opaque_gate: OpaqueTokenGate, claim: str, changes: dict[str, Any]
) -> None:
    """Such a response says nothing about this token."""
    gate = ConfirmedGate(opaque_gate)
    gate.endpoint.answer = gate.endpoint.good(**changes)

    with pytest.raises(InvalidToken) as refusal:
        await gate.verify(gate.token(jti=f"{changes}", act={"sub": "agent"}))

    assert (refusal.value.reason, refusal.value.claim) == ("answer_disagrees", claim)


async def test_the_response_cannot_change_the_client_or_scopes_of_the_token(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Another claim for client or scopes in the response must not win over the token's."""
    rules = TokenRules(client_claims=("azp", "client_id"), scope_claims=("scp", "scope"))
    gate = ConfirmedGate(opaque_gate, tokens=rules)
    gate.endpoint.answer = gate.endpoint.good(azp="client-1", scp=["files:write", "admin"])
    caller = await gate.verify(gate.token(scope="files:write other"))
    assert caller.scopes == {"files:write"}

    gate.endpoint.answer = gate.endpoint.good(azp="client-2")
    with pytest.raises(InvalidToken, match="answer_disagrees"):
        await gate.verify(gate.token(jti="2"))


async def test_a_dotted_member_of_the_response_does_not_override_a_claim_path(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A member called `org.id` would be found before the claim `id` in `org`."""
    gate = ConfirmedGate(opaque_gate, tenant=TenantRule(claim="org.id"))
    gate.endpoint.answer = gate.endpoint.good(org_id=None, **{"org.id": "globex"})

    caller = await gate.verify(gate.token(org_id=ABSENT, org={"id": "acme"}))

    assert caller.tenant_id == "acme"


async def test_the_earlier_expiry_of_token_and_response_is_used(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """An issuer that ends a session earlier returns an earlier `exp`."""
    gate = ConfirmedGate(opaque_gate)
    gate.endpoint.answer = gate.endpoint.good(exp=NOW + 10)

    assert (await gate.verify(gate.token())).expires_at == NOW + 10

    gate.endpoint.answer = gate.endpoint.good(exp="soon")
    with pytest.raises(InvalidToken, match="bad_exp"):
        await gate.verify(gate.token(jti="2"))


@each(
    "token",
    [{"aud": "https://other.example"}, {"aud": ABSENT}, {"exp": NOW - 60}, {"typ": "ID"}],
)
async def test_an_active_response_does_not_replace_the_checks_of_the_token(
    opaque_gate: OpaqueTokenGate, token: dict[str, Any]
) -> None:
    """The token itself must be an access token for this resource and valid now."""
    gate = ConfirmedGate(opaque_gate)
    gate.endpoint.answer = gate.endpoint.good(aud=None)

    with pytest.raises(InvalidToken):
        await gate.verify(gate.token(**token))


async def test_a_token_without_an_introspection_response_is_not_accepted(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """An outage, or a verifier without introspection, leads to 503."""
    gate = ConfirmedGate(opaque_gate)
    opaque_gate.idp.replace("/id/introspect", answer(500))
    with pytest.raises(IssuerUnavailable, match="introspection_status"):
        await gate.verify(gate.token())

    mute = ConfirmedGate(opaque_gate, confirmed=False)
    with pytest.raises(IssuerUnavailable, match="introspection_failed"):
        await mute.verify(mute.token())


async def test_a_token_with_a_bad_signature_is_not_introspected(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A made-up token causes no request to the issuer."""
    gate = ConfirmedGate(opaque_gate)
    token = gate.token()

    with pytest.raises(InvalidToken, match="bad_signature"):
        await gate.verify(token[:-8] + "AAAAAAAA")

    assert gate.endpoint.asked == []


async def test_a_response_with_another_audience_is_refused(opaque_gate: OpaqueTokenGate) -> None:
    """A token without audience must not get another resource's from the response."""
    gate = ConfirmedGate(opaque_gate, tokens=TokenRules(required_claims=("sub",)))
    gate.endpoint.answer = gate.endpoint.good(aud="https://other.example")

    with pytest.raises(WrongAudience):
        await gate.verify(gate.token(aud=ABSENT))
