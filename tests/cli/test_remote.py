"""`gatepost list` and `gatepost call`: any MCP server, either era, and a sign-in."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastmcp
import pytest
from click.testing import CliRunner, Result
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.utilities.types import Image

from gatepost.cli.main import main
from gatepost.cli.remote import value_of
from tests.support import commands
from tests.support.client import ResourceClient
from tests.support.commands import Gatepost, run
from tests.support.issuers import AsgiServer
from tests.support.measuring import each, eventually
from tests.support.processes import Process, free_port

PAGE = r"Sign in with your browser: (?P<page>http\S+)"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatepost]:
    """Serve a development server that signs in without pages."""
    folder = tmp_path_factory.mktemp("remote")
    (folder / "regions.py").write_text(REGIONS)
    with commands.dev(folder, "--auto-approve", "--tools", "regions.py") as running:
        yield running


REGIONS = """
from typing import Annotated
from pydantic import Field
from gatepost import CallContext, Pack

pack = Pack("regions")
Region = Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]


@pack.tool
async def travel(ctx: CallContext, region: Region, days: int = 1) -> str:
    '''Visit a region.'''
    return f"{days} days in {region}\\x1b[31m"
"""


def signing_in(*arguments: str, folder: Path, times: int = 1) -> Process:
    """Run a command, and open its sign-in pages as a browser opens them."""
    process = run(*arguments, "--no-browser", cwd=folder, env={"XDG_STATE_HOME": str(folder)})
    for at in range(times):

        def pages() -> list[str]:
            return re.findall(PAGE, process.output)

        eventually(lambda at=at: len(pages()) > at or process.process.poll() is not None, within=40)
        assert len(pages()) > at, process.output
        with urllib.request.urlopen(pages()[at], timeout=20) as answer:  # noqa: S310
            assert b"You can close this page" in answer.read()
    process.process.wait(40)
    return process


def command_result(folder: Path, *arguments: str) -> Result:
    """Run a command that needs no page, in this process."""
    environment = {"XDG_STATE_HOME": str(folder), "GATEPOST_TOKEN": None}
    return CliRunner().invoke(main, [*arguments], env=environment)


def test_a_person_signs_in_and_calls_tools_from_the_command_line(dev: Gatepost) -> None:
    """
    A tool that needs a further scope leads to a second sign-in.

    Further commands use the stored sign-in: only its user can read the file, no command prints
    it, it is refreshed after its expiry, and signing out revokes it.
    """
    for_url = ("--url", dev.url)
    listed = signing_in("list", *for_url, folder=dev.folder)
    (file,) = (dev.folder / "gatepost/sign-ins").glob("*.json")
    first = json.loads(file.read_text())
    before = command_result(dev.folder, "call", "whoami", "--json", *for_url)
    file.write_text(json.dumps(first | {"expires_at": 1.0}))
    after = command_result(dev.folder, "call", "whoami", "--json", *for_url)
    second = json.loads(file.read_text())
    saved = signing_in(
        "call",
        "save_csv",
        "filename=may",
        'rows:=[{"vendor": "Acme"}]',
        *for_url,
        folder=dev.folder,
    )
    third = json.loads(file.read_text())
    file.write_text(json.dumps(third | {"access_token": "e.e.e"}))
    refused = command_result(dev.folder, "call", "whoami", "--json", *for_url)
    fourth = json.loads(file.read_text())
    out, again = (command_result(dev.folder, "sign-out", *for_url) for _ in range(2))
    file.write_text(json.dumps(fourth | {"expires_at": 1.0}))
    file.chmod(0o600)
    gone = run("list", *for_url, "--no-browser", env={"XDG_STATE_HOME": str(dev.folder)})
    gone.wait_for(PAGE)
    gone.kill()
    shared = command_result(dev.folder, "sign-out", *for_url)

    assert (file.parent.stat().st_mode & 0o777, third["url"]) == (0o700, dev.url)
    assert all(tool in listed.stdout for tool in ("echo(text)  ", "travel(region, [days])"))
    calls = (before, after, refused)
    callers = [json.loads(call.stdout)["structuredContent"] for call in calls]
    assert [(caller["tenant"], caller["subject"]) for caller in callers] == [("acme", "alice")] * 3
    assert first["refresh_token"] != second["refresh_token"]
    assert "CSV saved to /workspace/may.csv (1 row)" in saved.stdout
    assert {*second["scopes"], "files:write"} <= {*third["scopes"]}
    assert [process.stop() for process in (listed, saved)] == [0, 0]
    assert "its issuer has revoked the sign-in" in out.output
    assert "No sign-in at" in again.output
    assert "did not revoke" not in shared.output
    printed = [command.output for command in (listed, saved, *calls, out)]
    tokens = [sign_in[name] for sign_in in (first, third, fourth) for name in TOKENS]
    assert all(token and token not in text for token in tokens for text in printed)


TOKENS = ("access_token", "refresh_token")


def test_a_given_token_is_used_without_a_sign_in(dev: Gatepost) -> None:
    """The token comes from an option or the environment; a refused token causes no sign-in."""
    token = commands.token(dev.folder, "--tenant", "globex")
    for_url = "--url", dev.url
    result = commands.completed("call", "whoami", "--json", *for_url, env={"GATEPOST_TOKEN": token})
    visited = commands.completed(
        "call", "travel", "region=Ticino", "days=3", *for_url, "--token", token, cwd=dev.folder
    )
    failed = commands.completed("call", "travel", "days=3", *for_url, "--token", token)
    unknown = commands.completed("call", "travl", *for_url, "--token", token)
    refused = commands.completed("call", "whoami", *for_url, "--token", "x.y.z")
    scopeless = commands.completed("call", "save_csv", "filename=a", *for_url, "--token", token)

    assert json.loads(result[1])["structuredContent"]["tenant"] == "globex"
    # What the server sends moves no cursor.
    assert visited[:2] == (0, "3 days in Ticino\\x1b[31m")
    assert failed[0] == 1
    assert "`region` is required" in failed[2]
    assert "has no tool travl. Did you mean travel?" in unknown[2]
    assert refused[0] == 1
    assert "refused the access token (HTTP 401): The access token is invalid. " in refused[2]
    assert scopeless[0] == 1
    assert "lacks permissions (HTTP 403). Get a token with the scopes files:write," in scopeless[2]


def test_the_development_server_is_the_default(dev: Gatepost, tmp_path: Path) -> None:
    """In another folder the command says what to do."""
    (tmp_path / ".gatepost").symlink_to(dev.folder / "state")
    token = commands.token(dev.folder, "--tenant", "acme")
    here = commands.completed("list", cwd=tmp_path, env={"GATEPOST_TOKEN": token})
    (tmp_path / ".gatepost").unlink()
    nowhere = commands.completed("list", cwd=tmp_path)

    assert "echo(text)" in here[1]
    assert nowhere[0] == 2
    assert "--url" in nowhere[2]


def books_server() -> Any:
    server = MCPServer("books")

    @server.tool()
    async def cover(title: str) -> Image:
        """Return a picture of a book."""
        return Image(data=b"\x89PNG\r\n\x1a\n", format="png")

    @server.tool()
    async def count(upto: int) -> int:
        """Count."""
        return upto

    return server.streamable_http_app()


class SessionEra:
    """An app in front of *app* that knows only revisions with a handshake."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        self.asked.append(scope["method"])
        if headers.get(b"mcp-protocol-version") == b"2026-07-28":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"Bad Request"})
            return
        await self._app(scope, receive, send)


