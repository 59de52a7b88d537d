"""`gatepost call` and `gatepost list`: use any MCP server from the command line."""

import asyncio
import json
import os
import sys
import webbrowser
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx2
import msgspec

from gatepost.cli.configuration import nearest, visible
from gatepost.cli.doctor import STDIN, read_token, tls_context
from gatepost.dev.token_command import DEFAULT_STATE, STATE_FILE, DevState
from gatepost.doctor.http import ServerUnreachable
from gatepost.mcp_client.access_tokens import SignedInTokens, no_sign_in
from gatepost.mcp_client.client_session import GetToken, RemoteSession, RequestFailed, connected
from gatepost.mcp_client.kept_sign_in import KeptSignIn, state_home
from gatepost.mcp_client.sign_in import BrowserSignIn, SignInFailed
from gatepost.tools.schemas.header_arguments import routed_arguments
from gatepost.upstreams.connection import RequestOptions

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])
RemoteWork = Callable[[RemoteSession], Awaitable[T]]


def server_options(command: Command) -> Command:
    """Add the options that say which server, and how to sign in there."""
    for option in reversed(
        (
            click.option(
                "--url", default="", help="The MCP server. Default: the running `gatepost dev`."
            ),
            click.option(
                "--token",
                envvar="GATEPOST_TOKEN",
                default="",
                help="Access token. `-` reads it from standard input. Or set GATEPOST_TOKEN. "
                "Default: sign in with the browser.",
            ),
            click.option("--client-id", default="", help="Id of a registered client."),
            click.option("--scopes", default="", help="Scopes to request, separated by spaces."),
            click.option("--no-browser", is_flag=True, help="Only print the sign-in page's URL."),
            click.option("--no-keep", is_flag=True, help="Do not use or store a sign-in."),
            click.option(
                "--ca-bundle",
                type=click.Path(path_type=Path),
                default=None,
                help="File with CA certificates (PEM) to trust in addition to the system's.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        )
    ):
        command = option(command)
    return command


@click.command("list", short_help="List the tools of any MCP server.")
@server_options
def list_tools(as_json: bool, **options: Any) -> None:
    """List the tools that an MCP server offers you, with their arguments."""

    async def work(session: RemoteSession) -> list[Mapping[str, Any]]:
        return await session.listed("tools/list", "tools")

    tools = run_session(work, **options)
    if as_json:
        click.echo(printed(tools))
        return
    for tool in tools:
        summary = str(tool.get("description") or "").partition("\n")[0]
        click.echo(
            visible(f"{tool.get('name')}({', '.join(arguments_of(tool))})  {summary}").rstrip()
        )


@click.command("call", short_help="Call a tool of any MCP server.")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@server_options
def call(tool: str, arguments: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """
    Call TOOL of an MCP server and print its answer. Exit code 1 means that the call failed.

    The tool's schema decides whether VALUE in KEY=VALUE is a text or JSON. In KEY:=VALUE it is
    always JSON. A call that needs an approval waits for the decision.
    """

    async def work(session: RemoteSession) -> Mapping[str, Any]:
        tools = await session.listed("tools/list", "tools")
        by_name = {str(definition.get("name")): definition for definition in tools}
        if tool not in by_name:
            raise RequestFailed(f"The server has no tool {tool}.{nearest(tool, by_name)}")
        values = dict(value_of(argument, by_name[tool]) for argument in arguments)
        options = RequestOptions(header_arguments=headers_of(by_name[tool], values))
        return await session.request("tools/call", {"name": tool, "arguments": values}, options)

    result = run_session(work, **options)
    failed = result.get("isError") is True
    if as_json:
        click.echo(printed(result))
    else:
        for line in lines_of(result):
            click.echo(line, err=failed)
    sys.exit(1 if failed else 0)


def run_session(
    work: RemoteWork[T], *, url: str, token: str, no_browser: bool, **options: Any
) -> T:
    """Run *work* with a session; failures become messages."""
    server_url = url or _development()
    access_token = read_token(token)
    if token == STDIN and not access_token:
        raise click.UsageError("Standard input has no token.")
    if not (access_token.isascii() and access_token.isprintable()):
        raise click.BadParameter("an access token is printable ASCII", param_hint="--token")

    def show(page: str) -> None:
        click.echo(f"Sign in with your browser: {visible(page)}", err=True)
        if not no_browser:
            webbrowser.open(page)

    async def run() -> T:
        async with httpx2.AsyncClient(verify=tls_context(options["ca_bundle"])) as client:
            sign_in: GetToken = no_sign_in
            begin = access_token
            if not access_token:
                client_id, scopes = options["client_id"], options["scopes"]
                browser = BrowserSignIn(
                    client, server_url, client_id=client_id, scopes=scopes, show=show
                )
                stored = None if options["no_keep"] else _stored_sign_in(server_url, client_id)
                sign_in = tokens = SignedInTokens(browser, stored, scopes=scopes, tell=_warn)
                begin = await tokens.first()
            async with connected(
                client,
                server_url,
                token=begin,
                sign_in=sign_in,
                on_notification=NotificationPrinter(),
            ) as session:
                return await work(session)

    try:
        return asyncio.run(run())
    except TimeoutError:
        raise click.ClickException("There was no sign-in within five minutes.") from None
    except (RequestFailed, SignInFailed, ServerUnreachable) as error:
        raise click.ClickException(visible(str(error))) from None


@click.command("sign-out", short_help="Forget the sign-in at an MCP server.")
@click.option("--url", default="", help="The MCP server. Default: the running `gatepost dev`.")
@click.option("--client-id", default="", help="Id of the client that signed in, if you named one.")
def sign_out(url: str, client_id: str) -> None:
    """
    Forget the sign-in that `gatepost call` and `gatepost list` keep for an MCP server.

    The command also asks the issuer to revoke the tokens.
    """
    server_url = url or _development()
    stored = _stored_sign_in(server_url, client_id)

    async def run() -> tuple[bool, bool]:
        if stored is None:
            return False, False
        # A refresh that ended after the sign-out would store its tokens again.
        async with stored.locked():
            signed_in, revoked = stored.read(), False
            if signed_in is not None:
                async with httpx2.AsyncClient(verify=tls_context(None)) as client:
                    revoked = await BrowserSignIn(client, server_url, show=click.echo).revoke(
                        signed_in
                    )
            return stored.forget(), revoked

    try:
        was_kept, revoked = asyncio.run(run())
    except OSError as error:
        raise click.ClickException(visible(str(error))) from None
    if not was_kept:
        click.echo(f"No sign-in at {visible(server_url)} is kept.")
    elif revoked:
        click.echo(f"Signed out of {visible(server_url)}; its issuer has revoked the sign-in.")
    else:
        click.echo(f"Signed out of {visible(server_url)}. Its issuer did not revoke the sign-in.")


def _stored_sign_in(server_url: str, client_id: str) -> KeptSignIn | None:
    try:
        return KeptSignIn(state_home(os.environ), server_url, client_id)
    except OSError as error:
        _warn(f"The sign-in is not kept: {error}")
        return None


def _warn(sentence: str) -> None:
    click.echo(visible(sentence), err=True)


class NotificationPrinter:
    """Prints progress and log messages on standard error."""

    def __init__(self) -> None:
        self._message = ""
        """The message of the latest progress."""

    def __call__(self, notification: Mapping[str, Any]) -> None:
        """
        Print one notification.

        A call that waits for an approval repeats its message every few seconds, for minutes.
        Progress without a total is therefore printed only with a new message.
        """
        params = notification.get("params")
        if not isinstance(params, dict):
            return
        if notification["method"] == "notifications/progress":
            message = str(params.get("message") or "")
            repeats = bool(message) and message == self._message and "total" not in params
            self._message = message
            if not repeats:
                click.echo(visible(f"{progress_of(params)}{message}").rstrip(), err=True)
        elif notification["method"] == "notifications/message":
            click.echo(visible(f"{params.get('level')}: {params.get('data')}"), err=True)


def progress_of(params: Mapping[str, Any]) -> str:
    """Return how far a call is; empty if only its message says that it continues."""
    if "total" in params:
        return f"[{params.get('progress')}/{params['total']}] "
    return "" if params.get("message") else f"[{params.get('progress')}]"


def arguments_of(tool: Mapping[str, Any]) -> list[str]:
    """Return the names of a tool's arguments; optional ones in brackets."""
    schema = tool.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    required, properties = schema.get("required"), schema.get("properties")
    required = required if isinstance(required, list) else ()
    properties = properties if isinstance(properties, dict) else ()
    return [name if name in required else f"[{name}]" for name in properties]


def value_of(written: str, tool: Mapping[str, Any]) -> tuple[str, Any]:
    """Return name and value of `KEY=VALUE` or `KEY:=JSON`; a usage error for anything else."""
    name, separator, text = written.partition("=")
    if not separator or not name:
        raise click.UsageError(f"{visible(written)} is not KEY=VALUE.")
    if name.endswith(":"):
        return name[:-1], _json(name[:-1], text)
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    properties = properties if isinstance(properties, dict) else {}
    described = properties.get(name)
    kinds = described.get("type") if isinstance(described, dict) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return name, text
    if kinds in ("integer", "number", "boolean", "object", "array"):
        return name, _json(name, text)
    try:
        return name, msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name, text


def headers_of(tool: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments that the tool's schema wants as headers, too (`x-mcp-header`)."""
    schema = tool.get("inputSchema")
    try:
        routed = routed_arguments(schema if isinstance(schema, dict) else {})
    except (ValueError, AttributeError):
        return {}  # the schema is invalid, which only the server can repair
    headers = {}
    for argument in routed:
        value: Any = values
        for name in argument.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            headers[argument.header] = value if isinstance(value, str) else json_text(value)
    return headers


def json_text(value: Any) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()


def printed(value: Any) -> str:
    """Return a value as indented JSON, with what a terminal would act on as escapes."""
    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in text
    )


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Return the content of a result as lines for a terminal."""
    content = result.get("content")
    lines: list[str] = []
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        if isinstance(block.get("text"), str):
            lines += [visible(line) for line in block["text"].split("\n")]
            continue
        inner = block.get("resource")
        inner = inner if isinstance(inner, dict) else block
        if isinstance(inner.get("text"), str):
            lines += [visible(line) for line in inner["text"].split("\n")]
        else:
            content_name = inner.get("mimeType") or inner.get("uri") or ""
            lines.append(visible(f"[{block.get('type')} {content_name}; --json prints its data]"))
    return lines


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise click.UsageError(f"The value of {visible(name)} is not JSON.") from None


def _development() -> str:
    try:
        state = msgspec.json.decode((DEFAULT_STATE / STATE_FILE).read_bytes(), type=DevState)
    except (OSError, msgspec.DecodeError):
        message = "No development server runs here. Name an MCP server with --url."
        raise click.UsageError(message) from None
    return state.resource
