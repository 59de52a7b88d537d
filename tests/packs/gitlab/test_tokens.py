"""A token for GitLab goes where it is meant for, and nowhere else."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote

import pytest

from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    open_server,
)
from tests.support.client import ToolResult

PERSONAL_TOKEN = "glpat-" + "x" * 20
OAUTH = "5" * 64
README = "# Grüße\n".encode() * 3
PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0"
MULTIPART_HEAD = re.compile(
    rb'name="([^"]*)"(?:; filename="([^"]*)")?(?:\r\nContent-Type: ([^\r]*))?\r\n\r\n'
)


class Gitlab(HttpServer):
    """One project, `group/demo`, number 1; who it is asked by is judged as GitLab does."""

    def __init__(self, elsewhere: str = "") -> None:
        super().__init__(self._answered)
        self.elsewhere = elsewhere
        self.issues: list[dict[str, Any]] = []

    @property
    def api(self) -> str:
        return f"{self.url}/api/v4"

    def _answered(self, request: RecordedRequest) -> StubResponse | None:
        path = request.path.removeprefix("/api/v4/")
        if path == request.path:
            return StubResponse(404, {"error": "404 Not Found"})
        credentials = request.headers.get("private-token"), request.headers.get("authorization")
        if credentials not in ((PERSONAL_TOKEN, None), (None, f"Bearer {OAUTH}")):
            return StubResponse(401, {"message": "401 Unauthorized"})
        if path == "slow":
            return None
        if path == "mirror":
            seen = credentials[0] or credentials[1] or ""
            coded = base64.b64encode(seen.encode()).decode()
            return StubResponse(
                200, {"seen": seen, "coded": coded, "url": quote(f"?a={seen}")}, {"x-seen": seen}
            )
        kind, _, rest = path.partition("/")
        project, _, below = rest.partition("/")
        if kind != "projects":
            return self._odd(path)
        if not rest:
            return self._projects(request)
        if unquote(project) not in ("1", "group/demo"):
            return StubResponse(404, {"message": "404 Project Not Found"})
        return self._project(request, below)

    def _projects(self, request: RecordedRequest) -> StubResponse:
        pages = {"x-total": "1", "x-next-page": "", "link": f'<{self.api}/projects>; rel="first"'}
        headers = {**pages, "set-cookie": "_gitlab_session=abc", "ratelimit-remaining": "1999"}
        project = {"id": 1, "path_with_namespace": "group/demo", "query": dict(request.query)}
        return StubResponse(200, [project], headers)

    def _project(self, request: RecordedRequest, below: str) -> StubResponse:
        match request.method, below:
            case "GET", "":
                return StubResponse(200, {"id": 1, "path_with_namespace": "group/demo"})
            case "GET" | "HEAD", "issues":
                return StubResponse(200, self.issues)
            case "POST", "issues":
                return self._created(request)
            case "PUT", "issues/1":
                return StubResponse(200, {"iid": 1, **request.json})
            case "PATCH", "echo":
                return StubResponse(200, parse_qs(request.body.decode()))
            case "DELETE", "issues/1":
                return StubResponse(204, b"")
            case "POST", "uploads":
                return self._uploaded(request)
            case "GET", "repository/files/docs%2FREADME.md/raw":
                return StubResponse(200, README, {"content-type": "text/plain; charset=utf-8"})
            case "GET", "repository/files/logo.png/raw":
                return StubResponse(200, PICTURE, {"content-type": "image/png"})
        return StubResponse(404, {"message": "404 Not found"})

    def _created(self, request: RecordedRequest) -> StubResponse:
        if request.headers.get("content-type") == "application/json":
            fields = request.json
        else:
            fields = {name: value[0] for name, value in parse_qs(request.body.decode()).items()}
        if not fields.get("title"):
            return StubResponse(400, {"message": {"title": ["can't be blank"]}})
        if fields["title"] in [issue["title"] for issue in self.issues]:
            return StubResponse(409, {"message": "Duplicated issue"})
        issue = {"iid": len(self.issues) + 1, **fields}
        self.issues.append(issue)
        return StubResponse(201, issue)

    def _uploaded(self, request: RecordedRequest) -> StubResponse:
        boundary = request.headers["content-type"].partition("boundary=")[2].encode()
        values = {}
        for part in request.body.split(b"--" + boundary)[1:-1]:
            head = MULTIPART_HEAD.search(part)
            assert head is not None, part
            name, filename, kind = [(field_value or b"").decode() for field_value in head.groups()]
            values[name] = [filename, kind, part[head.end() :].removesuffix(b"\r\n").decode()]
        return StubResponse(201, {"parts": values, "markdown": "![x](/uploads/x)"})

    def _odd(self, path: str) -> StubResponse:
        away = {"location": f"{self.elsewhere}/api/v4/projects/1"}
        return {
            "forbidden": StubResponse(
                403, {"message": "403 Forbidden", "error": "insufficient_scope"}
            ),
            "flooded": StubResponse(
                429, b"Retry later\n", {"retry-after": "30", "content-type": "text/plain"}
            ),
            "broken": StubResponse(500, {"message": "500 Internal Server Error"}),
            "moved": StubResponse(302, b"", {"location": "/api/v4/projects/1"}),
            "artifact": StubResponse(302, b"", away),
            "huge": StubResponse(200, [{"id": n, "text": "ü" * 10} for n in range(20_000)]),
            "letters": StubResponse(200, "ü".encode() * 200_000, {"content-type": "text/plain"}),
            "html": StubResponse(200, b"<p>Sign in</p>", {"content-type": "text/html"}),
            "null": StubResponse(200, None),
            "deep": StubResponse(200, b"[" * 5_000 + b"]" * 5_000),
            "wrong": StubResponse(200, b'{"a": ', {"content-type": "application/json"}),
            "latin": StubResponse(200, b"\xfc", {"content-type": "text/plain; charset=ISO-8859-1"}),
        }.get(path, StubResponse(404, {"error": "404 Not Found"}))


def echo_answer(request: RecordedRequest) -> StubResponse:
    """Answer the headers of the request."""
    return StubResponse(
        200, {"headers": sorted(request.headers), "seen": json.dumps(dict(request.headers))}
    )


class ForgeServers(NamedTuple):
    """GitLab, and another server."""

    gitlab: Gitlab
    elsewhere: HttpServer


def gitlab_result(
    agent: PackCaller, forge_servers: ForgeServers, path: str, /, **more: Any
) -> ToolResult:
    """Send a request to the small GitLab with the stored token."""
    usual = {"endpoint": forge_servers.gitlab.api, "token": "secret:GITLAB_TOKEN", "path": path}
    return agent.call("gitlab_request", **(usual | more))


@pytest.fixture(scope="module")
def forge_servers() -> Iterator[ForgeServers]:
    with HttpServer(echo_answer) as elsewhere, Gitlab(elsewhere.url) as gitlab:
        yield ForgeServers(gitlab, elsewhere)


@pytest.fixture(scope="module")
def server(
    forge_servers: ForgeServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackServer]:
    with open_server(
        tmp_path_factory.mktemp("gitlab"),
        ["gitlab"],
        packs={"gitlab": {"literals": True}},
        network={
            "allow_hosts": [
                forge_servers.gitlab.place,
                forge_servers.elsewhere.place,
                "127.0.0.1:9",
            ]
        },
    ) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(
    server: PackServer, forge_servers: ForgeServers, request: pytest.FixtureRequest
) -> PackCaller:
    """Return an agent of a tenant with a stored token."""
    hosts = (forge_servers.gitlab.place, "127.0.0.1:9")
    return server.agent_with(request.param, *hosts, GITLAB_TOKEN=PERSONAL_TOKEN)


pytestmark = pytest.mark.requirement("X4")


def test_an_oauth_token_is_sent_as_a_bearer_token(
    agent: PackCaller, forge_servers: ForgeServers
) -> None:
    """GitLab takes those as a bearer only."""
    value = gitlab_result(agent, forge_servers, "/projects/1", token=OAUTH).value

    assert value["status_code"] == 200
    assert "private-token" not in forge_servers.gitlab.asked[-1].headers


def test_a_token_is_not_sent_to_another_server(
    agent: PackCaller, forge_servers: ForgeServers
) -> None:
    """A redirect to another host (artifacts, uploads) is followed without it."""
    value = gitlab_result(agent, forge_servers, "/artifact", headers={"X-Mine": "x"}).value

    assert value["status_code"] == 200
    assert not {"private-token", "authorization", "x-mine"} & set(value["json"]["headers"])
    assert PERSONAL_TOKEN not in value["json"]["seen"]


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_literal_tokens_can_be_refused(
    forge_servers: ForgeServers, protocol: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Then only stored tokens are used, and the refusal does not repeat the literal."""
    with open_server(
        tmp_path_factory.mktemp("strict"),
        ["gitlab"],
        network={"allow_hosts": [forge_servers.gitlab.place]},
        packs={"gitlab": {"literals": False}},
    ) as strict:
        agent = strict.agent_with(protocol, forge_servers.gitlab.place, GITLAB_TOKEN=PERSONAL_TOKEN)
        refused = gitlab_result(agent, forge_servers, "/projects/1", token=OAUTH)
        taken = gitlab_result(agent, forge_servers, "/projects/1")

    assert "`token` takes no literal value here; name a secret" in str(refused.failure)
    assert OAUTH not in str(refused.failure)
    assert taken.value["status_code"] == 200


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(
    "value", ["secret:GITLAB_TOKEN", PERSONAL_TOKEN, OAUTH], ids=["kept", "glpat", "oauth"]
)
def test_a_token_is_removed_from_every_response(
    agent: PackCaller, forge_servers: ForgeServers, value: str
) -> None:
    """The other side may return it in a value, in a header, encoded, or in the bytes."""
    reply = gitlab_result(agent, forge_servers, "/mirror", token=value, include_base64=True)
    token = PERSONAL_TOKEN if value.startswith("secret:") else value

    assert reply.value["status_code"] == 200
    assert token not in reply.text
    for shift in range(3):  # where it may stand in groups of three bytes
        coded = base64.b64encode(b"\0" * shift + token.encode()).decode()[4:-4]
        assert coded not in reply.text
    assert "[REDACTED" in str(reply.value["json"]["seen"])
    assert "[REDACTED" in reply.value["headers"]["x-seen"]


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "/../x"},
        {"method": "TRACE"},
        {"endpoint": "http://127.0.0.1:9/"},
        {"timeout_s": "x"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_token_is_in_no_failure(
    agent: PackCaller, forge_servers: ForgeServers, wrong: dict[str, Any]
) -> None:
    """A token in the place of another argument is in no failure either."""
    reply = gitlab_result(
        agent, forge_servers, wrong.get("path", "/projects"), token=OAUTH, **wrong
    )
    elsewhere = gitlab_result(agent, forge_servers, f"/a/../{OAUTH}", token=OAUTH)

    assert OAUTH not in str(reply.failure)
    assert OAUTH not in str(elsewhere.failure)


def test_a_token_is_in_no_log(
    server: PackServer, agent: PackCaller, forge_servers: ForgeServers
) -> None:
    """Neither a literal token nor a stored one is logged."""
    gitlab_result(agent, forge_servers, "/projects/1", token="glpat-literally-this-one")
    gitlab_result(agent, forge_servers, "/projects/1")

    assert "glpat-" not in server.log()
