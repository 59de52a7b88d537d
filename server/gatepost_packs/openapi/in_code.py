"""Serve `Pack.from_openapi` and `Pack.from_fastapi`: packs in an author's own file."""

from collections.abc import AsyncIterator, Iterable, Mapping, MutableMapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from starlette.routing import Match

from gatepost import CallContext, OutboundReply, Pack, Sending, ToolFailure
from gatepost_authz import CALLER
from gatepost_packs.openapi.description.operation import Operation
from gatepost_packs.openapi.settings import Api
from gatepost_packs.openapi.store import described
from gatepost_packs.openapi.tool_generation import OperationTool, pack_of

IN_PROCESS = "http://app.invalid"
"""The base URL of an app in this process; no request is sent to it."""


def pack_of_description(
    name: str, document: Mapping[str, Any] | Path | str, options: Mapping[str, Any]
) -> Pack:
    """Make a pack as `Pack.from_openapi` does."""
    if isinstance(document, str) and document.startswith(("http://", "https://")):
        raise ValueError(
            f"{name}: nothing is fetched while a file loads; write [packs.openapi.apis.{name}] "
            f'with document = "{document}"'
        )
    source = str(document) if isinstance(document, Path | str) else "in the code"
    data = Path(source).read_bytes() if isinstance(document, Path | str) else _encoded(document)
    return pack_of(name, _checked(name, source, options), described(data))


def pack_of_app(name: str, app: Any, options: Mapping[str, Any]) -> Pack:
    """Make a pack as `Pack.from_fastapi` does."""
    document = described(_encoded(app.openapi()))
    checked_options = _checked(name, "the app", {**options, "base_url": IN_PROCESS})
    pack = pack_of(name, checked_options, document, partial(InProcessOperation, app))

    async def app_lifespan() -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    pack.lifespan(app_lifespan)
    return pack


class InProcessOperation(OperationTool):
    """An operation of an app in this process."""

    def __init__(self, app: Any, api: Api, operation: Operation, base: str, home: str) -> None:
        super().__init__(api, operation, base, home)
        self._app, self._pattern = app, _own_pattern(app, operation)

    async def sent(self, ctx: CallContext, url: str, options: Sending) -> OutboundReply:
        """Send the request to the app, as the call's caller."""

        async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            scope[CALLER] = ctx.caller
            await self._app(scope, receive, send)

        uploads = [
            (upload.name, (upload.filename, upload.data, upload.content_type))
            for upload in options.get("uploads", ())
        ]
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport) as client:
            try:
                request = client.build_request(
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
            except UnicodeEncodeError:
                message = "A header holds characters that are not ASCII."
                raise ToolFailure("validation", message) from None
            if not self._is_reached_by(request.url.path):
                raise self._misled()
            reply = await client.send(request)
        max_bytes = options.get("max_bytes", len(reply.content))
        return OutboundReply(
            status=reply.status_code,
            headers={field.lower(): value for field, value in reply.headers.items()},
            body=reply.content[:max_bytes],
            truncated=len(reply.content) > max_bytes,
            url=url,
        )

    def _is_reached_by(self, path: str) -> bool:
        """
        Return whether the app takes the decoded *path* to this operation's route.

        ASGI paths are decoded, so a value with `/` could reach another route, without its scope.
        """
        template, method = self.operation.entry.path, self.operation.entry.method
        if not any(argument.target == "path" for argument in self.arguments.listed):
            return True
        if self._pattern is None:
            # The app describes the operations of another app, which is mounted in it.
            return path.count("/") == template.count("/") and "\\" not in path
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        scope["root_path"] = getattr(self._app, "root_path", "")
        route = next(
            (
                candidate
                for candidate in _routes(self._app)
                if candidate.matches(scope)[0] is Match.FULL
            ),
            None,
        )
        # Routes of one pattern count as one place, because no value leads from one to the other.
        return route is not None and _pattern(route) == self._pattern

    def _misled(self) -> ToolFailure:
        names = [argument.name for argument in self.arguments.listed if argument.target == "path"]
        unknown = ", ".join(f"`{name}`" for name in names)
        operation_name = f"{self.operation.entry.method} {self.operation.entry.path}"
        message = f"With this value of {unknown} the path is not one of {operation_name}."
        return ToolFailure("validation", message, field=names[0] if len(names) == 1 else None)


def _routes(app: Any) -> Iterable[Any]:
    """Return the routes; newer versions keep an included router as one, and list those in it."""
    flat = getattr(import_module("fastapi.routing"), "iter_route_contexts", iter)
    routes: Iterable[Any] = flat(app.routes)
    return routes


def _own_pattern(app: Any, operation: Operation) -> str | None:
    """Return the pattern of the route that serves an operation; None if the app has none."""
    entry = operation.entry
    patterns = [
        _pattern(route)
        for route in _routes(app)
        if getattr(route, "path_format", None) == entry.path
        and entry.method in (getattr(route, "methods", None) or ())
        and getattr(route, "include_in_schema", False)
    ]
    return patterns[-1] if patterns else None


def _pattern(route: Any) -> str | None:
    """Return the regular expression of a route's path; a route by host has none."""
    return getattr(getattr(route, "path_regex", None), "pattern", None)


def _encoded(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(document)


def _checked(name: str, source: str, options: Mapping[str, Any]) -> Api:
    """Return the settings; TypeError or ValueError for an option that is unknown or wrong."""
    unknown = sorted(options.keys() - {*Api.__struct_fields__})
    if unknown or "document" in options:
        raise TypeError(f"{name}: there is no option {', '.join(unknown) or 'document'}")
    try:
        api = msgspec.convert(
            {"document": source} | msgspec.to_builtins(dict(options)), Api, strict=True
        )
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None
    for fault in api.faults():
        raise ValueError(f"{name}: {fault.setting}: {fault.message}")
    return api
