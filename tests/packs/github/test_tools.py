"""The tools of the pack `github` against a small GitHub, by both protocols."""

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from gatepost_packs.github.settings import GithubSettings
from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    by_rest,
    open_server,
)
from tests.support.client import RestClient

TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"  # GitHub's own example of one
DOCS = "https://docs.github.com/rest"


class Github(HttpServer):
    """
    `octo/demo` has issues, and every second one of them is a pull request.

    Other repositories of `octo` answer as their names say.
    """

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have the issues of the beginning."""
        self.issues = [self._issue(n, pull=n % 2 == 0) for n in range(1, 12)]

    def _issue(self, number: int, *, pull: bool = False, **fields: Any) -> dict[str, Any]:
        kind = "pull" if pull else "issues"
        issue = {
            "id": 1000 + number,
            "number": number,
            "title": f"Issue {number}",
            "body": "A text\n" * 3,
            "state": "closed" if number == 9 else "open",
            "user": {"login": "octocat"},
            "labels": [{"id": 1, "name": "bug"}] if number < 4 else [],
            "html_url": f"https://github.com/octo/demo/{kind}/{number}",
            "updated_at": f"2024-01-{number:02}T00:00:00Z",
        }
        return issue | ({"pull_request": {"url": "…"}} if pull else {}) | fields

    def _answered(self, request: RecordedRequest) -> StubResponse:
        names = request.path.removeprefix("/api/v3").split("/")
        if len(names) != 5 or names[1] != "repos" or names[4] != "issues":
            return StubResponse(404, {"message": "Not Found", "documentation_url": DOCS})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return StubResponse(401, {"message": "Bad credentials", "documentation_url": DOCS})
        if names[2:4] == ["octo", "demo"]:
            return self._listed(request) if request.method == "GET" else self._created(request)
        return self._odd(names[3])

    def _listed(self, request: RecordedRequest) -> StubResponse:
        state, labels = request.first("state", "open"), request.first("labels")
        issues = [
            issue
            for issue in reversed(self.issues)
            if state in ("all", issue["state"])
            and set(filter(None, labels.split(","))) <= {label["name"] for label in issue["labels"]}
        ]
        size, page = int(request.first("per_page", "30")), int(request.first("page", "1"))
        headers = {}
        if page * size < len(issues):
            after = f"{self.url}{request.path}?page={page + 1}&per_page={size}"
            headers["link"] = f'<{after}>; rel="next", <{after}>; rel="last"'
        return StubResponse(200, issues[(page - 1) * size : page * size], headers)

    def _created(self, request: RecordedRequest) -> StubResponse:
        fields = request.json
        if "nobody" in fields["assignees"]:
            wrong = {
                "value": "nobody",
                "resource": "Issue",
                "field": "assignees",
                "code": "invalid",
            }
            return StubResponse(422, {"message": "Validation Failed", "errors": [wrong]})
        issue = self._issue(len(self.issues) + 1, **fields)
        self.issues.append(issue)
        return StubResponse(201, issue)

    def _odd(self, name: str) -> StubResponse:
        now = int(time.time())
        spent = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(now + 90)}
        return {
            "spent": StubResponse(
                403, {"message": "API rate limit exceeded for user ID 1."}, spent
            ),
            "hasty": StubResponse(
                403,
                {"message": "You have exceeded a secondary rate limit."},
                {"retry-after": "7"},
            ),
            "headless": StubResponse(
                403,
                {
                    "message": "Please wait a few minutes before you try again.",
                    "documentation_url": "https://docs.github.com/free-pro-team@latest/rest/"
                    "overview/rate-limits-for-the-rest-api#about-secondary-rate-limits",
                },
            ),
            "flooded": StubResponse(429, {"message": "Too many requests"}),
            "closed": StubResponse(
                403,
                {
                    "message": "Resource not accessible by personal access token",
                    "documentation_url": "https://docs.github.com/rest/issues/issues#get-an-issue",
                },
            ),
            "without": StubResponse(410, {"message": "Issues are disabled for this repo"}),
            "moved": StubResponse(
                301,
                {"message": "Moved Permanently", "url": "…"},
                {"location": f"{self.url}/repos/octo/demo/issues"},
            ),
            "strange": StubResponse(418, {"message": "I'm a teapot"}),
            "broken": StubResponse(502, b"<html>Bad gateway</html>"),
            "resting": StubResponse(503, {"message": "Service unavailable"}, {"retry-after": "11"}),
            "page": StubResponse(
                200, b"<html>Sign in to the network</html>", {"content-type": "text/html"}
            ),
            "huge": StubResponse(200, b"[" + b'{"number": 1, "html_url": "x"},' * 600_000),
            "list": StubResponse(201, [{"number": "one"}]),
        }.get(name, StubResponse(404, {"message": "Not Found", "documentation_url": DOCS}))


pytestmark = pytest.mark.requirement("P8")


@pytest.fixture(scope="module")
def github() -> Iterator[Github]:
    with Github() as running:
        yield running


@pytest.fixture(autouse=True)
def beginning(github: Github) -> None:
    """Delete the objects that earlier tests created."""
    github.begin_anew()


@pytest.fixture(scope="module")
def server(github: Github, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    with open_server(
        tmp_path_factory.mktemp("github"),
        ["github"],
        network={"allow_hosts": [github.place]},
        packs={"github": {"api_url": f"{github.url}/api/v3/"}},
    ) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> PackCaller:
    """Return an agent of a tenant that has a token."""
    return server.agent_with(request.param, GITHUB_TOKEN=TOKEN)


def test_issues_are_listed(agent: PackCaller, github: Github) -> None:
    """The newest come first, without pull requests."""
    value = agent.call("github_list_issues", repo="octo/demo", labels=["bug"], limit=2).value
    rest = agent.call("github_list_issues", repo="octo/demo", labels=["bug"], limit=2, page=2)

    assert value == {
        "issues": [
            {
                "number": 3,
                "title": "Issue 3",
                "state": "open",
                "labels": ["bug"],
                "url": "https://github.com/octo/demo/issues/3",
                "updated": "2024-01-03T00:00:00Z",
            }
        ],
        "next_page": 2,
    }
    assert [issue["number"] for issue in rest.value["issues"]] == [1]
    assert rest.value["next_page"] is None
    request = github.asked[-1]
    assert request.path == "/api/v3/repos/octo/demo/issues"
    assert request.headers["accept"] == "application/vnd.github+json"
    assert request.headers["x-github-api-version"] == "2022-11-28"


@pytest.mark.parametrize(("state", "has_it"), [("open", False), ("closed", True), ("all", True)])
def test_issues_are_listed_by_state(agent: PackCaller, state: str, has_it: bool) -> None:
    """Open issues are the default."""
    value = agent.call("github_list_issues", repo="octo/demo", state=state).value

    assert (9 in [issue["number"] for issue in value["issues"]]) == has_it


def test_a_repository_that_moved_is_followed(agent: PackCaller) -> None:
    """Gatepost follows GitHub's redirect."""
    assert agent.call("github_list_issues", repo="octo/moved").value["issues"]


