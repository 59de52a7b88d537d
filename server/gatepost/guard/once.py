"""A retried call gets the first outcome and runs its tool once (design, decision 16)."""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from gatepost.guard.run import Run, Terms, Work
from gatepost.limits.attempts import Attempts
from gatepost.stores.api import Records, Relay
from gatepost.tools.api import Call, Offer, Outcome, Retry, Tool, ToolFailure
from gatepost.tools.record import remark
from gatepost.tools.redaction import Guard, Redaction
from gatepost.tools.runner import GRACE_S, Next
from gatepost_authz.caller import TenantContext

DAY_S = 86_400.0
MINUTE_S = 60.0
KEPT_S = {"idempotency": DAY_S, "correlation": MINUTE_S}

STILL_RUNNING = "The first call with this retry key is still running."
COME_BACK_S = 5.0

CLOSING_S = 5.0


def _number(text: str) -> float | int | str:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return text
    # Integers stay exact however they are spelt: a double would make neighbours the same.
    return int(value) if value.is_integer() else value


_decode = msgspec.json.Decoder(float_hook=_number).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


class Runs:
    """What runs, or is waited for, under retry keys in this process; outlives a reload."""

    def __init__(
        self, records: Records, relay: Relay, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self._relay, self._clock = records, relay, clock
        self._open: dict[tuple[bytes, bytes], Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, work: Work, terms: Terms) -> Outcome:
        """Do the work under these terms, or get what came of it; ToolFailure while it runs on."""
        caller, loop = work.call.caller, asyncio.get_running_loop()
        # Whoever only waits must not do so for longer than it may call; a task may.
        allowed_s = max(caller.expires_at - self._clock(), 0.0) + GRACE_S
        until = loop.time() + (work.limit_s if work.call.lasting else min(work.limit_s, allowed_s))
        while True:
            place = (terms.key, terms.digest)
            run = self._open.get(place)
            own = run is None
            if run is None:
                run = self._begin(work, terms)
            ending = await run.wait(until, own=own)
            if ending is None:
                raise ToolFailure("conflict", STILL_RUNNING, retry_after=COME_BACK_S)
            if not (ending.shared or own):
                continue
            if not (own and run.leads) and not ending.refuses:
                remark("replayed", "yes")
            if (outcome := ending.answer()) is not None:
                return outcome

    def _begin(self, work: Work, terms: Terms) -> Run:
        tenant, place = work.call.caller.tenant_id, (terms.key, terms.digest)
        run = Run(
            work,
            terms,
            claims=self._records.of(tenant).claims,
            relay=self._relay.of(tenant),
            clock=self._clock,
            ended=lambda: self._open.pop(place, None),
        )
        self._open[place] = run
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        return run

    def end(self, which: Callable[[TenantContext], bool]) -> None:
        """Stop what runs or waits for these callers, also where nobody waits any more."""
        for run in tuple(self._open.values()):
            if which(run.caller):
                run.stop()

    async def aclose(self) -> None:
        """Let what runs come to its end, for a while; then stop it, and keep that it was."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for run in tuple(self._open.values()):
            run.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for task in tuple(self._tasks):
            task.cancel()


class Once:
    """
    The stage around spending, approving and invoking: what is kept is what an invoked tool
    answered, so a refused call leaves its key free. A call without a retry key does not meet it.
    """

    for_retries = True

    def __init__(
        self,
        runs: Runs,
        *,
        timeout_s: float,
        max_result_bytes: int,
        kept_s: float = DAY_S,
        attempts: Attempts | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        self._runs = runs
        self._redaction = redaction or Redaction()
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._max_result_bytes = max_result_bytes
        self._kept_s = KEPT_S | {"idempotency": kept_s}

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """See `Stage`."""
        retry = call.retry
        if retry is None or not isinstance(offer, Tool):
            return proceed(call, offer, arguments)
        reads = only_reads(offer, arguments)
        if retry.kind == "correlation" and reads:
            # An episode asks the same thing twice because it wants to know what it is now.
            return proceed(call, offer, arguments)
        if self._attempts is not None:
            self._attempts.check(call.caller)
        work = Work(
            call,
            offer,
            arguments,
            proceed,
            repeatable=may_repeat(offer, arguments),
            limit_s=offer.timeout_s or self._timeout_s,
            max_result_bytes=self._max_result_bytes,
            guard=Guard(self._redaction, call, offer),
        )
        terms = terms_of(call.caller, offer, retry, call.arguments, self._kept_s)
        return self._runs.join(work, terms)


def only_reads(tool: Tool, arguments: Any) -> bool:
    """Whether a call changes nothing, as its tool declares."""
    if tool.annotations.read_only_hint is True:
        return True
    return tool.read_only_form is not None and tool.read_only_form(arguments)


def may_repeat(tool: Tool, arguments: Any) -> bool:
    """Whether the call may run again where nobody knows how it ended, as its tool declares."""
    return only_reads(tool, arguments) or tool.annotations.idempotent_hint is True


def terms_of(
    caller: TenantContext,
    tool: Tool,
    retry: Retry,
    arguments: bytes,
    kept_s: Mapping[str, float] = KEPT_S,
) -> Terms:
    """
    The claim a call needs.

    It belongs to the caller, the client it uses and the tool: nobody meets somebody else's. A
    correlation id is an episode's, which may call a tool many times; there other arguments are
    another call.
    """
    digest = digest_of(arguments)
    if tool.secret_arguments:
        # It is kept for a day: whoever reads the database must not try passwords on it. The retry
        # key, which only its client has, is not kept.
        digest = hmac.digest(retry.key.encode(errors="surrogatepass"), digest, "sha256")
    named = (*caller.principal_key, caller.client_id, tool.name, retry.kind, retry.key)
    episode = digest.hex() if retry.kind == "correlation" else None
    return Terms(
        # As JSON, so that no choice of ids makes two different callers the same.
        key=hashlib.sha256(msgspec.json.encode((*named, episode))).digest(),
        digest=digest,
        holder=secrets.token_hex(8),
        running_s=DAY_S,
        kept_s=kept_s[retry.kind],
        unknown_s=MINUTE_S if retry.kind == "correlation" else None,
    )


def digest_of(arguments: bytes) -> bytes:
    """The same for arguments that differ in nothing but spelling (as RFC 8785, integers exact)."""
    # The tool's own parser may take what this one does not: then the bytes have to do.
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = _encode_sorted(_decode(arguments))
    return hashlib.sha256(arguments).digest()
