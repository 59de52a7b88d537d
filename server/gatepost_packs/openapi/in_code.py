"""Make packs in an author's own file: of an OpenAPI description, and of an app in this process."""

from collections.abc import AsyncIterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import httpx2
import msgspec

from gatepost import CallContext, OutboundReply, Pack, Sending
from gatepost_authz import CALLER
from gatepost_packs.openapi.description.operation import Operation
from gatepost_packs.openapi.settings import Api, Method
from gatepost_packs.openapi.store import described
from gatepost_packs.openapi.tool_generation import Offered, pack_of

IN_PROCESS = "http://app.invalid"
"""The base URL of an app in this process, to which nothing is sent."""


class OperationOptions(TypedDict, total=False):
    """Which operations become tools, and what their callers need."""

    tags: tuple[str, ...]
    """Only operations with one of these tags."""
    paths: tuple[str, ...]
    """Only paths that match one of these patterns (`/pets/*`)."""
    methods: tuple[Method, ...]
    """Only these methods, in lower case."""
    prefix: str
    """Prefix of the tools' names."""
    scopes: tuple[str, ...]
    """The scopes that a caller needs for any of the tools, all of them."""
    timeout_s: float
    """Seconds that the API may take to answer."""


class ApiOptions(OperationOptions, total=False):
    """The same for an API of another server, and what is sent there."""

    base_url: str
    """Base URL of the API; default: the server in its description."""
    auth: str
    """The tenant's secret that calls are sent with, as `secret:NAME`."""
    auth_header: str
    """The header that carries the secret; default: `Authorization`."""
    auth_scheme: str
    """The scheme before it in that header, for example `Bearer`."""
    credential: str
    """Instead of `auth`: the `[credentials.NAME]` table that calls are signed in with."""


class AsgiApp(Protocol):
    """A FastAPI app, as far as it is used."""

    router: Any

    def openapi(self) -> dict[str, Any]:
        """Return the app's description."""


def openapi_pack(
    name: str, document: Mapping[str, Any] | Path | str, **options: Unpack[ApiOptions]
) -> Pack:
    """
    Return a pack with a tool for each operation of an OpenAPI description.

    *document* is the description itself, or the path of a YAML or JSON file. For a description at a
    URL, write a table `[packs.openapi.apis.NAME]`. Raises ValueError if it cannot be used, and
    TypeError for an unknown option.
    """
    if isinstance(document, str) and document.startswith(("http://", "https://")):
        raise ValueError(
            f"{name}: nothing is fetched while a file loads; write [packs.openapi.apis.{name}] "
            f'with document = "{document}"'
        )
    place = str(document) if isinstance(document, Path | str) else "in the code"
    data = Path(place).read_bytes() if isinstance(document, Path | str) else _encoded(document)
    return pack_of(name, _checked(name, place, options), described(data))


def fastapi_pack(name: str, app: AsgiApp, **options: Unpack[OperationOptions]) -> Pack:
    """
    Return a pack with a tool for each operation of a FastAPI app, which runs in this process.

    Calls go to the app directly, without a socket, and the app's lifespan runs with the server.
    `gatepost_authz.caller_of(request.scope)` is the caller. Raises as `openapi_pack` does.
    """
    document = described(_encoded(app.openapi()))
    made = _checked(name, "the app", {**options, "base_url": IN_PROCESS})
    pack = pack_of(name, made, document, partial(InProcessOperation, app))

    async def app_lifespan() -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    pack.lifespan(app_lifespan)
    return pack


class InProcessOperation(Offered):
    """An operation of an app in this process."""

    def __init__(self, app: Any, api: Api, operation: Operation, base: str, home: str) -> None:
        super().__init__(api, operation, base, home)
        self._app = app

    async def sent(self, ctx: CallContext, url: str, options: Sending) -> OutboundReply:
        """Send the request to the app, as the call's caller."""

        async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            scope[CALLER] = ctx.caller
            await self._app(scope, receive, send)

        uploads = [
            (one.name, (one.filename, one.data, one.content_type))
            for one in options.get("uploads", ())
        ]
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport) as client:
            reply = await client.request(
                self.operation.entry.method,
                url,
                params=options.get("params"),
                headers=options.get("headers"),
                json=options.get("json"),
                content=options.get("content"),
                data=options.get("form"),
                files=uploads or None,
                timeout=None,
            )
        most = options.get("max_bytes", len(reply.content))
        return OutboundReply(
            status=reply.status_code,
            headers={field.lower(): value for field, value in reply.headers.items()},
            body=reply.content[:most],
            truncated=len(reply.content) > most,
            url=url,
        )


def _encoded(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(document)


def _checked(name: str, place: str, options: Mapping[str, Any]) -> Api:
    """Return the settings; TypeError or ValueError for an option that is unknown or wrong."""
    unknown = sorted(options.keys() - {*Api.__struct_fields__})
    if unknown or "document" in options:
        raise TypeError(f"{name}: there is no option {', '.join(unknown) or 'document'}")
    try:
        api = msgspec.convert(
            {"document": place} | msgspec.to_builtins(dict(options)), Api, strict=True
        )
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None
    for fault in api.faults():
        raise ValueError(f"{name}: {fault.setting}: {fault.message}")
    return api