def test_an_issue_is_created(agent: PackCaller, github: Github) -> None:
    """It has all given fields; the answer has its number and address."""
    reply = agent.call(
        "github_create_issue",
        repo="octo/demo",
        title="Grüße",
        body="A *text*",
        labels=["bug"],
        assignees=["octocat"],
    )
    number = len(github.issues)

    assert reply.value == {"number": number, "url": f"https://github.com/octo/demo/issues/{number}"}
    assert github.asked[-1].json == {
        "title": "Grüße",
        "body": "A *text*",
        "labels": ["bug"],
        "assignees": ["octocat"],
    }


class GithubFailure(NamedTuple):
    """A call that cannot work; *after* is when to try again."""

    repo: str
    kind: str
    says: str
    more: dict[str, Any] = {}
    reads: bool = True
    writes: bool = True


FAILING_CALLS = [
    GithubFailure("octo", "validation", "`repo` should be owner/name"),
    GithubFailure("https://github.com/octo/demo", "validation", "`repo` should be owner/name"),
    GithubFailure("octo/..", "validation", "`repo` should be owner/name"),
    GithubFailure("../octo/demo", "validation", "`repo` should be owner/name"),
    GithubFailure("octo/demo/issues?x=", "validation", "`repo` should be owner/name"),
    GithubFailure("octo/de%2fmo", "validation", "`repo` should be owner/name"),
    GithubFailure("octo/demo\n", "validation", "`repo` should be owner/name"),
    GithubFailure(
        "octo/nowhere", "not_found", "no repository octo/nowhere, or the token may not see it"
    ),
    GithubFailure(
        "octo/spent", "rate_limit", "accepts no more requests for now: API rate limit exceeded"
    ),
    GithubFailure("octo/hasty", "rate_limit", "secondary rate limit"),
    GithubFailure("octo/headless", "rate_limit", "Please wait a few minutes"),
    GithubFailure("octo/flooded", "rate_limit", "Too many requests"),
    GithubFailure(
        "octo/closed",
        "denied",
        "lacks a permission for this in octo/closed: Resource not accessible",
    ),
    GithubFailure("octo/without", "not_found", "octo/without has no issues: Issues are disabled"),
    GithubFailure("octo/strange", "validation", "GitHub answered 418: I'm a teapot"),
    GithubFailure("octo/resting", "upstream_unavailable", r"fails at the moment \(503\)"),
    GithubFailure("octo/broken", "upstream_unavailable", r"at the moment \(502\)", writes=False),
    GithubFailure(
        "octo/broken", "internal", r"failed \(502\). The change may have been made", reads=False
    ),
    GithubFailure("octo/moved", "not_found", "octo/moved has moved", reads=False),
    GithubFailure("octo/page", "upstream_unavailable", "is not GitHub's API", writes=False),
    GithubFailure(
        "octo/huge", "validation", "too large to read: pass a smaller `limit`", writes=False
    ),
    GithubFailure(
        "octo/list", "internal", "cannot be read. The change may have been made", reads=False
    ),
    GithubFailure("octo/demo", "validation", "holds a comma", {"labels": ["a,b"]}, writes=False),
    GithubFailure("octo/demo", "validation", "limit", {"limit": 101}, writes=False),
    GithubFailure(
        "octo/demo", "validation", "'open', 'closed' or 'all'", {"state": "new"}, writes=False
    ),
    GithubFailure(
        "octo/demo",
        "validation",
        "refuses this: Validation Failed; `assignees`: invalid",
        {"assignees": ["nobody"]},
        reads=False,
    ),
]

