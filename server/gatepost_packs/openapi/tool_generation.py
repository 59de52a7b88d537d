"""Make a tool of each operation of the configured descriptions."""

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from gatepost import (
    CallContext,
    OutboundReply,
    Outcome,
    Pack,
    Sending,
    SettingFault,
    ToolFailure,
    validator_of,
)
from gatepost_authz import origin_of
from gatepost_packs.openapi import credential
from gatepost_packs.openapi.credential import CallCredential
from gatepost_packs.openapi.description.api_response import PROMPT_BYTES, READ_BYTES, shown_body
from gatepost_packs.openapi.description.document import (
    ApiDescription,
    OperationSummary,
    UnresolvableReference,
)
from gatepost_packs.openapi.description.operation import Operation, answer_schema, read_operation
from gatepost_packs.openapi.description.operation_arguments import (
    OperationArguments,
    arguments_of,
    tool_names,
)
from gatepost_packs.openapi.description.operation_request import (
    InvalidArguments,
    request_body,
    request_headers,
    request_target,
)
from gatepost_packs.openapi.description.reading import MAX_BYTES, DescriptionUnreadable
from gatepost_packs.openapi.description.schema import SchemaConversion
from gatepost_packs.openapi.description.servers import NoServerUrl, base_url, operation_base
from gatepost_packs.openapi.errors import refusal_of
from gatepost_packs.openapi.settings import Api, OpenapiSettings
from gatepost_packs.openapi.store import described

Fetch = Callable[[str], bytes]
"""Returns the bytes at a URL; raises ToolFailure."""

LONGEST = 2_000
SHOWN_BYTES = 2_000_000
MARGIN_S = 10.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
IDEMPOTENT = SAFE_METHODS | {"PUT", "DELETE"}
CHANGING_METHODS = frozenset({"PUT", "PATCH", "DELETE"})


