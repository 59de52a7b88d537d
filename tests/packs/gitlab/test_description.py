"""Gatepost fetches GitLab's own description, caches it for an hour, pages and searches it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost_packs.gitlab.description import CACHED_S, DescriptionCache
from gatepost_packs.gitlab.settings import SPEC_URL
from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    by_rest,
    open_server,
)

pytestmark = pytest.mark.requirement("X5")

SPEC = """openapi: 3.0.1
info: {title: GitLab API, version: v4}
paths:
  /api/v4/projects/{id}/issues:
    get:
      summary: List project issues
      description: Get all issues… of a project
      operationId: getProjectIssues
      tags: [issues]
      parameters: [{$ref: '#/components/parameters/id'}]
      responses: {'200': {description: Ünïcödé 🦊}}
    post: {summary: New issue, operationId: postProjectIssues}
  /api/v4/version:
    get: {summary: Version, operationId: getVersion}
components:
  parameters:
    id: {name: id, in: path, required: true, schema: {type: string}}
""".encode()


def description_answer(request: RecordedRequest) -> StubResponse:
    """Answer the description, bytes that are not text, or 404."""
    if request.path == "/gone":
        return StubResponse(404, b"")
    return StubResponse(200, b"\xff\xfe\xff" if request.path == "/bytes" else SPEC)


@pytest.fixture(scope="module")
def host() -> Iterator[HttpServer]:
    """Yield the server of the descriptions."""
    with HttpServer(description_answer) as host:
        yield host


@pytest.fixture(scope="module")
def url(host: HttpServer) -> str:
    return host.url


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """Yield a server whose operator configured another URL for GitLab's description."""
    folder = tmp_path_factory.mktemp("gitlab")
    packs = {"gitlab": {"spec_url": f"{url}/home.yaml"}}
    network = {"allow_hosts": [url.removeprefix("http://")]}
    with open_server(folder, ["gitlab"], packs=packs, network=network) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> PackCaller:
    return server.agent(request.param)


def test_the_description_is_paged_without_breaking_a_character(agent: PackCaller) -> None:
    """A caller that asks for one chunk after another gets every byte once, at any chunk size."""
    for size in (4, 97, 200_000):
        content = b""
        for offset in range(0, len(SPEC), size):
            chunk = agent.call("gitlab_openapi_spec", offset=offset, max_bytes=size).value
            assert chunk["status_code"] == 200
            assert chunk["total_bytes"] == len(SPEC)
            assert chunk["offset"] == len(content)
            content += chunk["text"].encode()
            assert chunk["truncated"] is (len(content) < len(SPEC))
        assert content == SPEC


def test_paths_are_searched_and_paged(agent: PackCaller) -> None:
    """Path, method and summary are searched, in any case."""

    def search_paths(**arguments: Any) -> Any:
        return agent.call("gitlab_openapi_paths", **arguments).value

    everything = search_paths()

    assert (everything["total"], everything["offset"], everything["limit"]) == (3, 0, 200)
    assert everything["entries"][0] == {
        "path": "/api/v4/projects/{id}/issues",
        "method": "GET",
        "summary": "List project issues",
    }
    assert search_paths(filter_text="ISSUES")["total"] == 2
    assert [entry["method"] for entry in search_paths(filter_text="post")["entries"]] == ["POST"]
    assert search_paths(filter_text="version", limit=1, offset=1) == {
        "total": 1,
        "offset": 1,
        "limit": 1,
        "entries": [],
    }


@pytest.mark.parametrize("path", ["/projects/{id}/issues", "/api/v4/projects/{id}/issues"])
def test_an_operation_is_described(agent: PackCaller, path: str) -> None:
    """References are resolved; GitLab's own documentation leaves the root path out."""
    operation = agent.call("gitlab_openapi_operation", path=path, method="get").value

    assert operation["operationId"] == "getProjectIssues"
    assert operation["parameters"][0]["schema"] == {"type": "string"}
    assert operation["tags"] == ["issues"]


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "expected_text"),
    [
        ("gitlab_openapi_spec", {"spec_url": "URL/gone"}, "validation", "answered 404"),
        ("gitlab_openapi_spec", {"spec_url": "URL/bytes"}, "validation", "not UTF-8 text"),
        ("gitlab_openapi_spec", {"spec_url": "file:///etc/passwd"}, "denied", "."),
        ("gitlab_openapi_spec", {"max_bytes": 3}, "validation", "max_bytes"),
        ("gitlab_openapi_spec", {"offset": -1}, "validation", "offset"),
        ("gitlab_openapi_paths", {"spec_url": "URL/bytes"}, "validation", "not valid Unicode"),
        ("gitlab_openapi_paths", {"limit": 0}, "validation", "limit"),
        ("gitlab_openapi_operation", {"path": "/no", "method": "GET"}, "not_found", "There is no"),
        (
            "gitlab_openapi_operation",
            {"path": "/projects/7/issues", "method": "GET"},
            "not_found",
            "gitlab_openapi_paths lists all",
        ),
    ],
)
@by_rest
def test_a_failure_explains_the_problem_to_the_model(
    agent: PackCaller, url: str, tool: str, arguments: dict[str, Any], kind: str, expected_text: str
) -> None:
    """The failure is the same over both protocols."""
    arguments = {
        n: v.replace("URL", url) if isinstance(v, str) else v for n, v in arguments.items()
    }

    reply = agent.call(tool, **arguments)

    assert reply.kind in (None, kind)
    assert re.search(expected_text, str(reply.failure)), reply


def test_the_description_is_fetched_once_an_hour_by_each_tenant(
    server: PackServer, host: HttpServer, url: str
) -> None:
    """A caller can ask for a fresh one (`refresh`); tenants do not share a cached description."""
    first, other = server.agent("rest"), server.agent("rest")
    path = "/counted.yaml"
    for agent in (first, first, other):
        agent.call("gitlab_openapi_paths", spec_url=url + path)
    first.call("gitlab_openapi_spec", spec_url=url + path)
    twice = [request.path for request in host.asked].count(path)
    first.call("gitlab_openapi_spec", spec_url=url + path, refresh=True)

    assert (twice, [request.path for request in host.asked].count(path)) == (2, 3)


def test_a_description_older_than_an_hour_is_fetched_again() -> None:
    """Gatepost fetches a description again when it is an hour old."""
    now = [0.0]
    cache = DescriptionCache(lambda: now[0])
    cache.put("acme", SPEC_URL, b"x")
    now[0] = CACHED_S - 1
    fresh = cache.get("acme", SPEC_URL)
    now[0] = CACHED_S

    assert fresh is not None
    assert cache.get("acme", SPEC_URL) is None
    assert cache.get("globex", SPEC_URL) is None


def test_the_description_cache_is_bounded() -> None:
    """The oldest description of all tenants is dropped first."""
    cache = DescriptionCache()
    for number in range(5):
        cache.put(f"t{number}", SPEC_URL, bytes(20_000_000))

    assert [cache.get(f"t{number}", SPEC_URL) is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
