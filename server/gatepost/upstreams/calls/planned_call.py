"""Make one call of an upstream: send it, answer what the upstream asks, and read the result."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.tools.context.client import InputNeeded
from gatepost.tools.offers.offer import CallContext, Outcome, ToolFailure
from gatepost.tools.schemas.argument_size import LONG_BYTES
from gatepost.upstreams.calls.call_states import (
    METHOD_NOT_FOUND,
    AskCaller,
    Concluded,
    Ended,
    Errored,
    LastStep,
    ModernCall,
    Refuse,
    Send,
)
from gatepost.upstreams.calls.failures import ended_by, errored, failure_of, malformed
from gatepost.upstreams.calls.health import UpstreamHealth
from gatepost.upstreams.calls.input_requests import mirrored
from gatepost.upstreams.calls.links import own_links
from gatepost.upstreams.calls.outcome import Malformed
from gatepost.upstreams.calls.progress_and_logs import passed_on
from gatepost.upstreams.calls.round_state import (
    ModernState,
    ParkedState,
    Stale,
    TaskState,
    UpstreamTarget,
    kept_for,
    target_of,
)
from gatepost.upstreams.calls.session_calls import SessionCalls
from gatepost.upstreams.calls.tasks import UpstreamTask, is_task, server_removed, task_in
from gatepost.upstreams.calls.upstream_call import (
    UpstreamCall,
    idempotency_key,
    options_of,
    principal_of,
)
from gatepost.upstreams.catalogue import Definition
from gatepost.upstreams.connection import (
    ConnectionFailure,
    Connections,
    RequestOptions,
    UpstreamError,
    UpstreamExchange,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost_authz.caller import TenantContext

PrepareCall = Callable[[Any], UpstreamCall]
ReadResult = Callable[[UpstreamResult, Any], Outcome]

CANCEL_S = 2.0
UNSUPPORTED = {"error": {"code": METHOD_NOT_FOUND, "message": "The client has no such method."}}


class CallPlan(msgspec.Struct, frozen=True):
    """How the calls of one definition are sent, and how their answers are read."""

    server: UpstreamServer
    definition: Definition
    prepare: PrepareCall
    read: ReadResult
    reads: bool = True
    """Whether a call has no effect, so that it can be sent again."""


class CallCollaborators(msgspec.Struct, frozen=True):
    """The parts that all calls share."""

    connections: Connections
    sessions: SessionCalls
    health: UpstreamHealth
    called: Callable[[str, str], None]
    """Called for each call with its tenant and the server's id."""
    owner_of: Callable[[TenantContext, str], str | None]
    """Returns the server whose resource a caller reads under a URI."""
    is_served: Callable[[UpstreamServer], Awaitable[bool]]
    """Returns whether calls may still be sent to a server."""


