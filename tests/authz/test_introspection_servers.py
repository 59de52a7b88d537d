"""Introspection as servers really answer: RFC 7662 makes nearly everything optional."""

import base64
from typing import Any

import pytest

from gatepost_authz.config import Introspection, TenantRule
from gatepost_authz.errors import InvalidToken, IssuerUnavailable, WrongAudience
from gatepost_authz.token_rules import NO_SUBJECT, SUBJECT_IS_CLIENT, TokenRules
from tests.authz.conftest import OpaqueTokenGate, tenant_target
from tests.support.issuers import answer
from tests.support.measuring import each

USERNAME = TokenRules(subject_claims=("username",), machine=(NO_SUBJECT, SUBJECT_IS_CLIENT))
BARE_ANSWER = {"sub": None, "token_type": None, "aud": None, "iat": None}
"""The changes that leave what django-oauth-toolkit writes."""


def introspection_of(gate: OpaqueTokenGate, name: str = "id", **changes: Any) -> Introspection:
    usual = {
        "client_id": "gate post",
        "client_secret": "env:S",
        "endpoint": f"{gate.idp.base}/{name}/introspect",
    }
    return Introspection(**usual | changes)


def trust(gate: OpaqueTokenGate, rules: TokenRules = USERNAME, **changes: Any) -> None:
    """Trust one issuer with these rules; `asked` changes are those of introspection."""
    settings = introspection_of(gate, **changes.pop("asked", {}))
    gate.trust(gate.issuer("id", tokens=rules, introspection=settings, **changes))


