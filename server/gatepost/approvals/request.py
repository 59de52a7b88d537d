"""What waits for a person and what came of it, as pages and the command line see it."""

import hashlib
from typing import Literal

import msgspec

from gatepost.stores.approvals import State
from gatepost_authz.caller import SubjectKind, TenantContext

Kind = Literal["call", "script"]
Verdict = Literal["approved", "rejected"]


class Undecidable(Exception):
    """A decision that cannot be taken; the message is a sentence for whoever wanted to take it."""


class Operator(msgspec.Struct, frozen=True):
    """Whoever runs the command line on the server, by the name that the machine knows them by."""

    name: str


class Visitor(TenantContext, frozen=True, kw_only=True, gc=False):
    """Whoever has signed in, and where their decision comes from: for its record only."""

    peer: str = ""


Approver = TenantContext | Operator
"""A person who has signed in (any roles; the desk judges them), or the operator."""


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody as a page shows them; nothing is decided by the names."""

    subject: str
    """The stable id; an operator's own name."""
    issuer: str = ""
    """Empty for an operator."""
    kind: SubjectKind | Literal["operator"] = "user"
    name: str = ""
    """What people call them, where their token says it; else empty."""
    client_id: str | None = None
    actor: str | None = None
    """Who acts for them, as the token says (``act``, RFC 8693 section 4.1)."""
    issued_at: int | None = None
    """When that token was issued; None: it did not say, or an older version kept this."""

    @property
    def shown(self) -> str:
        """The best name that there is."""
        return self.name or self.subject


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What one person decided."""

    by: Party
    verdict: Verdict
    at: float
    """Seconds since the epoch."""
    reason: str = ""
    edited: bool = False
    """Whether they changed the arguments."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """
    One call, or one script, that waits for a person or was decided about.

    Nothing in it holds a secret: `arguments` and `edited` are JSON objects (UTF-8) in which
    secrets are `[REDACTED:NAME]`. Everything in it comes from strangers: escape it. Times are
    seconds since the epoch.
    """

    id: str
    tenant: str
    kind: Kind = "call"
    state: State
    tool: str
    """Its name; of a script the name of its file."""
    title: str = ""
    """The tool's, for people; may be empty."""
    caller: Party
    """Who called; of a script who wanted to run it first."""
    arguments: bytes = b"{}"
    edited: bytes | None = None
    """What the call runs with instead."""
    created_at: float
    until: float
    """Until when it can be decided; of an approved one until when it can be used."""
    decided_at: float | None = None
    """When it left the state `waiting`."""
    reason: str = ""
    """Why a person is asked, in the operator's words; may be empty."""
    needed: int = 1
    """How many people have to approve."""
    by: tuple[tuple[str, ...], ...] = ()
    """Who may decide: one of each group (`role:NAME`, `subject:ISSUER SUBJECT`)."""
    policy: str = ""
    """Of a call: the version of the tool's rules that asked; other rules ask anew."""
    decisions: tuple[Decision, ...] = ()
    """In their order."""
    request_id: str = ""
    """Of the call that asked first."""
    correlation: str | None = None
    read_only: bool = False
    destructive: bool = False
    """What the tool says of itself."""
    content: str | None = None
    """All of a script."""
    approved_content: str | None = None
    """The approved script of the same name; None: there is none."""

    @property
    def digest(self) -> str:
        """Another one for anything else to be approved: whoever approves says which they saw."""
        seen = (self.id, self.edited or self.arguments, self.content)
        return hashlib.sha256(msgspec.msgpack.encode(seen)).hexdigest()[:16]

    @property
    def given(self) -> int:
        """How many people have approved so far."""
        return sum(one.verdict == "approved" for one in self.decisions)


class GrantTerms(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an approver allows beyond one call: the same caller and tool, without being asked again.

    At least one of `until` and `uses` is set; without `until` it ends after a day.
    """

    until: float | None = None
    """Seconds since the epoch."""
    uses: int | None = None
    """How many calls; the one that is approved does not count."""
    when: str | None = None
    """CEL over `arguments`, `caller` and `tool`; None: exactly these arguments."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that somebody approved before they are made."""

    id: str
    tenant: str
    caller: Party
    tool: str
    when: str | None = None
    """None: exactly the arguments of the request it was given with."""
    arguments: bytes = b"{}"
    """Those arguments, redacted as in a Request."""
    until: float
    left: int | None = None
    """How many calls are left; None: any number."""
    created_at: float
    by: Party
    request: str
    """The id of the request that it was given with."""


def party_of(who: Approver) -> Party:
    """Somebody as pages show them."""
    if isinstance(who, Operator):
        return Party(subject=who.name, kind="operator")
    return Party(
        subject=who.subject,
        issuer=who.issuer,
        kind=who.subject_kind,
        name=who.name,
        client_id=who.client_id,
        actor=who.actor,
        issued_at=who.issued_at,
    )
