"""The tools of the pack `gitlab` against a small GitLab, by both protocols."""

import base64
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost_packs.gitlab.address import address_of
from gatepost_packs.gitlab.help import TOOLS
from gatepost_packs.gitlab.tools import pack
from tests.packs.conftest import PackCaller, by_mcp, by_rest, open_server
from tests.packs.gitlab.test_tokens import (
    PERSONAL_TOKEN,
    PICTURE,
    README,
    ForgeServers,
    agent,
    forge_servers,
    gitlab_result,
    server,
)

__all__ = ["agent", "forge_servers", "server"]  # fixtures

pytestmark = pytest.mark.requirement("X4")


def test_a_list_is_read(agent: PackCaller, forge_servers: ForgeServers) -> None:
    """The answer has status, headers, text and value, but no cookie that would sign a reader in."""
    params = {"membership": True, "per_page": 10, "labels": ["a", "b"], "not": {"x": 1}}
    value = gitlab_result(agent, forge_servers, "/projects", params=params).value
    request = forge_servers.gitlab.asked[-1]

    assert set(value) == {"status_code", "headers", "text", "json", "truncated"}
    assert (value["status_code"], value["truncated"]) == (200, False)
    assert value["headers"]["x-total"] == "1"
    assert "set-cookie" not in value["headers"]
    assert value["json"][0]["query"] == {
        "membership": ["true"],
        "per_page": ["10"],
        "labels[]": ["a", "b"],
        "not[x]": ["1"],
    }
    assert value["text"].startswith('[{"id": 1')
    assert request.headers["private-token"] == PERSONAL_TOKEN
    assert "authorization" not in request.headers


class WorkingCall(NamedTuple):
    """A call, and what of its answer is looked at."""

    path: str
    arguments: dict[str, Any]
    status: int
    json: Any = None
    text: str | None = None


UPLOAD = {
    "name": "file",
    "filename": "upload.txt",
    "data_base64": "SGVsbG8gV29ybGQ=",
    "content_type": "text/plain",
}

DEMO = {"id": 1, "path_with_namespace": "group/demo"}
RAW_FILE_PATH = "/projects/1/repository/files/docs%2FREADME.md/raw"
BLANK_TITLE_ERROR = {"message": {"title": ["can't be blank"]}}

WORKING_CALLS = [
    WorkingCall("/projects/1", {}, 200, DEMO),
    WorkingCall("projects/group%2Fdemo", {}, 200, DEMO),
    WorkingCall("/projects/1", {"method": "get"}, 200, DEMO),
    WorkingCall("/projects/1/issues", {"method": "HEAD"}, 200, None, ""),
    WorkingCall(
        "/projects/1/issues/1",
        {"method": "PUT", "json_body": {"title": "ü", "labels": ["a"]}},
        200,
        {"iid": 1, "title": "ü", "labels": ["a"]},
    ),
    WorkingCall("/projects/1/issues/1", {"method": "DELETE"}, 204, None, ""),
    WorkingCall(
        "/projects/1/echo",
        {"method": "PATCH", "form": {"a": "b c", "list": [1, True], "o": {"x": "y"}}},
        200,
        {"a": ["b c"], "list[]": ["1", "true"], "o[x]": ["y"]},
    ),
    WorkingCall(
        "/projects/1/uploads",
        {"method": "POST", "files": [UPLOAD], "form": {"note": "x"}},
        201,
        {
            "parts": {"note": ["", "", "x"], "file": ["upload.txt", "text/plain", "Hello World"]},
            "markdown": "![x](/uploads/x)",
        },
    ),
    WorkingCall(
        RAW_FILE_PATH,
        {"params": {"ref": "main"}},
        200,
        None,
        README.decode(),
    ),
    WorkingCall(f"{RAW_FILE_PATH}?ref=main", {}, 200, None, README.decode()),
    WorkingCall("/moved", {}, 200, DEMO),
    WorkingCall("/html", {}, 200, None, "<p>Sign in</p>"),
    WorkingCall("/latin", {}, 200, None, "ü"),
    WorkingCall("/wrong", {}, 200, None, '{"a": '),
    WorkingCall("/deep", {"max_bytes": 10_000}, 200, None, "[" * 5_000 + "]" * 5_000),
    WorkingCall("/null", {}, 200, None, "null"),
    WorkingCall("/projects/1", {"include_text": False}, 200, DEMO),
    WorkingCall("/projects/2", {}, 404, {"message": "404 Project Not Found"}),
    WorkingCall("/forbidden", {}, 403, {"message": "403 Forbidden", "error": "insufficient_scope"}),
    WorkingCall("/projects/1/issues", {"method": "POST", "json_body": {}}, 400, BLANK_TITLE_ERROR),
    WorkingCall("/flooded", {}, 429, None, "Retry later\n"),
    WorkingCall("/broken", {}, 500, {"message": "500 Internal Server Error"}),
    WorkingCall("/projects/1", {"token": "glpat-wrong"}, 401, {"message": "401 Unauthorized"}),
]