CALLS = [
    *(("github_list_issues", case, case.more) for case in FAILING_CALLS if case.reads),
    *(
        ("github_create_issue", case, {"title": "x", **case.more})
        for case in FAILING_CALLS
        if case.writes
    ),
]


@pytest.mark.parametrize(
    ("tool", "case", "more"), CALLS, ids=[f"{c[0]}-{n}" for n, c in enumerate(CALLS)]
)
@by_rest
def test_a_failure_explains_the_problem_to_the_model(
    agent: PackCaller, tool: str, case: GithubFailure, more: dict[str, Any]
) -> None:
    """GitHub's own text is used if there is one; the token is never shown."""
    reply = agent.call(tool, repo=case.repo, **more)

    assert reply.failure is not None
    assert re.search(case.says, reply.failure), reply.failure
    assert reply.kind in (None, case.kind)
    assert TOKEN not in reply.failure


@pytest.mark.parametrize(
    ("repo", "least", "most"),
    [("spent", 80, 90), ("hasty", 7, 7), ("flooded", 60, 60), ("resting", 11, 11)],
)
def test_a_rate_limit_failure_has_its_retry_time(
    server: PackServer, repo: str, least: int, most: int
) -> None:
    """GitHub names the time in one of several headers."""
    agent = server.agent_with("rest", GITHUB_TOKEN=TOKEN)

    answer = RestClient(server, agent.token).call("github_list_issues", {"repo": f"octo/{repo}"})

    assert least <= answer.json["retry_after"] <= most


@pytest.mark.parametrize("tool", ["github_list_issues", "github_create_issue"])
@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_a_missing_and_a_wrong_token_have_different_failures(
    server: PackServer, protocol: Any, tool: str
) -> None:
    """The first failure names the missing secret, and the second repeats GitHub's refusal."""
    more = {"title": "x"} if "create" in tool else {}
    without = server.agent(protocol)
    wrong = server.agent_with(protocol, GITHUB_TOKEN="ghp_wrong")

    missing = without.call(tool, repo="octo/demo", **more)
    refused = wrong.call(tool, repo="octo/demo", **more)

    assert "There is no secret GITHUB_TOKEN here" in str(missing.failure)
    assert missing.kind in (None, "not_found")
    assert "refuses the token (Bad credentials)" in str(refused.failure)
    assert refused.kind in (None, "denied")
    assert "ghp_wrong" not in str(refused.failure)


def test_the_token_is_in_no_log(server: PackServer, agent: PackCaller) -> None:
    """The header that carried it is in no log either."""
    agent.call("github_list_issues", repo="octo/demo")

    assert TOKEN not in server.log()


@pytest.mark.parametrize(
    ("settings", "faults"),
    [
        ({}, []),
        ({"api_url": "https://github.example.com/api/v3"}, []),
        ({"token": ""}, []),
        ({"api_url": "github.com"}, ["api_url"]),
        ({"api_url": "https://x/?a=b"}, ["api_url"]),
        ({"token": "ghp_literal"}, ["token"]),
        ({"token": "secret:github_token"}, ["token"]),
    ],
)
def test_check_reports_an_unusable_setting(settings: dict[str, str], faults: list[str]) -> None:
    """A token in the configuration is never repeated."""
    problems = list(msgspec.convert(settings, GithubSettings).faults())

    assert [fault.setting for fault in problems] == faults
    assert "ghp_literal" not in str(problems)
