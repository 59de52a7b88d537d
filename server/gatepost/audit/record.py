"""What one record says, and what of it can be erased without breaking the chain."""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv6Address
from typing import Any, Literal

import msgspec

from gatepost.stores.audit import Draft, Sort
from gatepost_authz.caller import TenantContext

Kind = Literal[
    "call",
    "refusal",
    "approval",
    "grant",
    "cutoff",
    "secret",
    "signin",
    "tenant_mismatch",
    "tenant",
    "key",
    "erasure",
    "retention",
    "gap",
    "break",
]
"""
What a record is about. The last five are the trail's own: another key signs from here on, what was
erased, what is gone because its time was over, what could not be written, and where the chain's end
was not the one that this server had left.
"""
SALT_BYTES = 16
LONGEST = 4_096
"""Characters of any text but the arguments, which have a bound of their own."""

_encode = msgspec.json.Encoder(order="sorted").encode
_plain = msgspec.json.encode


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    What the chain is made of, in this order behind the number; what is empty is left out.

    Nothing here is a person's or a secret: that stands behind ``commitments``, each SHA-256 of the
    salt and the value, in hexadecimal. All numbers are integers, so that every JSON library writes
    them the same.
    """

    at: int
    """When it ended, in milliseconds since the epoch."""
    kind: str
    tenant: str
    tool: str = ""
    """The tool's name; for anything else that is called, its declared name."""
    offer: str = "tool"
    """What was called: a tool, a document, a prompt or a skill."""
    outcome: str = ""
    """`success`, the kind of the failure or refusal, or what was decided."""
    duration_us: int = 0
    request_id: str = ""
    retry: str = ""
    """The kind of retry key that the call came with."""
    replayed: bool = False
    """The answer is the first call's: the tool did not run again."""
    approval: str = ""
    depth: int = 0
    """How many calls of other tools led to this one."""
    times: int = 1
    """So many refusals that differ in nothing but their time."""
    limit: str = ""
    """Which of `[limits]` has refused: the `caller`'s, `tenant`'s, `tool`'s, or the `server`'s."""
    subject_kind: str = ""
    """Whether a person called ("user") or a machine ("client")."""
    shared_audience: bool = False
    """The token named other audiences too, so that other servers may hold it."""
    details: Mapping[str, str] = {}
    commitments: Mapping[str, str] = {}


class Numbered(Body, frozen=True, kw_only=True):
    """A body as it is kept."""

    number: int


class Person(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who somebody is: the value of `caller` and `about` in a side part, as JSON."""

    issuer: str
    subject: str
    client: str = ""
    name: str = ""
    actor: str = ""
    """Who acts for them, as the token says (``act``)."""
    peer: str = ""
    """
    The network address that they came from, where it is known: of their proxy, if they have one.

    Here and not beside it: whatever erases a person takes it along, and each record has as many
    commitments as before.
    """


Side = dict[str, tuple[str, str]]
"""Salt (hexadecimal) and value, by field: what a record's commitments are of."""
Value = tuple[str, bytes, str]
"""One that a record commits to: its field and itself as JSON strings, and what is hashed."""

decode_numbered = msgspec.json.Decoder(Numbered).decode
decode_side = msgspec.json.Decoder(Side).decode
decode_person = msgspec.json.Decoder(Person).decode


def person_of(caller: TenantContext, peer: str = "") -> Person:
    """The caller as a record names it, who came from that address."""
    named = caller.issuer, caller.subject, caller.client_id or "", caller.name, caller.actor or ""
    return Person(*map(text, (*named, peer and address(peer))))


def address(peer: str) -> str:
    """An address in the form in which people look for it: IPv4 also where a socket maps it."""
    if not peer.startswith("::ffff:"):
        return peer
    try:
        mapped = IPv6Address(peer).ipv4_mapped
    except ValueError:
        return peer
    return peer if mapped is None else str(mapped)


_REQUIRED = len(_plain(Body(at=0, kind="", tenant=""))) - 1
_AT = len(_plain({"at": 0})) - 1


def opening(*, kind: str, tenant: str, tool: str, offer: str, outcome: str) -> str:
    """The members of a body from its kind to its outcome, each with the comma before it."""
    body = Body(at=0, kind=kind, tenant=tenant, tool=tool, offer=offer, outcome=outcome)
    return _plain(body)[_AT:-1].decode()


def members(**fields: Any) -> str:
    """Any of those behind the outcome as a body has them; nothing of one that is empty."""
    return _plain(Body(at=0, kind="", tenant="", **fields))[_REQUIRED:-1].decode()


def draft(body: Body, private: Mapping[str, str]) -> Draft:
    """The record of *body* and of the values that can be erased, which it commits to."""
    encoded = _plain(body)[1:-1].decode()
    sort = (body.kind, body.tool, body.outcome)
    if not private:
        return drafted(f",{encoded}}}", body.at, sort, None)
    side, commitments = sealed([value(quoted(name), text) for name, text in private.items()], [])
    whole = f',{encoded},"commitments":{commitments}}}'
    return drafted(whole, body.at, sort, side)


def drafted(body: str, at: int, sort: Sort, side: str | None) -> Draft:
    """The record of a body that is encoded already, from the comma behind its number."""
    return Draft(body.encode(), at, sort, None if side is None else side.encode())


def fresh_salts(number: int) -> list[bytes]:
    """
    So many salts, each for one value alone.

    Asking the system for each of them lets go of the interpreter's lock each time, and the thread
    that writes records would wait for the loop as often.
    """
    drawn = os.urandom(SALT_BYTES * number)
    return [drawn[at : at + SALT_BYTES] for at in range(0, len(drawn), SALT_BYTES)]


def value(field: str, text: str) -> Value:
    """A text that is about to be sealed, of a *field* that is quoted already."""
    return field, text.encode(), quoted(text)


def sealed(values: Sequence[Value], salts: list[bytes]) -> tuple[str, str]:
    """
    The side part of these values, and the commitments to them, both as JSON.

    Each takes one of the *salts* away; where there are too few, more are drawn.
    """
    if len(salts) < len(values):
        salts += fresh_salts(len(values))
    side = commitments = ""
    for field, plain, written in values:
        salt = salts.pop()
        side = f'{side},{field}:["{salt.hex()}",{written}]'
        commitments = f'{commitments},{field}:"{sha256(salt + plain).hexdigest()}"'
    return f"{{{side[1:]}}}", f"{{{commitments[1:]}}}"


def commitment(salt: str, value: str) -> str:
    """What a body says of a value; raises ValueError for what is no salt."""
    return sha256(bytes.fromhex(salt) + value.encode()).hexdigest()


def encode(value: object) -> str:
    """JSON with members in the order of their names."""
    return _encode(value).decode()


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return _plain(text).decode()


def text(value: str, most: int = LONGEST) -> str:
    """A text that every database and every JSON library takes, and not too long."""
    cut = value if len(value) <= most else f"{value[:most]}…"
    if cut.isascii() and "\0" not in cut:
        return cut
    return cut.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