async def test_people_are_distinguished_by_username_if_there_is_no_subject(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Alice and Bob use one client, and the responses have `username` only."""
    trust(opaque_gate, asked={"audience": "client"})
    callers = []
    for name in ("alice", "bob"):
        opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**BARE_ANSWER, username=name)
        caller = await opaque_gate.verify(f"token-of-{name}")
        assert caller is not None
        callers.append((caller.subject, caller.subject_kind))

    assert callers == [("alice", "user"), ("bob", "user")]


@each("preset", ["generic", "oidc-provider", "hydra", "keycloak"])
async def test_a_response_with_username_only_is_refused_without_a_rule(
    opaque_gate: OpaqueTokenGate, preset: str
) -> None:
    """Otherwise all people of a client would be one caller, and a machine."""
    opaque_gate.trust(opaque_gate.issuer("id", preset=preset, tenant=TenantRule(claim="org_id")))
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(
        sub=None, username="alice", azp="client-1", typ="Bearer"
    )

    with pytest.raises(InvalidToken) as refusal:
        await opaque_gate.verify(f"token-{preset}")

    assert (refusal.value.reason, refusal.value.claim) == ("no_subject", "sub")


async def test_a_response_without_subject_and_username_identifies_the_client(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """django-oauth-toolkit answers client credentials tokens without a user."""
    trust(opaque_gate, asked={"audience": "client"})
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**BARE_ANSWER)

    caller = await opaque_gate.verify()

    assert caller is not None
    assert (caller.subject, caller.subject_kind) == ("client-1", "client")


@each("changes", [{"sub": "alice"}, {"email": "a@example.com"}, {"auth_time": 1}])
async def test_a_response_with_other_claims_about_a_person_is_not_a_machine(
    opaque_gate: OpaqueTokenGate, changes: dict[str, Any]
) -> None:
    """The response lacks the claim that identifies people, so it is refused."""
    trust(opaque_gate, asked={"audience": "client"})
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**BARE_ANSWER | changes)

    assert await opaque_gate.refused(token=f"token-{changes}") == "no_subject"


@each("kind", ["Bearer", "bearer", "access_token", None])
async def test_several_token_types_and_a_missing_type_are_accepted(
    opaque_gate: OpaqueTokenGate, kind: str | None
) -> None:
    """Canaille writes `access_token`, the value of RFC 8693."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(token_type=kind)

    assert await opaque_gate.verify(f"token-{kind}")


@each("preset", ["oidc-provider"])
async def test_a_response_without_type_is_refused_if_the_issuer_names_types(
    opaque_gate: OpaqueTokenGate, preset: str
) -> None:
    """Refresh tokens of such an issuer are described without a type."""
    opaque_gate.trust(opaque_gate.issuer("id", preset=preset))
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(token_type=None)

    assert await opaque_gate.refused() == "wrong_kind"


async def test_a_missing_audience_is_accepted_only_with_a_client_setting(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The setting names our client or a list of clients; an existing audience still decides."""
    missing = opaque_gate.endpoint.good(aud=None)
    opaque_gate.endpoint.answer = missing
    assert await opaque_gate.refused(WrongAudience) == "no_audience"

    trust(opaque_gate, TokenRules(), asked={"audience": "client"})
    assert await opaque_gate.verify()
    opaque_gate.endpoint.answer = missing | {"aud": "https://other.example"}
    assert await opaque_gate.refused(WrongAudience, token="other") == "wrong_audience"

    listed = TokenRules(client_as_audience=True)
    trust(opaque_gate, listed, audiences=("client-1",))
    opaque_gate.endpoint.answer = missing
    assert await opaque_gate.verify()
    opaque_gate.endpoint.answer = missing | {"client_id": "client-2"}
    assert await opaque_gate.refused(WrongAudience, token="of-client-2") == "no_audience"
    opaque_gate.endpoint.answer = missing | {"aud": "https://other.example"}
    assert await opaque_gate.refused(WrongAudience, token="of-another") == "wrong_audience"


async def test_raw_credentials_are_not_form_encoded(opaque_gate: OpaqueTokenGate) -> None:
    """Some servers compare the secret without decoding it."""
    trust(opaque_gate, TokenRules(), asked={"encoding": "raw"})

    await opaque_gate.verify()

    _, _, coded = opaque_gate.endpoint.headers[0]["authorization"].partition(" ")
    assert base64.b64decode(coded).decode() == "gate post:p%ss:w0rd+é"


TOKEN_PREFIXES = {"id": "a_", "rival": "b_"}


def trust_two(gate: OpaqueTokenGate, **changes: Any) -> None:
    """Trust `id` for acme and `rival` for globex."""
    gate.trust(
        *(
            gate.issuer(
                name,
                tenants={tenant: tenant},
                introspection=introspection_of(
                    gate,
                    name,
                    **{option: value[name] if isinstance(value, dict) else value
                       for option, value in changes.items()},
                ),
            )
            for name, tenant in (("id", "acme"), ("rival", "globex"))
        )
    )  # fmt: skip


async def test_a_token_prefix_selects_the_introspecting_issuer(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The other issuer never sees the token, and an unknown prefix is not introspected."""
    trust_two(opaque_gate, token_prefix=TOKEN_PREFIXES)

    caller = await opaque_gate.verify("a_token")

    assert caller is not None
    assert caller.issuer == opaque_gate.idp.issuer("id")
    assert await opaque_gate.verify("c_token") is None
    opaque_gate.endpoint.answer = {"active": False}
    assert await opaque_gate.refused(token="b_unknown") == "inactive"
    assert [request["token"] for request in opaque_gate.endpoint.asked] == ["a_token", "b_unknown"]


async def test_a_token_prefix_wins_over_the_tenant_in_the_path(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Alice calls another tenant's URL, and its issuer must not see her token."""
    trust_two(opaque_gate, token_prefix={"id": "a_", "rival": ""})

    assert await opaque_gate.verify("a_token", tenant_target("globex")) is None
    assert opaque_gate.endpoint.asked == []


async def test_tokens_with_the_prefix_of_a_disabled_issuer_are_not_introspected(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Disabling an issuer must not show its tokens to another issuer."""
    first = opaque_gate.issuer(
        "id", enabled=False, introspection=introspection_of(opaque_gate, token_prefix="a_")
    )
    second = opaque_gate.issuer("rival", introspection=introspection_of(opaque_gate, "rival"))
    opaque_gate.trust(first, second)

    assert await opaque_gate.verify("a_token") is None
    assert opaque_gate.endpoint.asked == []


@each("options", [{}, {"ask_in_turn": {"id": True, "rival": False}}])
async def test_issuers_are_asked_in_turn_only_if_every_issuer_permits_it(
    opaque_gate: OpaqueTokenGate, options: dict[str, Any]
) -> None:
    """Otherwise one issuer would see tokens of another."""
    trust_two(opaque_gate, **options)

    assert await opaque_gate.refused(token=f"token-{options}") == "undecided_issuer"
    assert opaque_gate.endpoint.asked == []


async def test_a_known_token_is_introspected_first_at_its_issuer(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A new token is tried at the issuers in order, once."""
    trust_two(opaque_gate, ask_in_turn=True)
    owners = {"rival-token": "rival"}
    opaque_gate.endpoint.judge = lambda name, token: owners.get(token) == name
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(org_id="globex")

    for _ in range(3):
        caller = await opaque_gate.verify("rival-token")
        assert caller is not None
        assert caller.issuer == opaque_gate.idp.issuer("rival")
        opaque_gate.now += 31  # beyond what a good answer counts for

    assert opaque_gate.endpoint.names == ["id", "rival", "rival", "rival"]

    owners.clear()
    assert await opaque_gate.refused(token="rival-token") == "inactive"
    assert opaque_gate.endpoint.names[4:] == ["rival"]
    for _ in range(5):
        assert await opaque_gate.refused(token="made-up") == "inactive"
    assert opaque_gate.endpoint.names[5:] == ["id", "rival"]


async def test_a_token_that_an_issuer_knows_is_not_sent_to_the_next_issuer(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The first issuer knows the token, which is for another resource, so it is refused."""
    trust_two(opaque_gate, ask_in_turn=True)
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(aud="https://other.example")

    assert await opaque_gate.refused(WrongAudience) == "wrong_audience"
    assert opaque_gate.endpoint.names == ["id"]


@each("down", ["id", "rival"])
async def test_an_outage_of_one_issuer_leads_to_503_instead_of_a_refusal(
    opaque_gate: OpaqueTokenGate, down: str
) -> None:
    """The unreachable issuer may be the one that knows the token."""
    trust_two(opaque_gate, ask_in_turn=True)
    opaque_gate.endpoint.answer = {"active": False}
    opaque_gate.idp.replace(f"/{down}/introspect", answer(500))

    assert await opaque_gate.refused(IssuerUnavailable, f"t-{down}") == "introspection_status"
