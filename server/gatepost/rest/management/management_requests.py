"""Read requests of administrators, and turn failures into answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost.http.edge import peer_of
from gatepost.rest.envelope import check_type, read_object
from gatepost.rest.exchange import RestExchange, require_method
from gatepost.rest.responses import RestRefusal, RestResponse
from gatepost.secrets.names import SecretRefused
from gatepost.upstreams.administration import Conflict, NotRegistered
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.fields import InvalidField
from gatepost.upstreams.management_audit import ManagementActor
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import caller_of

_encode = msgspec.json.encode


class AdminRequest(msgspec.Struct, frozen=True):
    """A request of an administrator, whose token has the scope for it."""

    caller: TenantContext
    actor: ManagementActor
    id: str
    """The server's or agent's id in the path; empty for the routes of all."""
    read: Callable[[], Awaitable[dict[str, Any]]]
    """Reads the body, a JSON object; raises RestRefusal."""

    @property
    def tenant(self) -> str:
        """Return the tenant, which only the token decides."""
        return self.caller.tenant_id


ManagementHandler = Callable[[AdminRequest], Awaitable[RestResponse]]


class AdminRoute:
    """An ASGI app behind a gate: one path, with a handler for each method."""

    def __init__(
        self, exchange: RestExchange, handlers: Mapping[str, ManagementHandler], *, scope: str
    ) -> None:
        self._exchange, self._handlers = exchange, dict(handlers)
        if "GET" in self._handlers:
            self._handlers["HEAD"] = self._handlers["GET"]
        self._scopes = frozenset({scope})

    @property
    def methods(self) -> list[str]:
        """Return the methods of the route."""
        return list(self._handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._exchange.answer(scope, send, self._answer(scope, receive))

    async def _answer(self, scope: Scope, receive: Receive) -> RestResponse:
        require_method(scope, *self._handlers)
        exchange = self._exchange
        await exchange.count(caller_of(scope))
        caller, envelope = exchange.admit(scope)
        caller.require(self._scopes)

        async def read() -> dict[str, Any]:
            check_type(scope)
            body = await exchange.body(scope, receive)
            value = read_object(body, exchange.limits.max_body_values)
            if value is None:
                raise RestRefusal(400, "invalid_body", "The body must be a JSON object.")
            return value

        actor = ManagementActor(caller=caller, peer=peer_of(scope), request_id=envelope.request_id)
        request = AdminRequest(caller, actor, scope.get("path_params", {}).get("id", ""), read)
        try:
            return await self._handlers[scope["method"]](request)
        except InvalidField as invalid:
            third = {"field": invalid.field}
            raise RestRefusal(400, "invalid_field", invalid.message, third=third) from None
        except SecretRefused as refused:
            raise RestRefusal(
                400, "invalid_field", f"The secret is not stored: {refused}."
            ) from None
        except NotRegistered as missing:
            raise RestRefusal(404, "not_found", missing.message) from None
        except Conflict as conflict:
            raise RestRefusal(409, "conflict", conflict.message) from None
        except ConnectionFailure as failure:
            raise RestRefusal(502, "upstream_unreachable", failure.message) from None


def answered(value: object, status: int = 200) -> RestResponse:
    """Return an answer with a JSON value."""
    return RestResponse(status, _encode(value))


def nothing() -> RestResponse:
    """Return the answer without content."""
    return RestResponse(204, b"")
