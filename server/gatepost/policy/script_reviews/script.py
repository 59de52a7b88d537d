"""Scripts, and what administrators decided about them."""

import hashlib
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from gatepost.policy.approvals.approval_request import DisplayedParty, reason_sentence
from gatepost.tools.context.interfaces import Workspace

Place = Literal["server", "workspace", "code"]
"""A folder of the operator, a folder of the tenant's workspace, or an argument of a call."""


class Script(msgspec.Struct, frozen=True):
    """
    Code as it was read once.

    Exactly these bytes are judged, shown to an administrator and run, even if the file changes
    meanwhile.
    """

    name: str
    content: bytes
    place: Place

    @property
    def file(self) -> str:
        """Return the name that people see."""
        return f"{self.name}.star"

    @property
    def digest(self) -> str:
        """
        Return the SHA-256 of name, NUL and content.

        The same bytes under another name are another script.
        """
        return hashlib.sha256(self.name.encode() + b"\0" + self.content).hexdigest()

    @property
    def text(self) -> str | None:
        """Return the content as text; None if it is not UTF-8."""
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None


class FoundScripts(msgspec.Struct, frozen=True):
    """The scripts of one tenant."""

    scripts: tuple[Script, ...]
    cut: bool
    """Whether there are more than the configuration allows."""


class ScriptSource(Protocol):
    """Finds the scripts of one tenant for `gatepost scripts`; a pack registers how to make one."""

    async def find(self, name: str) -> Script | None:
        """Return the script of that name; raise ToolFailure if it cannot be read."""

    async def all(self) -> FoundScripts:
        """Return all scripts by name, without those that cannot be read."""

    def allowed_by(self, script: Script) -> str | None:
        """Return the setting that lets the script run without an approval, if one does."""


OpenScriptSource = Callable[[Any, Workspace], ScriptSource]
"""Makes the source of one tenant, from the pack's own settings and the tenant's workspace."""

NO_CALLER = DisplayedParty(subject="")
"""The caller of a script that no call has submitted."""


class ScriptReview(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was approved or waits for approval."""

    name: str
    digest: str
    content: str
    """The complete content: an approver must see it, also on a machine without its file."""
    place: Place
    at: float
    """Seconds since the epoch."""
    caller: DisplayedParty = NO_CALLER
    """The caller that submitted it first."""
    approver: DisplayedParty | None = None
    """The person who approved it; None if it is not approved."""

    @classmethod
    def of(
        cls,
        script: Script,
        *,
        at: float,
        caller: DisplayedParty = NO_CALLER,
        approver: DisplayedParty | None = None,
    ) -> "ScriptReview":
        """Return the review of a script; raise ValueError if no person can read it."""
        text = script.text
        if text is None:
            raise ValueError(f"{script.file} is no UTF-8 text, so it cannot be approved.")
        return cls(
            name=script.name,
            digest=script.digest,
            content=text,
            place=script.place,
            at=at,
            caller=caller,
            approver=approver,
        )

    @property
    def script(self) -> Script:
        """Return the script that was reviewed."""
        return Script(self.name, self.content.encode(), self.place)


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """One content that was rejected; it is not submitted again."""

    review: ScriptReview
    """The submission."""
    by: DisplayedParty
    reason: str
    """The approver's reason, which callers read; may be empty."""
    at: float
    until: float
    """When it can be submitted again, in seconds since the epoch."""

    @property
    def reason_sentence(self) -> str:
        """Return the reason as a sentence that follows another one; empty without a reason."""
        return reason_sentence(self.reason)
