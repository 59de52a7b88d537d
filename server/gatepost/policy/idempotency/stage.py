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

from gatepost.policy.idempotency.execution import (
    IdempotencyTerms,
    IdempotentExecution,
    IdempotentWork,
)
from gatepost.storage.quota import StorageQuota
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay
from gatepost.tools.api import Call, IdempotencyKey, Offer, Outcome, Tool, ToolFailure
from gatepost.tools.cpu_thread import in_cpu_thread
from gatepost.tools.redacted_call import RedactedCall, remark
from gatepost.tools.redaction import LONG_BYTES, Redaction
from gatepost.tools.runner import GRACE_S
from gatepost.tools.stage import Next, Stage
from gatepost_authz.caller import TenantContext

DAY_S = 86_400.0
MINUTE_S = 60.0
KEPT_S = {"idempotency": DAY_S, "correlation": MINUTE_S}

STILL_RUNNING = "The first call with this idempotency key is still running."
COME_BACK_S = 5.0

CLOSING_S = 5.0
EXACT = 1e25


def _number(text: str) -> float | int | str:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return text
    # Integers stay exact however they are written: as doubles, neighbours would become equal. Huge
    # numbers stay doubles, because writing hundreds of digits takes long.
    return int(value) if abs(value) < EXACT and value.is_integer() else value


_decode = msgspec.json.Decoder(float_hook=_number).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


class RunningCalls:
    """The running and waiting calls with idempotency keys in this process; survives a reload."""

    def __init__(
        self, records: Records, relay: Relay, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._relay, self._clock = relay, clock
        self.quota = StorageQuota(records, clock=clock)
        self._open: dict[tuple[bytes, bytes], IdempotentExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, work: IdempotentWork, terms: IdempotencyTerms) -> Outcome:
        """Run the call or return its stored outcome; ToolFailure if it still runs."""
        caller, loop = work.call.caller, asyncio.get_running_loop()
        # A waiting call must not outlast its token; a task may.
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
                raise StillRunning
            if not (ending.shared or own):
                continue
            if not (own and run.leads) and not ending.refuses:
                remark("replayed", "yes")
            if (outcome := ending.answer()) is not None:
                return outcome

    def _begin(self, work: IdempotentWork, terms: IdempotencyTerms) -> IdempotentExecution:
        tenant, place = work.call.caller.tenant_id, (terms.key, terms.digest)
        run = IdempotentExecution(
            work,
            terms,
            relay=self._relay.of(tenant),
            quota=self.quota,
            clock=self._clock,
            ended=lambda: self._open.pop(place, None),
        )
        self._open[place] = run
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        return run

    def end(self, which: Callable[[TenantContext], bool]) -> None:
        """Stop the running and waiting calls of these callers, even if no client waits."""
        for run in tuple(self._open.values()):
            if which(run.caller):
                run.stop()

    async def aclose(self) -> None:
        """Wait a while for running calls; then stop them, and store that they were stopped."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for run in tuple(self._open.values()):
            run.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for task in tuple(self._tasks):
            task.cancel()


class StillRunning(ToolFailure):
    """The first call of a key takes longer than the second may wait."""

    def __init__(self) -> None:
        super().__init__("conflict", STILL_RUNNING, retry_after=COME_BACK_S)


class IdempotencyStage(Stage):
    """
    The stage around rate limits, approval and the tool.

    Only what an invoked tool returned is stored, so a refused call leaves its key free. Calls
    without an idempotency key pass unchanged.
    """

    for_retries = True

    def __init__(
        self,
        runs: RunningCalls,
        *,
        timeout_s: float,
        max_result_bytes: int,
        kept_s: float = DAY_S,
        redaction: Redaction | None = None,
    ) -> None:
        self._runs = runs
        self._redaction = redaction or Redaction()
        self._timeout_s = timeout_s
        self._max_result_bytes = max_result_bytes
        self._kept_s = KEPT_S | {"idempotency": kept_s}

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """Handle the call; implements `Stage`."""
        idempotency_key = call.idempotency_key
        if idempotency_key is None or not isinstance(offer, Tool):
            return proceed(call, offer, arguments)
        if only_reads(offer, arguments):
            # A caller that reads again wants the current value, and stored outcomes of read-only
            # calls would only fill the disk.
            return proceed(call, offer, arguments)
        if len(call.arguments) > LONG_BYTES:
            return self._apart(call, offer, idempotency_key, arguments, proceed)
        terms = terms_of(call.caller, offer, idempotency_key, call.arguments, self._kept_s)
        return self._join(call, offer, arguments, proceed, terms)

    async def _apart(
        self,
        call: Call,
        offer: Tool,
        idempotency_key: IdempotencyKey,
        arguments: Any,
        proceed: Next,
    ) -> Outcome:
        # Hashed in a thread, so that other calls are served meanwhile.
        terms = await in_cpu_thread(
            call.caller, terms_of, call.caller, offer, idempotency_key, call.arguments, self._kept_s
        )
        return await self._join(call, offer, arguments, proceed, terms)

    def _join(
        self, call: Call, offer: Tool, arguments: Any, proceed: Next, terms: IdempotencyTerms
    ) -> Awaitable[Outcome]:
        work = IdempotentWork(
            call,
            offer,
            arguments,
            proceed,
            repeatable=may_repeat(offer, arguments),
            limit_s=offer.timeout_s or self._timeout_s,
            max_result_bytes=self._max_result_bytes,
            redacted=RedactedCall(self._redaction, call, offer),
        )
        return self._runs.join(work, terms)


def only_reads(tool: Tool, arguments: Any) -> bool:
    """Return whether the call only reads, as its tool declares."""
    if tool.effects.read_only:
        return True
    return tool.read_only_form is not None and tool.read_only_form(arguments)


def may_repeat(tool: Tool, arguments: Any) -> bool:
    """Return whether the call may run again after an unknown outcome, as its tool declares."""
    return only_reads(tool, arguments) or tool.effects.idempotent


def terms_of(
    caller: TenantContext,
    tool: Tool,
    idempotency_key: IdempotencyKey,
    arguments: bytes,
    kept_s: Mapping[str, float] = KEPT_S,
) -> IdempotencyTerms:
    """
    Return the idempotency record that a call needs.

    The key covers the caller, its client and actor, and the tool, so callers cannot reach each
    other's records. An agent may use one correlation id for many calls; there, other arguments mean
    another call.
    """
    digest = digest_of(arguments)
    if tool.secret_arguments:
        # It is stored for a day, and a reader of the database must not be able to test passwords
        # against it. The idempotency key, which only the client has, is not stored.
        digest = hmac.digest(idempotency_key.key.encode(errors="surrogatepass"), digest, "sha256")
    named = (*caller.identity_key, tool.name, idempotency_key.kind, idempotency_key.key)
    episode = digest.hex() if idempotency_key.kind == "correlation" else None
    return IdempotencyTerms(
        # As JSON, so that no choice of ids makes two different callers the same.
        key=hashlib.sha256(msgspec.json.encode((*named, episode))).digest(),
        digest=digest,
        holder=secrets.token_hex(8),
        running_s=DAY_S,
        kept_s=kept_s[idempotency_key.kind],
        unknown_s=MINUTE_S if idempotency_key.kind == "correlation" else None,
        owner=caller.principal_digest,
    )


def digest_of(arguments: bytes) -> bytes:
    """Return a digest of the canonical arguments (as RFC 8785, but with exact integers)."""
    # The tool's parser may accept what this one does not; then the raw bytes are hashed.
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = _encode_sorted(_decode(arguments))
    return hashlib.sha256(arguments).digest()