@pytest.mark.parametrize(
    "case", WORKING_CALLS, ids=[f"{n}-{c.status}" for n, c in enumerate(WORKING_CALLS)]
)
@by_mcp
def test_every_response_of_gitlab_is_returned(
    agent: PackCaller, forge_servers: ForgeServers, case: WorkingCall
) -> None:
    """Refusals of GitLab, too, are answers and no failures."""
    reply = gitlab_result(agent, forge_servers, case.path, **case.arguments)

    assert reply.failure is None
    assert reply.value["status_code"] == case.status
    assert reply.value["json"] == case.json
    assert reply.value["truncated"] is False
    if case.text is not None:
        assert reply.value["text"] == case.text
    if case.arguments.get("include_text") is False:
        assert reply.value["text"] is None


def test_an_issue_is_created_once(agent: PackCaller, forge_servers: ForgeServers) -> None:
    """As JSON and as a form; a second issue with the title gets GitLab's own conflict."""
    title = f"Bug of {agent.tenant}"
    answer = gitlab_result(
        agent, forge_servers, "/projects/1/issues", method="POST", json_body={"title": title}
    )
    again = gitlab_result(
        agent, forge_servers, "/projects/1/issues", method="POST", form={"title": title}
    )

    assert (answer.value["status_code"], answer.value["json"]["title"]) == (201, title)
    assert (again.value["status_code"], again.value["json"]) == (
        409,
        {"message": "Duplicated issue"},
    )


def test_bytes_travel_as_base64(agent: PackCaller, forge_servers: ForgeServers) -> None:
    """The caller asks for base64, because bytes are not text."""
    path = "/projects/1/repository/files/logo.png/raw"
    value = gitlab_result(agent, forge_servers, path, include_base64=True).value

    assert base64.b64decode(value["base64"]) == PICTURE
    assert (value["text"], value["json"]) == (None, None)


def test_a_long_answer_is_cut_and_stays_valid(
    agent: PackCaller, forge_servers: ForgeServers
) -> None:
    """The answer holds no half value and no half character, and says that it was cut."""
    huge = gitlab_result(agent, forge_servers, "/huge", max_bytes=1_001, include_base64=True).value
    letters = gitlab_result(agent, forge_servers, "/letters", max_bytes=101).value

    assert (huge["truncated"], huge["json"]) == (True, None)
    assert len(base64.b64decode(huge["base64"])) == 1_001
    assert (letters["truncated"], letters["text"]) == (True, "ü" * 50)


class GitlabFailure(NamedTuple):
    """A call that cannot work."""

    arguments: dict[str, Any]
    kind: str
    says: str


FAILING_CALLS = [
    *[
        GitlabFailure({"path": path}, "validation", says)
        for path, says in (
            ("/../../etc", "must not have `.` or `..`"),
            ("/projects/..%2f..", "must not have `.` or `..`"),
            ("/projects/%2e%2e/x", "must not have `.` or `..`"),
            ("/projects/%252e%252e%252fx", "must not have `.` or `..`"),
            ("/a/./b", "must not have `.` or `..`"),
            ("//evil.example/x", "must not name a server"),
            ("https://evil.example/x", "must not name a server"),
            ("/\\evil.example", "holds a backslash"),
            ("/projects/1#x", "write it as %23"),
            ("/projects/1\r\nX: y", "holds control characters"),
            ("/projects?private_token=x", "pass the token as `token`"),
        )
    ],
    *[
        GitlabFailure(
            {"endpoint": endpoint}, "validation", "`endpoint` must be exactly the base URL"
        )
        for endpoint in (
            "gitlab.com",
            "ftp://gitlab.com",
            "https://user:pass@gitlab.com/api/v4",
            "https://gitlab.com/api/v4?x=y",
            "https://gitlab.com/api/v4#x",
            "https://gitlab.com:99999/api/v4",
            "https://gitlab.com\\@evil.example",
            "",
        )
    ],
    GitlabFailure({"method": "TRACE"}, "validation", "`method` must be one of DELETE, GET"),
    GitlabFailure({"json_body": {}, "form": {}}, "validation", "a request has one body"),
    GitlabFailure(
        {"form": {"a": {"b": {"c": {"d": {"e": 1}}}}}}, "validation", "nested too deeply for a form"
    ),
    GitlabFailure({"form": {"a": [[1]]}}, "validation", "lists within lists"),
    GitlabFailure({"params": {"private_token": "x"}}, "validation", "pass the token as `token`"),
    GitlabFailure({"headers": {"Private-Token": "x"}}, "validation", "must not hold private-token"),
    GitlabFailure({"headers": {"cookie": "x"}}, "validation", "must not hold cookie"),
    GitlabFailure({"headers": {"Host": "x"}}, "validation", "header host cannot be set"),
    GitlabFailure({"headers": {"x": "a\r\nb"}}, "validation", "not printable ASCII"),
    GitlabFailure(
        {"files": [UPLOAD | {"data_base64": "%"}]}, "validation", r"files\[0\].data_base64` is not"
    ),
    GitlabFailure({"files": [{"filename": "x"}]}, "validation", "data_base64` is required"),
    GitlabFailure({"token": "secret:OTHER"}, "not_found", "no secret OTHER here"),
    GitlabFailure({"token": "gl\npat"}, "validation", "is not an access token"),
    GitlabFailure({"token": ""}, "validation", "is not an access token"),
    GitlabFailure({"timeout_s": 0}, "validation", "timeout_s"),
    GitlabFailure({"timeout_s": 301}, "validation", "timeout_s"),
    GitlabFailure({"max_bytes": 0}, "validation", "max_bytes"),
    GitlabFailure(
        {"endpoint": "http://127.0.0.1:9/api/v4"}, "upstream_unavailable", "cannot be reached"
    ),
    GitlabFailure(
        {"endpoint": "http://127.0.0.1:1/api/v4"}, "denied", "is not sent to that URL: port 1"
    ),
    GitlabFailure({"endpoint": "http://169.254.169.254/"}, "denied", "."),
    GitlabFailure({"path": "/slow", "timeout_s": 1}, "timeout", "did not answer in time"),
]