class PlannedCall:
    """One call, made as its plan says."""

    def __init__(
        self, plan: CallPlan, shared: CallCollaborators, ctx: CallContext, arguments: Any
    ) -> None:
        self._plan, self._shared, self._ctx, self._arguments = plan, shared, ctx, arguments
        self._server = plan.server
        self._connection = shared.connections.connection_to(
            plan.server, principal_of(ctx, plan.server)
        )
        self._call = plan.prepare(arguments)
        self._declared = mirrored(plan.server, ctx.client.capabilities)
        self._is_modern = False

    async def outcome(self) -> Outcome:
        """Return the outcome; raises what the protocol answers."""
        server, plan = self._server, self._plan
        last = await self._last_step()
        if isinstance(last, Ended):
            raise failure_of(server, last, reads=plan.reads)
        if isinstance(last, Errored):
            raise errored(
                server,
                last,
                document=self._call.method == "resources/read",
                declared=self._ctx.client.capabilities,
                is_modern=self._is_modern,
            )
        result = UpstreamResult(last.value)
        structured = last.value.get("structuredContent")
        try:
            if structured is not None and len(msgspec.json.encode(structured)) > LONG_BYTES:
                # Checking takes milliseconds; other calls are served meanwhile.
                args = (plan.read, result, self._arguments)
                outcome = await in_cpu_thread(self._ctx.caller, *args, bounded=False)
            else:
                outcome = plan.read(result, self._arguments)
        except Malformed as error:
            raise malformed(server, error, reads=plan.reads) from None
        if plan.reads:
            return outcome
        return own_links(outcome, server.id, partial(self._shared.owner_of, self._ctx.caller))

    async def _last_step(self) -> LastStep:
        ctx, server = self._ctx, self._server
        target = target_of(ctx, server, self._plan.definition, self._arguments)
        try:
            state = kept_for(ctx.client.previous_state, target, server, nested=ctx.depth > 0)
        except Stale as stale:
            raise ToolFailure("conflict", str(stale)) from None
        if isinstance(state, ParkedState):
            # It was sent before, so the health of the upstream makes no difference.
            return await self._shared.sessions.resume(ctx, server, state)
        if isinstance(state, TaskState):
            self._is_modern = True
            try:
                return await self._task(target, {"taskId": state.task})
            except ConnectionFailure as failure:
                return ended_by(failure)
        health = self._shared.health
        breaker = health.breaker_for(server.tenant, server.id)
        caller = ctx.caller.principal_key
        wait_s = breaker.admit(health.clock(), caller)
        if wait_s is not None:
            sentence = breaker.sentence(server.name, health.clock())
            raise ToolFailure("upstream_unavailable", sentence, retry_after=wait_s)
        self._shared.called(server.tenant, server.id)
        last: LastStep | None = None
        try:
            last = await self._sent(target, state)
        except ConnectionFailure as failure:
            last = ended_by(failure)
        except InputNeeded:
            breaker.succeeded()  # the upstream has answered with a request
            raise
        finally:
            if last is None:
                breaker.released(caller)
        if isinstance(last, Ended):
            breaker.failed(last.reason, last.message, health.clock(), caller)
        else:
            breaker.succeeded()
        return last

    async def _sent(self, target: UpstreamTarget, state: ModernState | None) -> LastStep:
        description = await self._connection.describe()
        self._is_modern = description.era == "modern"
        if not self._is_modern:
            if not self._declared:
                return _step(await self._exchanged(self._call, self._options(waits=False)))
            call = self._call
            return await self._shared.sessions.begin(
                self._ctx,
                self._server,
                self._declared,
                target,
                # Without a reference to this object: a parked call must not keep the context of
                # the request that began it.
                partial(
                    self._connection.exchange, call.method, call.params, self._options(waits=True)
                ),
                idempotency_digest=idempotency_key(
                    self._ctx, self._server, self._plan.definition.key
                ),
            )
        return await self._in_rounds(target, state)

    async def _in_rounds(self, target: UpstreamTarget, state: ModernState | None) -> LastStep:
        machine = ModernCall(self._server, self._declared, target, state)
        options, action = self._options(waits=False), machine.begin()
        while True:
            if isinstance(action, Send):
                round_options = msgspec.structs.replace(
                    options, input_responses=action.responses, request_state=action.state
                )
                message = await self._exchanged(self._call, round_options)
                if is_task(message):
                    return await self._task(target, task_in(self._server, message))
                action = machine.received(message)
            elif isinstance(action, AskCaller):
                answers = await self._ctx.client.request(action.requests, state=action.state)
                action = machine.answered(answers)
            elif isinstance(action, Refuse):
                raise ToolFailure("internal", action.sentence)
            else:
                return _step(action.message)

    async def _task(self, target: UpstreamTarget, task: Mapping[str, Any]) -> LastStep:
        async def ask(method: str, params: Mapping[str, Any]) -> UpstreamResult | UpstreamError:
            if not await self._shared.is_served(self._server):
                raise server_removed(self._server)
            return await self._exchanged(UpstreamCall(method, params), self._options(waits=False))

        polled = UpstreamTask(self._ctx, self._server, target, self._declared, ask)
        return _step(await polled.outcome(task))

    async def _exchanged(
        self, call: UpstreamCall, options: RequestOptions
    ) -> UpstreamResult | UpstreamError:
        """Send one request and return its final message."""
        opened = self._connection.exchange(call.method, call.params, options)
        async with opened as exchange, _cancelling(exchange):
            async for message in exchange.messages():
                if isinstance(message, UpstreamResult | UpstreamError):
                    return message
                if isinstance(message, UpstreamRequest):
                    await exchange.respond(message.id, UNSUPPORTED)
                else:
                    await passed_on(self._ctx, self._server, message)
        raise ConnectionFailure("outcome_unknown", f"{self._server.name} gave no answer.")

    def _options(self, *, waits: bool) -> RequestOptions:
        return options_of(
            self._ctx,
            self._server,
            self._call,
            self._declared,
            key=self._plan.definition.key,
            waits=waits,
        )


@asynccontextmanager
async def _cancelling(exchange: UpstreamExchange) -> AsyncIterator[None]:
    """Tell the upstream if the call is cancelled during the block."""
    try:
        yield
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await exchange.cancel("The caller cancelled the call")
        raise


def _step(message: UpstreamResult | UpstreamError) -> LastStep:
    if isinstance(message, UpstreamError):
        return Errored(message.code, message.message, message.data)
    return Concluded(dict(message.value))
