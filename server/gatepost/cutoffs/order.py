"""What an operator orders, as cut-offs; pure, with the clock passed in."""

import re
import secrets

from gatepost.stores.cutoffs import FOR_EVER, CutOff

SUSPENDED = "suspended"
"""The id of a suspension: a tenant has one."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
SPAN = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)


def suspension(tenant: str, *, now: float, by: str, reason: str = "") -> CutOff:
    """Shut a tenant until somebody opens it again."""
    return CutOff(
        id=SUSPENDED, tenant=tenant, suspends=True, made_at=now, made_by=by, reason=reason
    )


def revocation(
    reach: CutOff, *, now: float, leeway_s: float, longest_s: float, kept_s: float, block_s: float
) -> CutOff:
    """
    Refuse every token issued before *now* to whom the selectors of *reach* name.

    *leeway_s* is how far an issuer's clock may be ahead of ours, *longest_s* how long any token
    lives, *kept_s* how long anything else outlives its token, and *block_s* for how long newer
    tokens are refused too (`FOR_EVER`: always).
    """
    before = now + leeway_s
    until = FOR_EVER if block_s >= FOR_EVER else now + block_s
    over = max(before + max(longest_s, kept_s), until)
    return CutOff(
        id=secrets.token_hex(4),
        tenant=reach.tenant,
        issuer=reach.issuer,
        subject=reach.subject,
        client=reach.client,
        before=before,
        undated_until=before + longest_s,
        blocked_until=until if block_s else 0.0,
        made_at=now,
        made_by=reach.made_by,
        reason=reach.reason,
        expires_at=None if until == FOR_EVER else over,
    )


def seconds_of(text: str) -> float:
    """A span as people write it (`90s`, `30m`, `2h`, `7d`, `ever`); ValueError for another."""
    if text == "ever":
        return FOR_EVER
    match = SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no span of time: write 90s, 30m, 2h, 7d or ever")
    return float(int(match[1]) * UNITS[match[2]])
