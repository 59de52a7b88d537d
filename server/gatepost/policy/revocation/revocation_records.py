"""Create suspensions, revocations and holds; pure functions that get the time as an argument."""

import re
import secrets

from gatepost.storage.revocations import HOLD_PREFIX, NEVER_EXPIRES, RevocationRecord
from gatepost_authz.caller import TenantContext

SUSPENDED = "suspended"
"""The id of a suspension; a tenant has at most one."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
SPAN = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)


def suspension(tenant: str, *, now: float, by: str, reason: str = "") -> RevocationRecord:
    """Suspend a tenant until the suspension is lifted."""
    return RevocationRecord(
        id=SUSPENDED, tenant=tenant, suspends=True, created_at=now, created_by=by, reason=reason
    )


def revocation(
    selectors: RevocationRecord,
    *,
    now: float,
    leeway_s: float,
    longest_s: float,
    kept_s: float,
    block_s: float,
) -> RevocationRecord:
    """
    Refuse every token issued before *now* that matches the selectors of *selectors*.

    *leeway_s* is how far an issuer's clock may be ahead, *longest_s* is the longest lifetime of a
    token, *kept_s* is how long stored data outlives its token, and *block_s* is for how long newer
    tokens are refused too (`NEVER_EXPIRES`: always).
    """
    before = now + leeway_s
    until = NEVER_EXPIRES if block_s >= NEVER_EXPIRES else now + block_s
    over = max(before + max(longest_s, kept_s), until)
    return RevocationRecord(
        id=secrets.token_hex(4),
        tenant=selectors.tenant,
        issuer=selectors.issuer,
        subject=selectors.subject,
        client=selectors.client,
        before=before,
        undated_until=before + longest_s,
        blocked_until=until if block_s else 0.0,
        created_at=now,
        created_by=selectors.created_by,
        reason=selectors.reason,
        expires_at=None if until == NEVER_EXPIRES else over,
    )


def hold(
    caller: TenantContext, *, now: float, for_s: float, by: str, reason: str
) -> RevocationRecord:
    """Hold the caller's calls for *for_s* seconds. A caller has one hold at a time."""
    return RevocationRecord(
        id=hold_id(caller),
        tenant=caller.tenant_id,
        issuer=caller.issuer,
        subject=caller.subject,
        created_at=now,
        created_by=by,
        reason=reason,
        expires_at=now + for_s,
    )


def hold_id(caller: TenantContext) -> str:
    """Return the id of the caller's hold; a machine with a person's subject is another caller."""
    return HOLD_PREFIX + caller.principal_digest.hex()[:16]


def seconds_of(text: str) -> float:
    """Return the seconds of a duration (`90s`, `30m`, `2h`, `7d`, `forever`); raise ValueError."""
    if text == "forever":
        return NEVER_EXPIRES
    match = SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no span of time: write 90s, 30m, 2h, 7d or forever")
    return float(int(match[1]) * UNITS[match[2]])
