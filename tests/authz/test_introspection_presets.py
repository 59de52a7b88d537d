"""Presets of opaque tokens, with answers as their providers write them."""

from typing import Any

import pytest

from gatepost_authz.config import Introspection, TenantRule
from gatepost_authz.errors import InvalidToken
from gatepost_authz.token_rules import TokenRules
from tests.authz.conftest import NOW, RESOURCE, OpaqueTokenGate
from tests.support.measuring import each

TIME_CLAIMS = {"exp": NOW + 300, "iat": NOW - 10}
# What their introspection endpoints return: recorded from the programs, without Logto.
DJANGO = {"active": True, "scope": "files:write", "exp": NOW + 300, "client_id": "c1"}
DJANGO_FOR_US = DJANGO | {"aud": [RESOURCE]}
CANAILLE = {
    "active": True,
    "client_id": "c1",
    "token_type": "Bearer",
    "scope": "openid files:write",
    "aud": ["gatepost"],
    "exp": NOW + 300.36,
    "iat": NOW - 9.64,
}
NODE = {
    "active": True,
    "client_id": "c1",
    "jti": "j1",
    "aud": RESOURCE,
    "scope": "files:write",
    "token_type": "Bearer",
    **TIME_CLAIMS,
}
LOGTO = {
    "active": True,
    "client_id": "c1",
    "scope": "openid",
    "token_type": "Bearer",
    **TIME_CLAIMS,
}
PEOPLE: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("django-oauth-toolkit", (), DJANGO_FOR_US | {"username": "alice"}, "alice"),
    ("django-oauth-toolkit", ("c1",), DJANGO | {"username": "alice"}, "alice"),
    ("canaille", ("gatepost",), CANAILLE | {"sub": "alice", "username": "Alice A"}, "alice"),
    ("oidc-provider", (), NODE | {"sub": "u1", "sid": "s1"}, "u1"),
]
MACHINES: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("django-oauth-toolkit", (), DJANGO_FOR_US),
    ("django-oauth-toolkit", ("c1",), DJANGO),
    ("canaille", ("gatepost",), CANAILLE),
    ("oidc-provider", (), NODE),
]
REFUSED_ANSWERS: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
    ("no_audience", "django-oauth-toolkit", ("c2",), DJANGO | {"username": "alice"}),
    ("no_audience", "django-oauth-toolkit", (), DJANGO),
    ("wrong_audience", "django-oauth-toolkit", ("c1",), DJANGO | {"aud": ["https://other/mcp"]}),
    ("wrong_audience", "canaille", ("other",), CANAILLE | {"sub": "alice"}),
    ("no_subject", "canaille", ("gatepost",), CANAILLE | {"username": "Alice A"}),
    ("no_subject", "oidc-provider", (), NODE | {"username": "alice"}),
    ("wrong_kind", "oidc-provider", (), NODE | {"sub": "u1", "token_type": None}),
    ("no_audience", "logto", ("c1",), LOGTO | {"sub": "u1"}),
]


def trust(gate: OpaqueTokenGate, preset: str, audiences: tuple[str, ...]) -> None:
    introspection = Introspection("gatepost", "env:S", endpoint=f"{gate.idp.base}/id/introspect")
    gate.trust(
        gate.issuer(
            "id",
            preset=preset,
            audiences=audiences,
            tenant=TenantRule(value="acme"),
            tenants={},
            introspection=introspection,
        )
    )


async def test_a_refresh_token_of_logto_is_refused(opaque_gate: OpaqueTokenGate) -> None:
    """Logto's responses about refresh tokens have no token type."""
    introspection = Introspection(
        "gatepost", "env:S", endpoint=f"{opaque_gate.idp.base}/id/introspect"
    )
    bound = TokenRules(client_as_audience=True)
    usual: dict[str, Any] = {
        "preset": "logto",
        "audiences": ("c1",),
        "introspection": introspection,
    }
    always = {"tenant": TenantRule(value="acme"), "tenants": {}}
    opaque_gate.trust(opaque_gate.issuer("id", tokens=bound, **usual, **always))
    opaque_gate.endpoint.answer = LOGTO | {"sub": "u1"}
    assert await opaque_gate.verify("access-token")

    opaque_gate.endpoint.answer = without_none(LOGTO | {"sub": "u1", "token_type": None})

    assert await opaque_gate.refused(token="refresh-token") == "wrong_kind"


@each("preset", ["authentik", "okta", "keycloak"])
async def test_opaque_tokens_are_refused_for_presets_with_signed_access_tokens(
    opaque_gate: OpaqueTokenGate, preset: str
) -> None:
    """An opaque token there is a refresh token, and authentik describes both kinds alike."""
    endpoint = f"{opaque_gate.idp.base}/id/introspect"
    introspection = Introspection("gatepost", "env:S", endpoint=endpoint, when="always")
    opaque_gate.trust(
        opaque_gate.issuer("id", preset=preset, audiences=("c1",), introspection=introspection)
    )
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(
        aud="c1", uid="alice", typ="Bearer", scope="openid offline_access files:write"
    )

    assert await opaque_gate.verify("refresh-token") is None
    assert opaque_gate.endpoint.asked == []


def without_none(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if value is not None}


@each(("preset", "audiences", "answer", "subject"), PEOPLE)
async def test_the_identifying_claim_of_the_response_names_the_person(
    opaque_gate: OpaqueTokenGate,
    preset: str,
    audiences: tuple[str, ...],
    answer: dict[str, Any],
    subject: str,
) -> None:
    """Each provider identifies people by one claim."""
    trust(opaque_gate, preset, audiences)
    opaque_gate.endpoint.answer = answer

    caller = await opaque_gate.verify(f"token-{preset}")

    assert caller is not None
    assert (caller.subject, caller.subject_kind, caller.client_id) == (subject, "user", "c1")


@each(("preset", "audiences", "answer"), MACHINES)
async def test_a_machine_is_identified_by_its_client_id(
    opaque_gate: OpaqueTokenGate, preset: str, audiences: tuple[str, ...], answer: dict[str, Any]
) -> None:
    """The response has no subject and no other member about a person."""
    trust(opaque_gate, preset, audiences)
    opaque_gate.endpoint.answer = answer

    caller = await opaque_gate.verify(f"token-{preset}")

    assert caller is not None
    assert (caller.subject, caller.subject_kind) == ("c1", "client")


@each(("reason", "preset", "audiences", "answer"), REFUSED_ANSWERS)
async def test_responses_without_the_required_members_are_refused(
    opaque_gate: OpaqueTokenGate,
    reason: str,
    preset: str,
    audiences: tuple[str, ...],
    answer: dict[str, Any],
) -> None:
    """The cases are another client's token, a person without id and a refresh token."""
    trust(opaque_gate, preset, audiences)
    opaque_gate.endpoint.answer = without_none(answer)

    with pytest.raises(InvalidToken) as refusal:
        await opaque_gate.verify(f"token-{reason}-{preset}-{len(answer)}-{audiences}")

    assert refusal.value.reason == reason