def session_app() -> Any:
    server: fastmcp.FastMCP[Any] = fastmcp.FastMCP("sessions")

    @server.tool
    async def count(ctx: fastmcp.Context, upto: int) -> int:
        """Count with progress."""
        await ctx.report_progress(1, upto, "one")
        return upto

    @server.tool
    async def wait(ctx: fastmcp.Context) -> str:
        """Wait with the same message, as a call that needs an approval does."""
        for second, message in enumerate(("waiting", "waiting", "waiting", "almost", "waiting")):
            await ctx.report_progress(second, message=message)
        return "done"

    return server.http_app(path="/mcp")


OLD_SERVER = SessionEra(session_app())


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """Yield the URL of a modern server, and of a server that has only sessions."""
    running = {
        name: AsgiServer(app, lifespan="on").start()
        for name, app in (("modern", books_server()), ("session", OLD_SERVER))
    }
    try:
        yield {name: f"{server.url}/mcp" for name, server in running.items()}
    finally:
        for server in running.values():
            server.stop()


def test_servers_of_both_mcp_revisions_can_be_called(
    servers: dict[str, str], tmp_path: Path
) -> None:
    """They are servers of the SDK and of FastMCP; the session of the older one is ended."""
    for era, url in servers.items():
        listed = commands.completed("list", "--url", url, cwd=tmp_path)
        counted = commands.completed(
            "call", "count", "upto=3", "--json", "--url", url, cwd=tmp_path
        )
        assert "count(upto)  Count" in listed[1]
        assert json.loads(counted[1])["structuredContent"] == {"result": 3}
        assert ("[1.0/3.0] one" in counted[2]) is (era == "session")
    assert "DELETE" in OLD_SERVER.asked


def test_a_repeated_message_of_a_call_that_waits_is_printed_once(
    servers: dict[str, str], tmp_path: Path
) -> None:
    """A call can wait half an hour for an approval; a new message is printed."""
    result = commands.completed("call", "wait", "--url", servers["session"], cwd=tmp_path)

    assert result[:2] == (0, "done")
    assert result[2].splitlines() == ["waiting", "almost", "waiting"]


