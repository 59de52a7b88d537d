"""The rules over proved claims, one row each."""

import math
from typing import Any

import msgspec
import pytest

from gatepost_authz.claims import AcceptedClaims, ExpectedClaims, check_claims
from gatepost_authz.errors import ExpiredToken, InvalidToken, NotYetValidToken, WrongAudience
from gatepost_authz.presets import PRESETS, Preset
from gatepost_authz.subjects import PERSONAL
from gatepost_authz.token_rules import NO_SUBJECT, SUBJECT_IS_CLIENT, CallerMark
from tests.authz.conftest import FORGE, ISSUER, NOW, RESOURCE
from tests.support.issuers import ABSENT
from tests.support.measuring import each

GENERIC_PRESET = PRESETS["generic"]
RELAXED_PRESET = Preset(
    name="relaxed",
    documentation="https://provider.example/docs",
    required=frozenset({"iss", "exp"}),
    scope_claims=("scp", "scope"),
    client_claims=("azp", "client_id"),
    subject_claims=("oid", "sub"),
    token_id_claims=("uti", "jti"),
    client_as_audience=True,
    must_equal={"token_use": "access"},
    machine=(NO_SUBJECT, SUBJECT_IS_CLIENT, CallerMark(claim="idtyp", value="app")),
)
EXPECTED_RULES = ExpectedClaims(
    issuer=ISSUER, resource=RESOURCE, audiences=frozenset(), preset=GENERIC_PRESET
)


def claims(**changes: Any) -> dict[str, Any]:
    return {n: v for n, v in FORGE.claims(**{"jti": "id-1"} | changes).items() if v is not ABSENT}


def check(
    expected: ExpectedClaims = EXPECTED_RULES, *, now: float = NOW, **changes: Any
) -> AcceptedClaims:
    return check_claims(claims(**changes), expected, now=now)


def relaxed_rules(**changes: Any) -> ExpectedClaims:
    return msgspec.structs.replace(EXPECTED_RULES, preset=RELAXED_PRESET, **changes)


def row(name: str, reason: str, **changes: Any) -> Any:
    marks = pytest.mark.requirement(name)
    return pytest.param(changes, reason, id=f"{name}-{reason}-{changes}"[:70], marks=marks)


