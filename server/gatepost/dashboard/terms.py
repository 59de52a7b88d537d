"""What an approver allows beyond one call, as the form says it."""

from collections.abc import Mapping

import msgspec

from gatepost.approvals.request import GrantTerms

TERMS: Mapping[str, str] = {
    "": "This call only",
    "900": "15 minutes",
    "3600": "1 hour",
    "28800": "8 hours",
    "86400": "24 hours",
}
"""Seconds, and what they are called."""
MOST_USES = 10_000
ANY = "true"
"""CEL that every call satisfies."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The form's part about it: what was chosen, and what is wrong with that."""

    chosen: str = ""
    uses: str = ""
    pattern: str = "exact"
    condition: str = ""
    term_mistake: str = ""
    uses_mistake: str = ""
    condition_mistake: str = ""

    @property
    def terms(self) -> list[tuple[str, str]]:
        """What can be chosen."""
        return list(TERMS.items())

    @property
    def is_open(self) -> bool:
        """Whether something was chosen, so that it has to be seen."""
        return self != Terms()

    @property
    def has_mistakes(self) -> bool:
        """Whether something has to be corrected."""
        return bool(self.term_mistake or self.uses_mistake or self.condition_mistake)

    def granted(self, now: float) -> GrantTerms | None:
        """What it means; None: nothing beyond the call."""
        if not self.chosen and not self.uses:
            return None
        when = {"any": ANY, "condition": self.condition}.get(self.pattern)
        return GrantTerms(
            until=now + int(self.chosen) if self.chosen else None,
            uses=int(self.uses) if self.uses else None,
            when=when,
        )


def terms_of(form: Mapping[str, str]) -> Terms:
    """The form's part, judged."""
    chosen, uses = form.get("grant", ""), form.get("uses", "").strip()
    pattern, condition = form.get("pattern", "exact"), form.get("condition", "").strip()
    term_mistake = uses_mistake = condition_mistake = ""
    if chosen not in TERMS:
        chosen, term_mistake = "", "Choose one of these."
    if uses and not (uses.isascii() and uses.isdecimal() and 1 <= int(uses[:9]) <= MOST_USES):
        uses_mistake = f"A whole number from 1 to {MOST_USES:,}, or nothing."
    if pattern != "exact" and not chosen and not uses:
        term_mistake = "Say for how long, or for how many calls."
    if pattern == "condition" and not condition:
        condition_mistake = "Write a condition, such as arguments.amount < 100."
    return Terms(
        chosen=chosen,
        uses=uses,
        pattern=pattern if pattern in {"exact", "any", "condition"} else "exact",
        condition=condition,
        term_mistake=term_mistake,
        uses_mistake=uses_mistake,
        condition_mistake=condition_mistake,
    )