@pytest.mark.parametrize("case", FAILING_CALLS, ids=[str(n) for n in range(len(FAILING_CALLS))])
@by_rest
def test_a_failure_explains_the_problem_to_the_model(
    agent: PackCaller, forge_servers: ForgeServers, case: GitlabFailure
) -> None:
    """GitLab gave no answer, and Gatepost sent no request that it must not send."""
    count = len(forge_servers.gitlab.asked)
    reply = gitlab_result(
        agent, forge_servers, case.arguments.get("path", "/projects"), **case.arguments
    )

    assert reply.failure is not None
    assert re.search(case.says, reply.failure), reply.failure
    assert reply.kind in (None, case.kind)
    assert len(forge_servers.gitlab.asked) == count + (case.kind == "timeout")


@pytest.mark.parametrize("verb", ["GET", "HEAD", "get", "POST", "DELETE", "PUT"])
def test_the_http_method_decides_whether_a_call_only_reads(verb: str) -> None:
    """A retried GET is sent again; a retried POST returns the stored outcome."""
    form = pack.tools["gitlab_request"].read_only_form

    assert form is not None
    assert form({"method": verb}) == (verb.upper() in ("GET", "HEAD"))
    assert form({})


PATHS = ["/a b", "/a%2Fb", "a", "/a?x=%2F", "/ü", "/a:b", "/a/..b", "/...", "/a@b"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_stays_below_the_base_url(path: str) -> None:
    """Encoded characters stay encoded; a path to another server is refused."""
    url = address_of("https://gitlab.example/api/v4/", path)

    assert url.startswith("https://gitlab.example/api/v4/")
    assert url.endswith(path.removeprefix("/").replace(" ", "%20"))


@pytest.mark.parametrize("path", ["@evil.example", ".evil.example", ":80@evil.example/"])
def test_a_path_never_changes_the_server(path: str) -> None:
    """This holds also for a base URL without a path."""
    try:
        url = address_of("https://gitlab.example", path)
    except ToolFailure:
        return
    assert url == f"https://gitlab.example/{path}"


@pytest.mark.requirement("X6")
def test_the_help_names_every_argument(agent: PackCaller) -> None:
    """It lists those of each tool in order, and marks the optional ones."""
    value = agent.call("gitlab_tool_help").value

    assert set(value) == {"overview", "tools", "notes"}
    for name, tool in pack.tools.items():
        needed = tool.input_schema.get("required", [])
        assert value["tools"][name]["inputs"] == [
            argument if argument in needed else f"{argument}?"
            for argument in tool.input_schema["properties"]
        ]
        assert value["tools"][name]["example"].keys() <= tool.input_schema["properties"].keys()
    assert set(value["tools"]) == set(TOOLS)


def test_a_literal_token_is_refused_unless_the_operator_allows_it(
    forge_servers: ForgeServers, tmp_path: Path
) -> None:
    """By default a caller names a stored token; Gatepost sends no request with a literal one."""
    before = len(forge_servers.gitlab.asked)
    with open_server(
        tmp_path, ["gitlab"], network={"allow_hosts": [forge_servers.gitlab.place]}
    ) as server:
        failed = gitlab_result(server.agent("mcp"), forge_servers, "/projects", token="glpat-mine")

    assert "takes no literal value here; name a secret: secret:NAME" in str(failed.failure)
    assert "glpat-mine" not in str(failed.failure)
    assert len(forge_servers.gitlab.asked) == before