HOST = "https://mcp.example.com"
REFUSED_CLAIMS = [
    row("C01", "missing_claim", exp=ABSENT),
    *[
        row("C02", "bad_exp", exp=value)
        for value in ("1900000300", " 1900000300 ", "1_9", "\uff11")
    ],
    *[
        row("C03", "bad_exp", exp=value)
        for value in (math.nan, math.inf, True, [NOW], {"at": NOW}, -1, 0, 0.0, None)
    ],
    *[row("C04", "bad_exp", exp=value) for value in (10**400, 2**53, 2**53 + 1)],
    row("C04", "lives_too_long", exp=253_402_300_799),
    row("C04", "lives_too_long", exp=NOW + 86_401),
    row("C05", "expired", exp=NOW - 30),
    row("C05", "expired", exp=NOW - 30.001),
    row("C05", "expired", exp=1),
    row("C06", "not_yet_valid", nbf=NOW + 31),
    *[row("C06", "bad_nbf", nbf=value) for value in ("0", math.nan, True, None, -1)],
    row("C07", "not_yet_valid", iat=NOW + 31),
    row("C07", "missing_claim", iat=ABSENT),
    row("C07", "lives_too_long", iat=1),
    *[row("C07", "bad_iat", iat=value) for value in ("1", False, None, math.inf)],
    row("C09", "missing_claim", iss=ABSENT),
    *[row("C09", "bad_iss", iss=value) for value in ([ISSUER], {"iss": ISSUER}, None, 7)],
    *[
        row("C09", "wrong_issuer", iss=value)
        for value in (ISSUER + "/", ISSUER.upper(), ISSUER + ":443", "https://id.ex\u0430mple.com")
    ],
    *[row("C10", "wrong_issuer", iss=value) for value in (ISSUER[:-1], ISSUER + "x", "", "id")],
    row("C13", "missing_claim", aud=ABSENT),
    *[row("C13", "bad_audience", aud=value) for value in ("", [], 7, {"aud": RESOURCE}, None)],
    *[row("C13", "bad_audience", aud=value) for value in ([RESOURCE, 7], [RESOURCE, ""], [None])],
    row("C13", "bad_audience", aud=[RESOURCE] * 101),
    *[
        row("C14", "wrong_audience", aud=value)
        for value in (
            RESOURCE + "/",
            "https://MCP.example.com/mcp",
            "https://mcp.example.com:443/mcp",
            f"{HOST}/other",
            f"{HOST}/mcp/sub",
            HOST,
            f"{HOST}/",
            f"{HOST}/t/globex/mcp",
            f"{HOST}/%6dcp",
            [HOST, "client-1"],
        )
    ],
    *[
        row("C17", "bad_sub", sub=value)
        for value in ("", None, 7, "x" * 256, "a\nb", "a\0", "\x1b[31m", " alice", "alice ", ["a"])
    ],
    row("C17", "missing_claim", sub=ABSENT),
    *[
        row("C19", "bad_client_id", client_id=value)
        for value in ({"id": 1}, ["c"], 7, None, "", "\n")
    ],
    row("C19", "missing_claim", client_id=ABSENT),
    row("C21", "missing_claim", sub=ABSENT, Sub="alice"),
    row("C21", "missing_claim", exp=ABSENT, EXP=NOW + 300),
    *[row("C22", "bad_scope", scope=value) for value in (["files:write"], 7, {"a": 1}, None, True)],
    *[row("C22", "bad_scope", scope=value) for value in ("a\tb", "a\nb", 'a"b', "a\\b", "\u00e4")],
    row("C22", "too_many_scopes", scope=" ".join(f"s{n}" for n in range(5_000))),
    *[row("C24", "wrong_kind", **{name: "x"}) for name in ("nonce", "at_hash", "c_hash", "s_hash")],
    row("C24", "wrong_kind", typ="ID"),
    row("C24", "wrong_kind", token_use="id"),
    row("C25", "wrong_kind", typ="Refresh"),
    row("C25", "wrong_kind", events={"http://schemas.openid.net/event/backchannel-logout": {}}),
    row("C25", "wrong_kind", token_introspection={"active": True}),
    row("C25", "wrong_kind", htm="POST", htu=RESOURCE),
    row("C26", "sender_constrained", cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}),
    row(
        "C26", "sender_constrained", cnf={"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"}
    ),
    *[row("C27", "sender_constrained", cnf=value) for value in ({}, {"x": 1}, "jkt", [], None)],
    *[
        row("C30", "bad_act", act=value)
        for value in ("admin", [], None, {}, {"sub": 7}, {"sub": ""})
    ],
    row("C17", "bad_jti", jti=7),
    row("C17", "bad_jti", jti="a\r\nb"),
    *[row("C03", "bad_auth_time", auth_time=value) for value in ("1", True, None, math.nan)],
    *[row("C17", "bad_acr", acr=value) for value in (7, ["phr"], "", None)],
    row("C17", "bad_sid", sid=["s"]),
]


@each(("changes", "reason"), REFUSED_CLAIMS)
def test_a_missing_or_wrong_claim_is_refused_with_its_reason(
    changes: dict[str, Any], reason: str
) -> None:
    """A valid signature is not enough; the log names the broken rule."""
    with pytest.raises(InvalidToken) as refusal:
        check(**changes)

    assert refusal.value.reason == reason


ACCEPTED_CLAIMS = [
    row("C05", "fractions", exp=NOW + 0.5),
    row("C05", "at-exp", exp=NOW),
    row("C05", "within-leeway", exp=NOW - 29.999),
    row("C06", "past", nbf=NOW - 60),
    row("C06", "within-leeway", nbf=NOW + 30),
    row("C07", "within-leeway", iat=NOW + 30, exp=NOW + 300),
    row("C07", "longest", iat=NOW, exp=NOW + 86_400),
    row("C15", "several", aud=["https://other.example", RESOURCE]),
    row("C17", "longest", sub="x" * 255),
    row("C17", "international", sub="\u4e2d\u6587 name"),
    row("C19", "url", client_id="https://client.example/metadata.json"),
    row("C21", "extra", Sub="bob", EXP=1, aUD="x"),
    row("C22", "empty", scope=""),
    row("C22", "absent", scope=ABSENT),
    row("C30", "actor", act={"sub": "agent", "act": {"sub": "admin"}}),
]


