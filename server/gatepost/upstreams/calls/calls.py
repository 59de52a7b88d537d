"""Call the offers of upstreams: the functions behind the offers that catalogues become."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.authoring.prompt import CompletionRequest
from gatepost.tools.context.client import Capabilities, InputNeeded
from gatepost.tools.offers.offer import CallContext, Invoke, Outcome, ToolFailure
from gatepost.tools.schemas.argument_size import LONG_BYTES
from gatepost.tools.schemas.header_arguments import routed_arguments
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
from gatepost.upstreams.calls.outcome import (
    Malformed,
    completion_outcome,
    prompt_outcome,
    resource_outcome,
    tool_outcome,
)
from gatepost.upstreams.calls.parked import DEFAULT_PARKING, ParkedCalls, ParkingLimits
from gatepost.upstreams.calls.progress_and_logs import passed_on
from gatepost.upstreams.calls.round_state import (
    ParkedState,
    RoundState,
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
    header_arguments,
    idempotency_key,
    options_of,
    principal_of,
)
from gatepost.upstreams.catalogue import Definition
from gatepost.upstreams.compiled_schemas import compiled
from gatepost.upstreams.connection import (
    ConnectionFailure,
    Connections,
    RequestOptions,
    UpstreamConnection,
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


async def _is_served(server: UpstreamServer) -> bool:
    return True


class UpstreamCalls:
    """
    Makes the functions behind the offers of upstreams.

    Each factory returns a coroutine function that takes a call's context and its checked
    arguments. The functions of one definition may be made once and kept as long as it is offered.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        connections: Connections,
        shared_store: SharedStore,
        keyring: KeyRing,
        *,
        parking: ParkingLimits = DEFAULT_PARKING,
        clock: Callable[[], float] = time.time,
        called: Callable[[str, str], None] = lambda tenant, server_id: None,
        owner_of: Callable[[TenantContext, str], str | None] = lambda caller, uri: None,
        is_served: Callable[[UpstreamServer], Awaitable[bool]] = _is_served,
    ) -> None:
        """
        Keep the parts that all calls share.

        *called* is called for each call with its tenant and the server's id. *owner_of* returns
        the server whose resource a caller reads under a URI. *is_served* returns whether calls may
        still be sent to a server.
        """
        self._connections, self._called, self._owner_of = connections, called, owner_of
        self._is_served = is_served
        self.health = UpstreamHealth(clock)
        self.parked = ParkedCalls(shared_store, keyring, limits=parking, clock=clock)
        self._sessions = SessionCalls(self.parked)

    async def aclose(self) -> None:
        """Cancel the calls that are open; must be called before the connections are closed."""
        await self._sessions.aclose()

    def tool(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """
        Return the function of a tool; it takes the arguments as an object.

        Raises ValueError if a schema of the definition cannot be used.
        """
        schema = definition.value.get("outputSchema")
        check = compiled(schema) if isinstance(schema, Mapping) else None
        routed = routed_arguments(definition.value.get("inputSchema") or {})

        def prepare(arguments: Any) -> UpstreamCall:
            params = {"name": definition.key, "arguments": arguments}
            return UpstreamCall("tools/call", params, header_arguments(routed, arguments))

        def read(result: UpstreamResult, _: Any) -> Outcome:
            return tool_outcome(server, result, check)

        return self._invoke(CallPlan(server, definition, prepare, read, reads=False))

    def resource(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return the function of a resource; it needs no arguments."""

        def prepare(_: Any) -> UpstreamCall:
            return UpstreamCall("resources/read", {"uri": definition.key})

        def read(result: UpstreamResult, _: Any) -> Outcome:
            return resource_outcome(server, result, {definition.key: definition.name})

        return self._invoke(CallPlan(server, definition, prepare, read))

    def template(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return the function of a template; it takes a URI that matches."""

        def prepare(uri: Any) -> UpstreamCall:
            return UpstreamCall("resources/read", {"uri": str(uri)})

        def read(result: UpstreamResult, uri: Any) -> Outcome:
            return resource_outcome(server, result, {str(uri): str(uri)})

        return self._invoke(CallPlan(server, definition, prepare, read))

    def prompt(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return the function of a prompt; it takes texts by the names of its arguments."""

        def prepare(arguments: Any) -> UpstreamCall:
            return UpstreamCall(
                "prompts/get", {"name": definition.key, "arguments": dict(arguments)}
            )

        def read(result: UpstreamResult, _: Any) -> Outcome:
            return prompt_outcome(server, result)

        return self._invoke(CallPlan(server, definition, prepare, read))

    def completion(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return the completer of a prompt or template; it takes a CompletionRequest."""
        is_prompt = definition.section == "prompts"
        kind, member = ("ref/prompt", "name") if is_prompt else ("ref/resource", "uri")

        def prepare(request: CompletionRequest) -> UpstreamCall:
            params: dict[str, Any] = {
                "ref": {"type": kind, member: definition.key},
                "argument": {"name": request.argument, "value": request.value},
            }
            if request.context_arguments:
                params["context"] = {"arguments": request.context_arguments}
            return UpstreamCall("completion/complete", params)

        def read(result: UpstreamResult, _: Any) -> Outcome:
            return completion_outcome(server, result)

        return self._invoke(CallPlan(server, definition, prepare, read))

    def _invoke(self, call_form: CallPlan) -> Invoke:
        async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
            return await _OneCall(self, call_form, ctx, arguments).outcome()

        return invoke


class _OneCall:
    """One run of one call."""

    def __init__(
        self, calls: UpstreamCalls, call_form: CallPlan, ctx: CallContext, arguments: Any
    ) -> None:
        self._calls, self._call_form, self._ctx, self._arguments = calls, call_form, ctx, arguments
        self._server = call_form.server
        self._connection: UpstreamConnection = calls._connections.of(
            call_form.server, principal_of(ctx, call_form.server)
        )
        self._call = call_form.prepare(arguments)
        self._declared: Capabilities = mirrored(call_form.server, ctx.client.capabilities)
        self._is_modern = False

    async def outcome(self) -> Outcome:
        """Return the outcome; raises what the protocol answers."""
        server, call_form = self._server, self._call_form
        last = await self._last_step()
        if isinstance(last, Ended):
            raise failure_of(server, last, reads=call_form.reads)
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
                args = (call_form.read, result, self._arguments)
                outcome = await in_cpu_thread(self._ctx.caller, *args, bounded=False)
            else:
                outcome = call_form.read(result, self._arguments)
        except Malformed as error:
            raise malformed(server, error, reads=call_form.reads) from None
        if call_form.reads:
            return outcome
        return own_links(outcome, server.id, partial(self._calls._owner_of, self._ctx.caller))

    async def _last_step(self) -> LastStep:
        ctx, server = self._ctx, self._server
        target = target_of(ctx, server, self._call_form.definition, self._arguments)
        try:
            state = kept_for(ctx.client.previous_state, target, server, nested=ctx.depth > 0)
        except Stale as stale:
            raise ToolFailure("conflict", str(stale)) from None
        if isinstance(state, ParkedState):
            # It was sent before, so the health of the upstream makes no difference.
            return await self._calls._sessions.resume(ctx, server, state)
        if isinstance(state, TaskState):
            self._is_modern = True
            try:
                return await self._task(target, {"taskId": state.task})
            except ConnectionFailure as failure:
                return ended_by(failure)
        health = self._calls.health
        breaker = health.of(server.tenant, server.id)
        caller = ctx.caller.principal_key
        wait_s = breaker.admit(health.clock(), caller)
        if wait_s is not None:
            sentence = breaker.sentence(server.name, health.clock())
            raise ToolFailure("upstream_unavailable", sentence, retry_after=wait_s)
        self._calls._called(server.tenant, server.id)
        last: LastStep | None = None
        try:
            last = await self._sent(target, state)
        except ConnectionFailure as failure:
            last = ended_by(failure)
        except InputNeeded:
            breaker.succeeded(health.clock())  # the upstream has answered with a request
            raise
        finally:
            if last is None:
                breaker.released(caller)
        if isinstance(last, Ended):
            breaker.failed(last.reason, last.message, health.clock(), caller)
        else:
            breaker.succeeded(health.clock())
        return last

    async def _sent(self, target: UpstreamTarget, state: RoundState | None) -> LastStep:
        description = await self._connection.describe()
        self._is_modern = description.era == "modern"
        if not self._is_modern:
            if not self._declared:
                return _step(await self._exchanged(self._call, self._options(waits=False)))
            call = self._call
            return await self._calls._sessions.begin(
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
                    self._ctx, self._server, self._call_form.definition.key
                ),
            )
        return await self._in_rounds(target, state)

    async def _in_rounds(self, target: UpstreamTarget, state: Any) -> LastStep:
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
            if not await self._calls._is_served(self._server):
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
            key=self._call_form.definition.key,
            waits=waits,
        )


@asynccontextmanager
async def _cancelling(exchange: UpstreamExchange) -> Any:
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
