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


async def test_two_people_without_a_subject_are_two_callers(opaque_gate: OpaqueTokenGate) -> None:
    """Alice and Bob of one client, whose answers have `username` only."""
    trust(opaque_gate, asked={"audience": "client"})
    callers = []
    for name in ("alice", "bob"):
        opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**BARE_ANSWER, username=name)
        caller = await opaque_gate.verify(f"token-of-{name}")
        assert caller is not None
        callers.append((caller.subject, caller.subject_kind))

    assert callers == [("alice", "user"), ("bob", "user")]


@each("preset", ["generic", "oidc-provider", "hydra", "keycloak"])
async def test_without_a_rule_a_user_name_is_a_refusal_and_never_the_client(
    opaque_gate: OpaqueTokenGate, preset: str
) -> None:
    """Otherwise all people of a client are one caller, and a machine at that."""
    opaque_gate.trust(opaque_gate.issuer("id", preset=preset, tenant=TenantRule(claim="org_id")))
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(
        sub=None, username="alice", azp="client-1", typ="Bearer"
    )

    with pytest.raises(InvalidToken) as refusal:
        await opaque_gate.verify(f"token-{preset}")

    assert (refusal.value.reason, refusal.value.claim) == ("no_subject", "sub")


async def test_a_machine_without_a_subject_is_its_client(opaque_gate: OpaqueTokenGate) -> None:
    """Client credentials at django-oauth-toolkit: no user, so no name."""
    trust(opaque_gate, asked={"audience": "client"})
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**BARE_ANSWER)

    caller = await opaque_gate.verify()

    assert caller is not None
    assert (caller.subject, caller.subject_kind) == ("client-1", "client")


@each("changes", [{"sub": "alice"}, {"email": "a@example.com"}, {"auth_time": 1}])
async def test_a_subject_in_another_claim_is_no_machine(
    opaque_gate: OpaqueTokenGate, changes: dict[str, Any]
) -> None:
    """The issuer speaks of a person, but not by the claim that identifies people."""
    trust(opaque_gate, asked={"audience": "client"})
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(**BARE_ANSWER | changes)

    assert await opaque_gate.refused(token=f"token-{changes}") == "no_subject"


@each("kind", ["Bearer", "bearer", "access_token", None])
async def test_the_type_may_have_another_word_or_none(
    opaque_gate: OpaqueTokenGate, kind: str | None
) -> None:
    """RFC 8693's `access_token` is what canaille writes."""
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(token_type=kind)

    assert await opaque_gate.verify(f"token-{kind}")


@each("preset", ["oidc-provider"])
async def test_an_issuer_that_names_types_describes_refresh_tokens_without(
    opaque_gate: OpaqueTokenGate, preset: str
) -> None:
    """Its refresh tokens are introspected as well, and must open nothing."""
    opaque_gate.trust(opaque_gate.issuer("id", preset=preset))
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(token_type=None)

    assert await opaque_gate.refused() == "wrong_kind"


async def test_an_answer_without_audience_is_bound_by_what_the_operator_states(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """By our own client, or by a list of clients; an audience that is there still decides."""
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


async def test_raw_credentials_are_for_servers_that_do_not_decode(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Some compare the secret with what they find before the colon and after it."""
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


async def test_a_prefix_says_whose_token_it_is(opaque_gate: OpaqueTokenGate) -> None:
    """The other issuer never sees it, also if no issuer knows it."""
    trust_two(opaque_gate, token_prefix=TOKEN_PREFIXES)

    caller = await opaque_gate.verify("a_token")

    assert caller is not None
    assert caller.issuer == opaque_gate.idp.issuer("id")
    assert await opaque_gate.verify("c_token") is None
    opaque_gate.endpoint.answer = {"active": False}
    assert await opaque_gate.refused(token="b_unknown") == "inactive"
    assert [request["token"] for request in opaque_gate.endpoint.asked] == ["a_token", "b_unknown"]


async def test_a_prefix_keeps_a_token_from_the_issuer_that_the_path_names(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Alice of one tenant calls the URL of another one, whose issuer must not see her token."""
    trust_two(opaque_gate, token_prefix={"id": "a_", "rival": ""})

    assert await opaque_gate.verify("a_token", tenant_target("globex")) is None
    assert opaque_gate.endpoint.asked == []


async def test_a_prefix_keeps_tokens_of_a_disabled_issuer_from_the_others(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Turning an issuer off must not show its tokens to another issuer."""
    first = opaque_gate.issuer(
        "id", enabled=False, introspection=introspection_of(opaque_gate, token_prefix="a_")
    )
    second = opaque_gate.issuer("rival", introspection=introspection_of(opaque_gate, "rival"))
    opaque_gate.trust(first, second)

    assert await opaque_gate.verify("a_token") is None
    assert opaque_gate.endpoint.asked == []


@each("options", [{}, {"ask_in_turn": {"id": True, "rival": False}}])
async def test_no_issuer_sees_tokens_of_others_unless_the_operator_says_so(
    opaque_gate: OpaqueTokenGate, options: dict[str, Any]
) -> None:
    """Of each issuer: one that may not see the others' tokens stops the order."""
    trust_two(opaque_gate, **options)

    assert await opaque_gate.refused(token=f"token-{options}") == "undecided_issuer"
    assert opaque_gate.endpoint.asked == []


async def test_issuers_are_asked_in_order_and_the_one_that_knew_the_token_first(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """A token of the second costs the first one request, not one each time."""
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


async def test_a_token_that_an_issuer_knows_is_not_shown_to_the_next(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Its refusal is the answer: the token is for another resource."""
    trust_two(opaque_gate, ask_in_turn=True)
    opaque_gate.endpoint.answer = opaque_gate.endpoint.good(aud="https://other.example")

    assert await opaque_gate.refused(WrongAudience) == "wrong_audience"
    assert opaque_gate.endpoint.names == ["id"]


@each("down", ["id", "rival"])
async def test_an_outage_is_no_refusal(opaque_gate: OpaqueTokenGate, down: str) -> None:
    """The issuer that cannot be asked may be the one that knows the token."""
    trust_two(opaque_gate, ask_in_turn=True)
    opaque_gate.endpoint.answer = {"active": False}
    opaque_gate.idp.replace(f"/{down}/introspect", answer(500))

    assert await opaque_gate.refused(IssuerUnavailable, f"t-{down}") == "introspection_status"