@each(("changes", "reason"), ACCEPTED_CLAIMS)
def test_claims_that_rfc_9068_allows_are_accepted(changes: dict[str, Any], reason: str) -> None:
    """The rules accept every variant that the profile allows."""
    assert check(**changes).client_id is not None


@pytest.mark.requirement("C05")
@pytest.mark.parametrize(("late", "accepted"), [(-0.001, True), (0, False), (0.001, False)])
def test_the_expiry_of_a_token_is_exact(late: float, accepted: bool) -> None:
    """Accepted while ``now < exp + leeway``; without leeway, ``exp == now`` is expired."""
    for leeway in (0, 30, 300):
        expected = msgspec.structs.replace(EXPECTED_RULES, leeway=leeway)
        now = NOW + 300 + leeway + late
        if accepted:
            assert check(expected, now=now).expires_at == NOW + 300
        else:
            with pytest.raises(ExpiredToken):
                check(expected, now=now)


def test_expired_not_yet_valid_and_wrong_audience_have_their_own_classes() -> None:
    """Clients can act on these three; the answer does not tell other refusals apart."""
    with pytest.raises(ExpiredToken):
        check(exp=1, iat=1)
    with pytest.raises(NotYetValidToken):
        check(nbf=NOW + 60)
    with pytest.raises(WrongAudience):
        check(aud="https://other.example")


@pytest.mark.requirement("C15")
def test_a_token_with_several_audiences_is_flagged() -> None:
    """Another holder of the token can use it here too, so the audit log notes it."""
    assert check().shared_audience is False
    assert check(aud=[RESOURCE]).shared_audience is False
    assert check(aud=[RESOURCE, "https://other.example"]).shared_audience is True


@pytest.mark.requirement("C16")
@pytest.mark.parametrize("resource", [HOST, f"{HOST}/"])
def test_an_origin_matches_with_and_without_a_trailing_slash(resource: str) -> None:
    """Browsers' URL classes add the slash; no other normalisation is made."""
    expected = msgspec.structs.replace(EXPECTED_RULES, resource=resource)
    for audience in (HOST, f"{HOST}/"):
        check(expected, aud=audience)
    for audience in (f"{HOST}//", f"{HOST}/mcp", f"{HOST}:443", "https://MCP.example.com", "/"):
        with pytest.raises(WrongAudience):
            check(expected, aud=audience)


@pytest.mark.requirement("C13")
def test_other_audiences_are_accepted_only_if_the_operator_lists_them() -> None:
    """The list is for providers that cannot name the resource, which still counts."""
    expected = msgspec.structs.replace(EXPECTED_RULES, audiences=frozenset({"api://gate"}))
    check(expected, aud="api://gate")
    check(expected, aud=RESOURCE)
    with pytest.raises(WrongAudience):
        check(expected, aud="api://gate/")


@pytest.mark.requirement("C13")
def test_a_client_id_replaces_the_audience_only_with_preset_and_setting() -> None:
    """Cognito names no audience, so the client must be on the operator's list."""
    usual: dict[str, Any] = {"aud": ABSENT, "token_use": "access", "oid": "o-1"}
    listed = relaxed_rules(audiences=frozenset({"client-1"}))
    check(listed, **usual)
    with pytest.raises(WrongAudience):
        check(listed, **usual | {"client_id": "client-2"})
    with pytest.raises(WrongAudience):
        check(relaxed_rules(), **usual)
    with pytest.raises(WrongAudience):
        check(listed, **usual | {"aud": "https://other.example"})


