"""
The store protocols, each already narrowed to one tenant.

*Records* hold what a promise depends on: memory for a laptop, SQL for everything else. The *relay*
carries what may be lost: memory within one process, Valkey or Redis between several. Every backend
passes the suites in `tests/contract`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from gatepost.stores.allowance import Denial, Slot, Spending
from gatepost.stores.approvals import Approvals, Grants
from gatepost.stores.audit import Scribe, TenantTrail
from gatepost.stores.cutoffs import Cutoffs
from gatepost.stores.estate import Estate
from gatepost.stores.notices import Notice, Notices

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})

Deliver = Callable[[bytes], None]
"""Takes a message of a topic; called on the event loop, must not block and must not raise."""


class StoreUnavailable(Exception):
    """The database or the relay does not answer; a caller hears 503 and may try again."""


class StoreRefused(Exception):
    """A store cannot be used as it is, and waiting does not help; the message is a sentence."""


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One task of the tasks extension, as it survives the process that runs it.

    Times are seconds since the epoch. The fields of type bytes are opaque here: whoever makes the
    record encodes them. ``revision`` grows with every change.
    """

    id: str
    owner: bytes
    """Digest of the principal that created it; nobody else learns that it exists."""
    tool: str
    status: TaskStatus
    created_at: float
    updated_at: float
    expires_at: float
    call: bytes
    """What is needed to run it again: arguments, caller, what its client can do."""
    status_message: str | None = None
    requests: bytes | None = None
    """The input requests that wait for an answer."""
    answers: bytes | None = None
    """The answers given so far, by key."""
    result: bytes | None = None
    error: bytes | None = None
    cancelled: bool = False
    """Somebody asked for the end of it."""
    runner: str = ""
    """The process that runs it."""
    leased_until: float = 0.0
    """After this time its runner counts as gone."""
    revision: int = 0


class Tasks(Protocol):
    """The tasks of one tenant."""

    async def create(self, task: TaskRecord) -> None:
        """Keep a new task; it is durable when this returns."""

    async def get(self, task_id: str) -> TaskRecord | None:
        """The task, also one whose time is over and that nobody swept away yet."""

    async def replace(self, task: TaskRecord) -> bool:
        """
        Put *task* in the place of the record with the same id and ``revision``; it is kept with
        the next revision. False when somebody changed or removed that record meanwhile.
        """

    async def count(self, owner: bytes) -> int:
        """How many tasks of this owner are not at their end."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """
    One use of a retry key.

    Without an ``outcome`` it runs, as long as ``leased_until`` has not passed; after that nobody
    knows how it ended.
    """

    key: bytes
    digest: bytes
    """Of the tool and its arguments."""
    holder: str
    """The call that runs."""
    leased_until: float
    expires_at: float
    outcome: bytes | None = None


class Claims(Protocol):
    """The retry keys of one tenant, each used once."""

    async def begin(self, claim: Claim, *, now: float) -> Claim | None:
        """
        Claim a key; None when it is ours now, durably, else the claim that holds it.

        A claim whose time is over (``expires_at``) makes room. Of several at once, in any process,
        exactly one gets None.
        """

    async def get(self, key: bytes) -> Claim | None:
        """The claim that holds this key."""

    async def renew(self, key: bytes, holder: str, leased_until: float) -> bool:
        """Say that the call still runs; False when the claim is not *holder*'s any more."""

    async def finish(self, key: bytes, holder: str, outcome: bytes, expires_at: float) -> bool:
        """Keep how it ended, durably; False when the claim is not *holder*'s any more."""

    async def release(self, key: bytes, holder: str) -> None:
        """Give up a claim under which nothing was done."""

    async def take_over(self, claim: Claim, *, was: Claim) -> bool:
        """Claim a key whose holder is gone; False unless the claim is still exactly *was*."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a session of an older revision remembers beyond its signed id."""

    ended: bool = False
    log_level: str | None = None
    subscriptions: tuple[str, ...] = ()
    """URIs of resources whose changes its client wants to hear of."""
    listener: str = ""
    """The GET stream that gets what belongs to no request: the newest one, at any replica."""
    revision: int = 0


class Sessions(Protocol):
    """The sessions of one tenant, by key; one that nobody kept is a fresh SessionRecord."""

    async def get(self, key: bytes) -> SessionRecord:
        """What is remembered of the session."""

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        """
        Keep *record* in the place of the one with the same ``revision`` (0: none yet), durably.
        False when somebody changed it meanwhile.
        """


MOST_VALUE = 64_000_000
"""Bytes of one entry's value."""
MOST_KEY = 256
"""Characters of one entry's key; a database's index takes no key of any length."""


class EntryRefused(ValueError):
    """An entry too large to keep; the message is a sentence that holds nothing of its value."""