def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    """The address may come from a variable or an older command."""
    url = f"http://127.0.0.1:{free_port()}/mcp"
    result = commands.completed("list", "--url", url, cwd=tmp_path)

    assert result[0] == 1
    assert f"Error: {url} cannot be reached: " in result[2]


def test_an_image_in_a_result_is_named_instead_of_printed(
    servers: dict[str, str], tmp_path: Path
) -> None:
    """Its data are in the JSON output."""
    result = commands.completed(
        "call", "cover", "title=1984", "--url", servers["modern"], cwd=tmp_path
    )

    assert result[1] == "[image image/png; --json prints its data]"


@each(
    ("written", "kind", "value"),
    [
        ("a=1", "string", "1"),
        ("a=1", "integer", 1),
        ("a=x=y", "string", "x=y"),
        ("a=true", "boolean", True),
        ("a=[1]", "array", [1]),
        ("a=1", None, 1),
        ("a=word", None, "word"),
        ("a:=1", "string", 1),
        ("a=1", ["string", "null"], "1"),
        ("a=", "string", ""),
    ],
)
def test_command_line_values_are_converted_by_the_schema(
    written: str, kind: Any, value: Any
) -> None:
    """A number stays text if the tool takes text."""
    schema = {"properties": {"a": {"type": kind} if kind else {}}}

    assert value_of(written, {"inputSchema": schema}) == ("a", value)


class Metadata:
    """A server that refuses every request, and publishes what a test says."""

    def __init__(self) -> None:
        self.resource: dict[str, Any] = {}
        self.issuer: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        documents = {
            "/.well-known/oauth-protected-resource/mcp": self.resource,
            "/.well-known/oauth-authorization-server": self.issuer,
        }
        document = documents.get(scope["path"])
        fields = [(b"content-type", b"application/json")]
        status = 200 if document else 404
        if scope["path"] == "/mcp":
            status, fields = 401, [*fields, (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": json.dumps(document or {}).encode()})


def test_a_server_with_invalid_metadata_gets_no_sign_in(tmp_path: Path) -> None:
    """The metadata are of another resource or issuer, or lack PKCE or registration."""
    app = Metadata()
    server = AsgiServer(app).start()
    own, endpoint = f"{server.url}/mcp", f"{server.url}/sign-in"
    metadata = {
        "issuer": server.url,
        "authorization_endpoint": endpoint,
        "token_endpoint": endpoint,
        "code_challenge_methods_supported": ["S256"],
    }
    here = {"resource": own, "authorization_servers": [server.url]}
    cases: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...], str]] = [
        ({}, {}, (), "publishes no resource metadata"),
        ({**here, "resource": "https://other.example/mcp"}, metadata, (), "about another resource"),
        ({**here, "authorization_servers": ["http://id.example"]}, metadata, (), "plain http"),
        (here, {**metadata, "issuer": "https://id.example"}, (), "another issuer"),
        (here, {**metadata, "token_endpoint": "https://evil.example/t"}, (), "cannot be used"),
        (here, {**metadata, "code_challenge_methods_supported": ["plain"]}, (), "PKCE"),
        (here, metadata, (), "pass --client-id"),
        (here, metadata, ("--client-id", "https://me.example/c.json"), "no client id metadata"),
    ]
    try:
        for resource, issuer, options, says in cases:
            app.resource, app.issuer = resource, issuer
            code, out, complaints = commands.completed(
                "list", "--url", own, "--no-browser", "--no-keep", *options, cwd=tmp_path
            )
            assert (code, out) == (1, ""), says
            assert says in complaints
            assert "Sign in with" not in complaints
    finally:
        server.stop()


def test_a_forged_redirect_is_ignored(dev: Gatepost) -> None:
    """Any web page can open the port on this machine, but only the right state is accepted."""
    process = run("call", "whoami", "--url", dev.url, "--no-browser", "--no-keep", cwd=dev.folder)
    page = process.wait_for(PAGE)["page"]
    back = re.search(r"redirect_uri=http%3A%2F%2F127.0.0.1%3A(\d+)%2Fcallback", page)
    assert back is not None
    forged = ResourceClient(f"http://127.0.0.1:{back[1]}/callback")
    assert forged.send("GET", "/callback?code=stolen&state=guessed").status == 200
    assert forged.send("GET", "/other").status == 404
    assert process.process.poll() is None
    with urllib.request.urlopen(page, timeout=20) as answer:  # noqa: S310
        answer.read()
    process.process.wait(40)

    assert process.stop() == 0
    assert '"tenant":"acme"' in process.stdout