@pytest.mark.requirement("C18")
@pytest.mark.parametrize(
    ("changes", "subject", "kind"),
    [
        ({"client_id": "alice"}, "alice", "client"),
        ({"idtyp": "app"}, "alice", "client"),
        ({"oid": "stable", "idtyp": "user"}, "stable", "user"),
        ({"oid": "stable"}, "stable", "user"),
        ({"oid": "client-1"}, "client-1", "client"),
        ({"sub": "client-1", "oid": "stable"}, "stable", "client"),
        ({"sub": ABSENT}, "client-1", "client"),
        ({"azp": "alice"}, "alice", "client"),
    ],
)
def test_people_and_clients_are_distinguished(
    changes: dict[str, Any], subject: str, kind: str
) -> None:
    """The stable id is the subject; a client never becomes the person of the same name."""
    accepted = check(relaxed_rules(), token_use="access", **changes)

    assert (accepted.subject, accepted.subject_kind) == (subject, kind)


@pytest.mark.requirement("C18")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"idtyp": "user"},
        {"sub": "stable", "client_id": ABSENT},
        *({"sub": ABSENT, name: NOW} for name in sorted(PERSONAL)),
    ],
)
def test_a_person_without_the_identifying_claim_is_refused(changes: dict[str, Any]) -> None:
    """Otherwise bob could become the client, or a person whose id equals his `sub`."""
    with pytest.raises(InvalidToken, match="no_subject") as refusal:
        check(relaxed_rules(), token_use="access", **changes)

    assert refusal.value.claim == "oid"


def test_a_token_without_a_subject_is_refused() -> None:
    """Without a subject and a client id, the token identifies no caller."""
    with pytest.raises(InvalidToken, match="no_subject"):
        check(relaxed_rules(), token_use="access", sub=ABSENT, client_id=ABSENT)


@pytest.mark.requirement("C23")
@pytest.mark.parametrize(
    ("changes", "scopes"),
    [
        ({"scope": "a b"}, {"a", "b"}),
        ({"scope": "a", "scp": "b"}, {"b"}),
        ({"scope": "a", "scp": ""}, set()),
        ({"scope": "a", "scp": ["b", "c"]}, {"b", "c"}),
        ({"scope": "a", "scp": []}, set()),
    ],
)
def test_only_the_first_scope_claim_is_used(changes: dict[str, Any], scopes: set[str]) -> None:
    """Scopes of two claims are never combined."""
    assert check(relaxed_rules(), token_use="access", oid="o-1", **changes).scopes == scopes


@pytest.mark.requirement("C22")
@pytest.mark.parametrize("scp", [["a b"], ["a", 7], [None], [""], "a\tb", {"a": 1}, [["a"]]])
def test_an_entry_of_a_scope_list_may_not_contain_a_space(scp: Any) -> None:
    """Such an entry would grant two scopes where the issuer meant one."""
    with pytest.raises(InvalidToken, match="bad_scope"):
        check(relaxed_rules(), token_use="access", oid="o-1", scp=scp)


@pytest.mark.requirement("C24", "C25")
@pytest.mark.parametrize("token_use", [ABSENT, "id", "Access", ["access"], None])
def test_a_preset_can_require_a_claim_value_of_access_tokens(token_use: Any) -> None:
    """Cognito signs ID and access tokens alike; ``token_use`` is the only difference."""
    with pytest.raises(InvalidToken, match="wrong_kind"):
        check(relaxed_rules(), token_use=token_use)


def test_all_optional_claims_are_read() -> None:
    """They become the fields of `AcceptedClaims`."""
    accepted = check(acr="phr", auth_time=NOW - 5.5, sid="session-1", act={"sub": "agent"})

    assert accepted == AcceptedClaims(
        subject="alice",
        subject_kind="user",
        client_id="client-1",
        scopes=frozenset({"files:write"}),
        names_scopes=True,
        expires_at=NOW + 300,
        issued_at=NOW,
        shared_audience=False,
        actor="agent",
        acr="phr",
        auth_time=NOW - 6,
        token_id="id-1",
        session_id="session-1",
    )
