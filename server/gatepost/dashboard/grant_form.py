"""The form fields of a grant."""

from collections.abc import Mapping

import msgspec

from gatepost.policy.approvals.approval_request import GrantScope

DURATIONS: Mapping[str, str] = {
    "": "This call only",
    "900": "15 minutes",
    "3600": "1 hour",
    "28800": "8 hours",
    "86400": "24 hours",
}
"""Durations in seconds, with their labels."""
MAX_USES = 10_000
ANY_CALL = "true"
"""A CEL condition that every call matches."""


class GrantFormPart(msgspec.Struct, frozen=True, kw_only=True):
    """The grant fields of the form, with their errors."""

    chosen: str = ""
    uses: str = ""
    pattern: str = "exact"
    condition: str = ""
    duration_error: str = ""
    uses_error: str = ""
    condition_error: str = ""

    @property
    def durations(self) -> list[tuple[str, str]]:
        """Return the durations to choose from."""
        return list(DURATIONS.items())

    @property
    def is_open(self) -> bool:
        """Return whether anything was chosen, so that the section is shown open."""
        return self != GrantFormPart()

    @property
    def has_errors(self) -> bool:
        """Return whether any field has an error."""
        return bool(self.duration_error or self.uses_error or self.condition_error)

    def granted(self, now: float) -> GrantScope | None:
        """Return the grant; None if only this call is approved."""
        if not self.chosen and not self.uses:
            return None
        condition = {"any": ANY_CALL, "condition": self.condition}.get(self.pattern)
        return GrantScope(
            until=now + int(self.chosen) if self.chosen else None,
            uses=int(self.uses) if self.uses else None,
            when=condition,
        )


def grant_form_of(form: Mapping[str, str]) -> GrantFormPart:
    """Return the grant fields of a submitted form, validated."""
    duration, uses = form.get("grant", ""), form.get("uses", "").strip()
    pattern, condition = form.get("pattern", "exact"), form.get("condition", "").strip()
    duration_error = uses_error = condition_error = ""
    if duration not in DURATIONS:
        duration, duration_error = "", "Choose one of the listed values."
    if uses and not (uses.isascii() and uses.isdecimal() and 1 <= int(uses[:9]) <= MAX_USES):
        uses_error = f"Enter a whole number from 1 to {MAX_USES:,}, or leave the field empty."
    if pattern != "exact" and not duration and not uses:
        duration_error = "Set a duration or a number of calls."
    if pattern == "condition" and not condition:
        condition_error = "Enter a condition, such as arguments.amount < 100."
    return GrantFormPart(
        chosen=duration,
        uses=uses,
        pattern=pattern if pattern in {"exact", "any", "condition"} else "exact",
        condition=condition,
        duration_error=duration_error,
        uses_error=uses_error,
        condition_error=condition_error,
    )