def packs_from(table: OpenapiSettings, fetch: Fetch) -> Iterator[Pack | SettingFault]:
    """Return a pack for each API of the configuration, or the problem that prevents it."""
    for name, api in table.apis.items():
        if not any(table.faults_of(name, api)):
            try:
                document = described(_read(api.document, fetch))
                yield pack_of(name, api, document)
            except (DescriptionUnreadable, ToolFailure, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                message = f"{api.document} cannot be used: {reason}"
                yield SettingFault(
                    f"apis.{name}.document", message, "name a file or a URL that is there"
                )
            except NoServerUrl as error:
                yield SettingFault(f"apis.{name}.base_url", str(error), "name the API's URL here")
            except ValueError as error:
                yield SettingFault(f"apis.{name}", str(error))


def _read(location: str, fetch: Fetch) -> bytes:
    if location.startswith(("http://", "https://")):
        return fetch(location)
    path = Path(location)
    if path.stat().st_size > MAX_BYTES:
        raise DescriptionUnreadable(f"it has more than {MAX_BYTES} bytes")
    return path.read_bytes()


def pack_of(
    name: str, api: Api, document: ApiDescription, make: "MakeOffered | None" = None
) -> Pack:
    """
    Return a pack with a tool for each operation that *api* wants; *make* makes the operations.

    Raises ValueError and NoServerUrl if the description cannot be used.
    """
    pack = Pack(name)
    spec_url = api.document if api.document.startswith("http") else ""
    home = base_url(document, override=api.base_url, spec_url=spec_url)
    names = tool_names(document.entries, api.prefix)
    for entry in document.entries:
        if not _is_selected(entry, api):
            continue
        try:
            operation = read_operation(document, entry)
            servers = None if api.base_url else operation.source.get("servers")
            server_base = operation_base(servers, spec_url=spec_url or home)
        except UnresolvableReference as error:
            raise ValueError(
                f"{entry.method} {entry.path} has a reference without a target: {error}"
            ) from None
        offered = (make or OperationTool)(api, operation, server_base or home, home)
        _add(pack, names[entry.path, entry.method], offered)
    if not pack.tools:
        filters = "tags, paths and methods" if document.entries else "any filter"
        raise ValueError(f"no operation of {api.document} matches {filters}")
    return pack


def _is_fixed(api: Api, home: str) -> bool:
    """Return whether the operator chose the API's address, not the server of its description."""
    fetched = api.document.startswith(("http://", "https://"))
    return bool(api.base_url) or not fetched or origin_of(api.document) == origin_of(home)


def _is_selected(entry: OperationSummary, api: Api) -> bool:
    return (
        (not api.tags or bool(set(api.tags) & set(entry.tags)))
        and (not api.paths or any(fnmatchcase(entry.path, pattern) for pattern in api.paths))
        and (not api.methods or entry.method.lower() in api.methods)
    )


def _add(pack: Pack, name: str, offered: "OperationTool") -> None:
    """Add the tool; a pattern that no validator accepts is dropped rather than the tool."""
    operation, method = offered.operation, offered.operation.entry.method
    schema = offered.arguments.schema()
    try:
        validator_of(schema)
    except ValueError:
        offered.simplify()
        schema = offered.arguments.schema()
    pack.add(
        name,
        description=_description(operation),
        input_schema=schema,
        invoke=offered.invoke,
        output_schema=offered.answer,
        title=operation.entry.summary[:100] or name,
        scopes=frozenset(offered.api.scopes),
        read_only=method in SAFE_METHODS,
        destructive=method in CHANGING_METHODS,
        idempotent=method in IDEMPOTENT,
        open_world=True,
        untrusted="HTTP API",
        timeout_s=offered.api.timeout_s + MARGIN_S,
    )


def _description(operation: Operation) -> str:
    entry = operation.entry
    written = operation.source.get("description")
    description = written.strip() if isinstance(written, str) else ""
    # The title is the summary already; place and method are added to a short description.
    texts = [description] if len(description) > len(entry.summary) else [entry.summary, description]
    texts = [text for text in texts if text]
    return "\n\n".join([*texts, f"({entry.method} {entry.path})"])[:LONGEST]


class OperationTool:
    """One operation as a tool: its arguments, its result, and the call."""

    def __init__(self, api: Api, operation: Operation, base: str, home: str) -> None:
        self.api, self.operation = api, operation
        self._base, self._home = base, home
        self._credential = CallCredential(
            header=api.auth_header,
            scheme=api.auth_scheme,
            reference=api.auth,
            fixed=_is_fixed(api, home),
        )
        signed_in = api.auth or api.credential
        self._hidden = frozenset({api.auth_header.lower()} if signed_in else ())
        self.arguments: OperationArguments = arguments_of(operation, hidden=self._hidden)
        self.answer, self._validator = _answer(operation)

    def simplify(self) -> None:
        """Drop the patterns, which the validator does not accept."""
        self.arguments = arguments_of(self.operation, hidden=self._hidden, without_patterns=True)

    async def invoke(self, ctx: CallContext, arguments: Mapping[str, Any]) -> Outcome:
        """Call the operation with arguments that match the schema; ToolFailure on errors."""
        entry = self.operation.entry
        operation_input = self.arguments.input_of(arguments)
        try:
            target = request_target(self.operation, operation_input)
            options = request_body(self.operation, operation_input, self.arguments.media_type)
            headers = request_headers(self.operation, operation_input)
        except InvalidArguments as misuse:
            raise ToolFailure("validation", str(misuse)) from None
        url = self._base + target
        options["headers"] = {**headers, **options.get("headers", {})}
        options["timeout_s"] = self.api.timeout_s
        options["max_bytes"] = READ_BYTES
        options["redirects"] = 5 if entry.method in SAFE_METHODS else 0
        reply = await self.sent(ctx, url, options)
        if not 200 <= reply.status < 300:
            raise refusal_of(reply, f"{entry.method} {entry.path}")
        if len(reply.body) > PROMPT_BYTES:
            return await asyncio.to_thread(self._outcome, reply)
        return self._outcome(reply)

    async def sent(self, ctx: CallContext, url: str, options: Sending) -> OutboundReply:
        """Send the request with the API's credential; once more with a renewed one after a 401."""
        method, name = self.operation.entry.method, self.api.credential
        if not name or origin_of(url) != origin_of(self._home):
            auth = await credential.headers(ctx, self._credential, url=url, home=self._home)
            return await ctx.http.send(method, url, **with_headers(options, auth))
        # Keyed by the API's own address, because each URL that is signed in to has its own access
        # token.
        signed = await ctx.signed_headers(name, self._home)
        reply = await ctx.http.send(method, url, **with_headers(options, signed.headers))
        if reply.status != 401:
            return reply
        renewed = await ctx.signed_headers(name, self._home, refused=signed)
        if renewed.version == signed.version:
            return reply
        return await ctx.http.send(method, url, **with_headers(options, renewed.headers))

    def _outcome(self, reply: OutboundReply) -> Outcome:
        kind = reply.headers.get("content-type", "")
        if kind.startswith("image/") and not reply.truncated:
            data = base64.b64encode(reply.body).decode()
            image = {"type": "image", "data": data, "mimeType": kind.partition(";")[0]}
            return Outcome((image,))
        body = shown_body(reply.body, kind, truncated=reply.truncated, max_bytes=SHOWN_BYTES)
        if self._validator is not None:
            self._hold(reply, body.body, cut=body.cut)
        if isinstance(body.body, str):
            text = body.body
        elif body.body is None:
            text = f"Done ({reply.status})."
        else:
            text = msgspec.json.encode(body.body).decode()
        blocks = [{"type": "text", "text": text}]
        if body.cut:
            blocks.append({"type": "text", "text": "[The response was cut. Ask for less.]"})
        is_whole = isinstance(body.body, dict)
        return Outcome(tuple(blocks), body.body if is_whole else msgspec.UNSET)

    def _hold(self, reply: OutboundReply, body: Any, *, cut: bool) -> None:
        """
        Raise ToolFailure for a response that does not match the schema: clients would drop it.
        """
        if isinstance(body, dict) and self._validator.is_valid(body):
            return
        operation_name = f"{self.operation.entry.method} {self.operation.entry.path}"
        reason = (
            "a response longer than is read" if cut else "not the answer that it is described with"
        )
        text = msgspec.json.encode(body).decode()[:LONGEST]
        message = f"{operation_name} was done ({reply.status}), with {reason}: {text}"
        raise ToolFailure("internal", message)


MakeOffered = Callable[[Api, Operation, str, str], OperationTool]


def with_headers(options: Sending, headers: Mapping[str, str]) -> Sending:
    """Return the options of a request with further headers, which replace those of their names."""
    return {**options, "headers": {**options.get("headers", {}), **headers}}


def _answer(operation: Operation) -> tuple[Mapping[str, Any] | None, Any]:
    """Return the output schema if the description has one that can be enforced."""
    written = answer_schema(operation)
    if written is None:
        return None, None
    for without_patterns in (False, True):
        simplified = SchemaConversion(
            operation.dialect, drops="writeOnly", lenient=True, without_patterns=without_patterns
        )
        schema = simplified.schema(written)
        if schema.get("type") != "object" or not schema.get("properties"):
            return None, None
        try:
            return schema, validator_of(schema)
        except ValueError:
            continue
    return None, None
