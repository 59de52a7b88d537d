"""Which tokens a revocation or a suspension matches, and for how long: a table of cases."""

from typing import Any

import msgspec
import pytest

from gatepost.policy.revocation.revocation_records import revocation, seconds_of, suspension
from gatepost.policy.revocation.watch import RevocationSnapshot
from gatepost.storage.revocations import NEVER_EXPIRES, RevocationRecord
from gatepost_authz.caller import TenantContext
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("CO2")

NOW = 1_000_000.4
DAY = 86_400.0
BOB = TenantContext(
    tenant_id="acme",
    issuer="https://id.example",
    subject="bob",
    subject_kind="user",
    resource="https://mcp.example/mcp",
    expires_at=int(NOW) + 300,
    issued_at=int(NOW) - 10,
    client_id="agent",
)
ROBOT_CALLER = msgspec.structs.replace(BOB, subject="robot", subject_kind="client", client_id=None)
AGENT = msgspec.structs.replace(BOB, subject="alice", actor="bob")


def ordered_revocation(
    block_s: float = 0.0, leeway_s: float = 0.0, **selectors: str
) -> RevocationRecord:
    record = RevocationRecord(id="", created_at=NOW, created_by="root", **selectors)
    return revocation(
        record, now=NOW, leeway_s=leeway_s, longest_s=DAY, kept_s=7 * DAY, block_s=block_s
    )


MATCHING_CASES: list[tuple[dict[str, str], TenantContext, bool]] = [
    ({"tenant": "acme"}, BOB, True),
    ({"tenant": "acme2"}, BOB, False),
    ({"subject": "bob"}, BOB, True),
    ({"subject": "Bob"}, BOB, False),
    ({"subject": "bob", "issuer": "https://id.example"}, BOB, True),
    ({"subject": "bob", "issuer": "https://id.example/"}, BOB, False),
    ({"subject": "bob", "tenant": "acme"}, BOB, True),
    ({"subject": "bob", "tenant": "globex"}, BOB, False),
    ({"subject": "bob", "client": "other"}, BOB, False),
    ({"subject": "bob", "client": "agent"}, BOB, True),
    ({"subject": "bob"}, AGENT, True),
    ({"subject": "alice"}, AGENT, True),
    ({"client": "agent"}, BOB, True),
    ({"client": "bob"}, BOB, False),
    ({"client": "robot"}, ROBOT_CALLER, True),
    ({"client": "robot", "tenant": "globex"}, ROBOT_CALLER, False),
    ({"issuer": "https://id.example"}, BOB, True),
    ({"issuer": "https://other.example"}, BOB, False),
]


@each("case", range(len(MATCHING_CASES)))
def test_a_token_must_match_every_selector(case: int) -> None:
    """They are compared exactly; a subject also matches the actor."""
    selectors, caller, reached = MATCHING_CASES[case]
    snapshot = RevocationSnapshot(
        [
            ordered_revocation(**selectors),
            ordered_revocation(tenant="elsewhere"),
            ordered_revocation(subject="nobody"),
        ]
    )

    assert snapshot.revokes(caller, NOW) is reached


ISSUED_AT_CASES: list[tuple[dict[str, float], int | None, float, bool]] = [
    ({}, int(NOW) - 3600, 0, True),
    ({}, int(NOW), 0, True),
    ({}, int(NOW) + 1, 0, False),
    ({}, int(NOW), 6 * DAY, True),
    ({"leeway_s": 30}, int(NOW) + 30, 0, True),
    ({"leeway_s": 30}, int(NOW) + 31, 0, False),
    ({}, None, 0, True),
    ({}, None, DAY - 1, True),
    ({}, None, DAY + 1, False),
    ({"block_s": 7200}, int(NOW) + 7000, 7199, True),
    ({"block_s": 7200}, int(NOW) + 7000, 7200, False),
    ({"block_s": 7200}, int(NOW) - 1, 7200, True),
    ({"block_s": NEVER_EXPIRES}, int(NOW) + 7000, 400 * DAY, True),
    ({"block_s": NEVER_EXPIRES}, None, 400 * DAY, True),
]


@each("case", range(len(ISSUED_AT_CASES)))
def test_the_issue_time_of_a_token_decides_whether_it_is_revoked(case: int) -> None:
    """A token without one is refused for a while."""
    how, issued_at, later, refused = ISSUED_AT_CASES[case]
    snapshot = RevocationSnapshot([ordered_revocation(subject="bob", **how)])  # type: ignore[arg-type]
    caller = msgspec.structs.replace(BOB, issued_at=issued_at)

    assert snapshot.revokes(caller, NOW + later) is refused


RETENTION_CASES: list[tuple[dict[str, Any], float | None]] = [
    ({}, NOW + 7 * DAY),
    ({"leeway_s": 30.0}, NOW + 30 + 7 * DAY),
    ({"block_s": 30 * DAY}, NOW + 30 * DAY),
    ({"block_s": NEVER_EXPIRES}, None),
]


@pytest.mark.parametrize("case", range(len(RETENTION_CASES)))
def test_a_revocation_is_kept_longer_than_any_older_token(case: int) -> None:
    """One that also blocks newer tokens stays for ever."""
    how, until = RETENTION_CASES[case]

    assert ordered_revocation(subject="bob", **how).expires_at == until


def test_a_suspension_is_no_revocation() -> None:
    """Its callers' tokens are valid, so they get another answer than revoked ones."""
    snapshot = RevocationSnapshot([suspension("acme", now=NOW, by="root")])

    assert snapshot.suspended == {"acme"}
    assert not snapshot.revokes(BOB, NOW)


SPANS = {"90s": 90.0, "30m": 1800.0, "2h": 7200.0, "7d": 7 * DAY, "forever": NEVER_EXPIRES}
NO_SPANS = ["", "2", "h", "-2h", "2 h", "1w", "2.5h", "²h", "9999999s", "ever", "2h\n"]


@pytest.mark.parametrize("text", SPANS)
def test_a_span_is_a_number_with_a_unit_or_forever(text: str) -> None:
    """Examples are 90s, 30m, 2h and 7d."""
    assert seconds_of(text) == SPANS[text]


@each("text", NO_SPANS)
def test_an_invalid_span_is_refused(text: str) -> None:
    """Gatepost does not guess a unit; the error names the valid ones."""
    with pytest.raises(ValueError, match="write 90s, 30m, 2h, 7d or forever"):
        seconds_of(text)
