"""A bridge whose calls are traced."""

from starlette.types import Receive, Scope

from gatepost.rest.bridge import Bridge
from gatepost.rest.projection import Reply
from gatepost.scope import FOLDED, REQUEST_ID
from gatepost.telemetry.trace import Tracer, context_in
from gatepost.tools.registry import Registry
from gatepost_authz.middleware import caller_of

ROUTE = "/tool/{name}/call"
OUR_FAULT = 500


class TracedBridge(Bridge):
    """A Bridge that makes a span of each call; of its own class, as nobody else shall pay."""

    tracer: Tracer
    registry: Registry
    names_tenant = False

    async def _called(self, scope: Scope, receive: Receive) -> Reply:
        said: dict[str, str | int] = {
            "http.request.method": "POST",
            "http.route": ROUTE,
            "gatepost.request_id": scope.get(REQUEST_ID, ""),
        }
        name = scope["path_params"]["name"]
        if name in self.registry.tools:
            said |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        if self.names_tenant:
            said["gatepost.tenant"] = caller_of(scope).tenant_id
        headers = scope.get(FOLDED) or dict(scope["headers"])
        callers = (context_in(headers),)
        with self.tracer.span(f"POST {ROUTE}", "server", callers=callers, said=said) as span:
            reply = await super()._called(scope, receive)
            span.say("http.response.status_code", reply.status)
            if reply.status >= OUR_FAULT:
                span.failed(str(reply.status))
            return reply
