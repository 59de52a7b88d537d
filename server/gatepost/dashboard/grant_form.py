"""The form fields of a grant."""

from collections.abc import Mapping

import msgspec

from gatepost.policy.approvals.request import GrantScope

DURATIONS: Mapping[str, str] = {
    "": "This call only",
    "900": "15 minutes",
    "3600": "1 hour",
    "28800": "8 hours",
    "86400": "24 hours",
}
"""Durations in seconds, with their labels."""
MOST_USES = 10_000
ANY = "true"
"""A CEL condition that every call matches."""


class GrantFormPart(msgspec.Struct, frozen=True, kw_only=True):
    """The grant fields of the form, with their mistakes."""

    chosen: str = ""
    uses: str = ""
    pattern: str = "exact"
    condition: str = ""
    duration_mistake: str = ""
    uses_mistake: str = ""
    condition_mistake: str = ""

    @property
    def durations(self) -> list[tuple[str, str]]:
        """Return the durations to choose from."""
        return list(DURATIONS.items())

    @property
    def is_open(self) -> bool:
        """Return whether anything was chosen, so that the section is shown open."""
        return self != GrantFormPart()

    @property
    def has_mistakes(self) -> bool:
        """Return whether any field has a mistake."""
        return bool(self.duration_mistake or self.uses_mistake or self.condition_mistake)

    def granted(self, now: float) -> GrantScope | None:
        """Return the grant; None if only this call is approved."""
        if not self.chosen and not self.uses:
            return None
        when = {"any": ANY, "condition": self.condition}.get(self.pattern)
        return GrantScope(
            until=now + int(self.chosen) if self.chosen else None,
            uses=int(self.uses) if self.uses else None,
            when=when,
        )


def grant_form_of(form: Mapping[str, str]) -> GrantFormPart:
    """Return the grant fields of a submitted form, validated."""
    chosen, uses = form.get("grant", ""), form.get("uses", "").strip()
    pattern, condition = form.get("pattern", "exact"), form.get("condition", "").strip()
    duration_mistake = uses_mistake = condition_mistake = ""
    if chosen not in DURATIONS:
        chosen, duration_mistake = "", "Choose one of the listed values."
    if uses and not (uses.isascii() and uses.isdecimal() and 1 <= int(uses[:9]) <= MOST_USES):
        uses_mistake = f"Enter a whole number from 1 to {MOST_USES:,}, or leave the field empty."
    if pattern != "exact" and not chosen and not uses:
        duration_mistake = "Set a duration or a number of calls."
    if pattern == "condition" and not condition:
        condition_mistake = "Enter a condition, such as arguments.amount < 100."
    return GrantFormPart(
        chosen=chosen,
        uses=uses,
        pattern=pattern if pattern in {"exact", "any", "condition"} else "exact",
        condition=condition,
        duration_mistake=duration_mistake,
        uses_mistake=uses_mistake,
        condition_mistake=condition_mistake,
    )
