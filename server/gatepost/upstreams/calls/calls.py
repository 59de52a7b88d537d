"""Call the offers of upstreams: the functions behind the offers that catalogues become."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.authoring.suggestions import CompletionRequest
from gatepost.tools.offers.offer import CallContext, Invoke, Outcome
from gatepost.tools.schemas.header_arguments import routed_arguments
from gatepost.upstreams.calls.health import UpstreamHealth
from gatepost.upstreams.calls.outcome import (
    completion_outcome,
    prompt_outcome,
    resource_outcome,
    tool_outcome,
)
from gatepost.upstreams.calls.parked import DEFAULT_PARKING, ParkedCalls, ParkingLimits
from gatepost.upstreams.calls.planned_call import CallCollaborators, CallPlan, PlannedCall
from gatepost.upstreams.calls.session_calls import SessionCalls
from gatepost.upstreams.calls.upstream_call import UpstreamCall, header_arguments
from gatepost.upstreams.catalogue import Definition
from gatepost.upstreams.compiled_schemas import compiled
from gatepost.upstreams.connection import Connections, UpstreamResult
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost_authz.caller import TenantContext


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
        """Keep the parts that all calls share; `CallCollaborators` describes the functions."""
        self.health = UpstreamHealth(clock)
        self.parked = ParkedCalls(shared_store, keyring, limits=parking, clock=clock)
        self._sessions = SessionCalls(self.parked)
        self._shared = CallCollaborators(
            connections, self._sessions, self.health, called, owner_of, is_served
        )

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

    def _invoke(self, plan: CallPlan) -> Invoke:
        async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
            return await PlannedCall(plan, self._shared, ctx, arguments).outcome()

        return invoke
