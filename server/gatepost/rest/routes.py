"""The routes of the REST tool protocol, and the spans of their calls."""

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from gatepost.execution.cpu_thread import TooManyWaiting, in_cpu_thread
from gatepost.http.body import TenantSuspended, UntilDisconnect
from gatepost.http.edge import peer_of
from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID
from gatepost.rest import responses
from gatepost.rest.envelope import check_type, read_arguments
from gatepost.rest.exchange import RestExchange, require_method, suspended
from gatepost.rest.responses import RestRefusal, RestResponse
from gatepost.rest.tool_descriptions import Descriptors
from gatepost.storage.commit import CommitFailed
from gatepost.storage.errors import StoreUnavailable
from gatepost.telemetry.trace import Tracer, context_in
from gatepost.tools.calls.registry import Registry, UnknownTool
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.truncation import truncate
from gatepost.tools.context.client import MissingCapability, ProtocolError
from gatepost.tools.offers.offer import Call, Failure, Outcome
from gatepost.tools.schemas.argument_size import LONG_BYTES
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import caller_of

SHOWN_CHARACTERS = 64
TOO_LONG = "The call was carried out. Its answer is longer than what can be shown."
# The bytes that `succeeded` writes around the blocks, at most.
AROUND_BYTES = 64

ServeCall = Callable[[Scope, Receive], Awaitable[RestResponse]]
"""Serves `POST /tool/{name}/call`."""


class RestRoutes:
    """
    Lists tools (`list_tools`) and calls them (`call_tool`): two ASGI apps behind a gate.

    The route of `call_tool` leaves the tool's `name` in the path parameters. *wrap_call* wraps each
    call.
    """

    def __init__(
        self,
        runner: Runner,
        registry: Registry,
        exchange: RestExchange,
        *,
        wrap_call: Callable[[ServeCall], ServeCall] | None = None,
    ) -> None:
        self._serve: ServeCall = self._called if wrap_call is None else wrap_call(self._called)
        self._runner = runner
        self._registry = registry
        self._descriptors = Descriptors(registry, runner.is_permitted)
        self._exchange = exchange

    async def list_tools(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve `GET /tools`."""
        await self._exchange.answer(scope, send, self._list_tools(scope))

    async def call_tool(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve `POST /tool/{name}/call`."""
        await self._exchange.answer(scope, send, self._serve(scope, receive))

    async def _list_tools(self, scope: Scope) -> RestResponse:
        require_method(scope, "GET", "HEAD")
        await self._exchange.count(caller_of(scope))
        caller, _ = self._exchange.admit(scope)
        await self._registry.prepare(caller)
        return RestResponse(200, self._descriptors.describe_for(caller))

    async def _unknown(self, caller: TenantContext, name: str) -> RestRefusal:
        # The answer is the same for an unknown tool and for one that this caller cannot reach.
        message = f"Unknown tool: {name[:SHOWN_CHARACTERS]}"
        called = await self._registry.called_name(caller, name)
        if called != name:
            message = f"{message}. Here the tool of this MCP App has the name {called}."
        return RestRefusal(404, "not_found", message)

    async def _called(self, scope: Scope, receive: Receive) -> RestResponse:
        try:
            require_method(scope, "POST")
            caller, envelope = self._exchange.admit(scope)
            check_type(scope)
            arguments = await self._arguments(caller, await self._exchange.body(scope, receive))
        except RestRefusal:
            # The limits of calls count every request that becomes a call.
            await self._exchange.count(caller_of(scope))
            raise
        call = Call(
            caller=caller,
            name=scope["path_params"]["name"],
            arguments=arguments,
            request_id=envelope.request_id,
            idempotency_key=envelope.idempotency_key,
            correlation=envelope.correlation,
            peer=peer_of(scope),
        )
        try:
            work = self._runner.run_uncommitted(call)
            outcome, commit = await UntilDisconnect(
                receive, work, caller, self._exchange.running_requests
            )
        except UnknownTool as unknown:
            raise await self._unknown(caller, unknown.name) from None
        except MissingCapability as missing:
            raise responses.unable(missing) from None
        except TenantSuspended:
            raise suspended() from None
        except ProtocolError as error:
            raise responses.protocol_error(error) from None
        response = self._projected(call, outcome)
        try:
            await commit
        except CommitFailed:
            raise responses.unrecorded(scope.get(REQUEST_ID)) from None
        return response

    async def _arguments(self, caller: TenantContext, body: bytes) -> bytes:
        max_values = self._exchange.limits.max_body_values
        if len(body) <= LONG_BYTES:
            return read_arguments(body, max_values)
        try:  # in a thread, so that other calls are served meanwhile
            return await in_cpu_thread(caller, read_arguments, body, max_values)
        except TooManyWaiting as busy:
            raise responses.rate_limited(busy.failure) from None

    def _projected(self, call: Call, outcome: Outcome) -> RestResponse:
        if outcome.failure is None:
            reply = responses.succeeded(outcome)
            limit = self._runner.max_result_bytes
            if len(reply.body) <= limit:
                return reply
            # The blocks fit into the limit, but with the members around them they did not.
            remaining = limit - AROUND_BYTES - len(outcome.content)
            try:
                tool = self._registry.find(call.caller, call.name)
            except (UnknownTool, StoreUnavailable):
                # The tenant's offers have changed during the call.
                return responses.failed(Failure("internal", TOO_LONG))
            outcome = truncate(outcome, tool, remaining)
        if outcome.failure is not None:
            return responses.failed(outcome.failure)
        return responses.succeeded(outcome)


ROUTE = "/tool/{name}/call"
INTERNAL_SERVER_ERROR = 500


class CallTracing:
    """Creates a span for each call."""

    def __init__(self, tracer: Tracer, registry: Registry, *, names_tenant: bool) -> None:
        self._tracer, self._registry, self._names_tenant = tracer, registry, names_tenant

    def __call__(self, serve: ServeCall) -> ServeCall:
        """Return *serve* with a span around each call."""

        async def serve_in_span(scope: Scope, receive: Receive) -> RestResponse:
            attributes: dict[str, str | int] = {
                "http.request.method": "POST",
                "http.route": ROUTE,
                "gatepost.request_id": scope.get(REQUEST_ID, ""),
            }
            name = scope["path_params"]["name"]
            if self._registry.tool_of_tenant(caller_of(scope), name) is not None:
                attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
            if self._names_tenant:
                attributes["gatepost.tenant"] = caller_of(scope).tenant_id
            headers = scope.get(HEADERS_BY_NAME) or dict(scope["headers"])
            callers = (context_in(headers),)
            with self._tracer.span(
                f"POST {ROUTE}", "server", callers=callers, attributes=attributes
            ) as span:
                reply = await serve(scope, receive)
                span.set_attribute("http.response.status_code", reply.status)
                if reply.status >= INTERNAL_SERVER_ERROR:
                    span.set_error(str(reply.status))
                return reply

        return serve_in_span