def fits(key: str, value: bytes) -> None:
    """Raise EntryRefused for an entry that no backend keeps."""
    if len(key) > MOST_KEY:
        raise EntryRefused(f"a key has {len(key)} characters and may have {MOST_KEY}")
    if len(value) > MOST_VALUE:
        raise EntryRefused(f"a value has {len(value)} bytes and may have {MOST_VALUE}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """
    One value that a tenant keeps under a key.

    ``revision`` grows with every change, from 1, and goes on where it was when the entry is deleted
    and made anew: what was read of the one never passes for the other.
    """

    key: str
    value: bytes
    revision: int
    updated_at: float
    expires_at: float | None = None
    """When it may go; None: it stays until somebody deletes it."""


class Entries(Protocol):
    """
    What one tenant keeps of one subject, by key: secrets, approved scripts, loaded APIs.

    Values are opaque here and stay until somebody deletes them, or some time after they expire: by
    a revision nobody may tell an expired one from one made anew. A key of more than `MOST_KEY`
    characters and a value of more than `MOST_VALUE` bytes raise EntryRefused when they are put.
    """

    async def get(self, key: str) -> Entry | None:
        """The entry of that key."""

    async def all(self) -> list[Entry]:
        """Every entry of the subject, by key."""

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        now: float,
        revision: int | None = None,
        expires_at: float | None = None,
    ) -> bool:
        """
        Keep *value* under *key*, durably; raises EntryRefused.

        With *revision* only in the place of the entry that has it (0: of none); False when
        somebody else changed it meanwhile.
        """

    async def delete(self, key: str) -> bool:
        """Remove an entry, durably; whether there was one."""


class TenantRecords(Protocol):
    """All durable stores of one tenant."""

    @property
    def tasks(self) -> Tasks:
        """Its tasks."""

    @property
    def claims(self) -> Claims:
        """Its retry keys."""

    @property
    def sessions(self) -> Sessions:
        """Its sessions."""

    @property
    def approvals(self) -> Approvals:
        """What waits for a person of it, and what was decided."""

    @property
    def grants(self) -> Grants:
        """The calls that its people granted beforehand."""

    @property
    def notices(self) -> Notices:
        """What another system is still to be told of it."""

    @property
    def trail(self) -> TenantTrail:
        """Its record of what happened."""

    def entries(self, subject: str) -> Entries:
        """What it keeps of one subject; *subject* is a name in our own code."""


class Records(Protocol):
    """The durable stores; `of` costs nothing and keeps tenants apart."""

    def of(self, tenant: str) -> TenantRecords:
        """The stores of one tenant."""

    @property
    def cutoffs(self) -> Cutoffs:
        """Who is shut out, of all tenants."""

    @property
    def estate(self) -> Estate:
        """Everything that tenants keep, to be counted and removed."""

    @property
    def scribe(self) -> Scribe:
        """Writes what happened, for all tenants together."""

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Tenant and id of tasks that are not at their end and whose lease is over."""

    async def overdue_approvals(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Tenant and id of requests that nobody decided, or used, in time."""

    async def claim_notices(
        self, now: float, until: float, holder: str, most: int
    ) -> list[tuple[str, Notice]]:
        """
        Take what is due of any tenant, so that nobody else does *until* then; with the tenant of
        each. Each is taken by one, in any process, and none before those about the same thing that
        come first.
        """

    async def tenants(self, subject: str) -> list[str]:
        """Every tenant that keeps an entry of that subject."""

    async def sweep(self, now: float) -> int:
        """Remove everything whose time is over; answers how many records went."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers."""

    async def aclose(self) -> None:
        """Close what was opened."""


class Following(Protocol):
    """One interest in a topic."""

    async def aclose(self) -> None:
        """Hear no more."""


class Event(msgspec.Struct, frozen=True):
    """One entry of a log; numbers begin at 1 and have no gaps."""

    number: int
    data: bytes


class TenantRelay(Protocol):
    """Messages, notes and short logs of one tenant, between processes; all of it may be lost."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Tell everybody who follows the topic, in this process and in the others."""

    async def follow(self, topic: str, deliver: Deliver) -> Following:
        """Hear what is published from now on: what comes after this returns is delivered."""

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Leave a note for whoever knows its key."""

    async def take(self, key: str) -> bytes | None:
        """The note, which is gone then; of several takers one gets it."""

    async def spend(self, bucket: str, *, rate: float, burst: float) -> float:
        """
        Take one from a token bucket that gains *rate* a second and holds *burst*.

        0 when it had one; else the seconds until it will, and nothing was taken. One atomic step,
        whoever else spends.
        """

    async def spend_all(
        self, spendings: Sequence[Spending], slots: Sequence[Slot] = ()
    ) -> Denial | None:
        """
        Take one from each bucket and a place of each slot, or nothing at all; None when taken.

        One atomic step, whoever else spends; the names of one step differ. Places count until
        `leave`, or until the process that took them has said nothing for `LEASE_S`.
        """

    def hold(self, slots: Sequence[Slot]) -> None:
        """Count places that are taken whether there is room or not; others hear of it soon."""

    def leave(self, slots: Sequence[Slot]) -> None:
        """Give places back; others hear of it soon."""

    async def levels(self, spendings: Sequence[Spending], slots: Sequence[Slot]) -> list[float]:
        """What is in each bucket, and how many places of each slot are in use; takes nothing."""

    async def append(self, log: str, data: bytes, *, ttl_s: float, most: int) -> int:
        """Write to a log; answers the entry's number. Only the *most* newest entries are kept."""

    async def read(self, log: str, after: int) -> list[Event] | None:
        """The entries after that number; None when the log is unknown or misses some of them."""

    async def forget(self, log: str) -> None:
        """Drop a log."""

    async def clear(self) -> None:
        """Drop every note and every log of the tenant."""


class Relay(Protocol):
    """What connects the processes."""

    def of(self, tenant: str) -> TenantRelay:
        """The relay of one tenant; costs nothing."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the relay answers."""

    async def aclose(self) -> None:
        """Close what was opened; followers hear no more."""
