"""GitHub's own description, with its thousand paths, is loaded and used like any other."""

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gatepost.tools.authoring.pack import Pack
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.operation import read_operation
from gatepost_packs.openapi.description.reading import canonical
from gatepost_packs.openapi.settings import Api, OpenapiSettings
from gatepost_packs.openapi.store import CACHED_BYTES, ApiStore
from gatepost_packs.openapi.tool_generation import packs_from
from tests.packs.conftest import PackServer, open_server
from tests.packs.openapi.test_tools import served
from tests.support.issuers import AsgiServer
from tests.support.programs import FOLDER

pytestmark = pytest.mark.requirement("X7")

GITHUB = FOLDER / "node_modules/@octokit/openapi/generated/api.github.com.json"


def remaining_references(value: Any) -> Iterator[str]:
    """Yield the remaining references, except in the data of examples and extensions."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for name, inner in value.items():
            if name not in ("example", "examples") and not name.startswith("x-"):
                yield from remaining_references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from remaining_references(inner)


@pytest.fixture(scope="module")
def published_description() -> bytes:
    """Return the description as GitHub publishes it."""
    assert GITHUB.is_file(), f"{GITHUB} is missing: `python -m tests.support.programs` installs it"
    return GITHUB.read_bytes()


@pytest.fixture(scope="module")
def github(published_description: bytes) -> ApiDescription:
    return ApiDescription(canonical(published_description))


@pytest.fixture(scope="module")
def server(
    published_description: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackServer]:
    """Yield a server that knows the URL of the description."""
    host = AsgiServer(Starlette(routes=[Route("/", served(published_description))])).start()
    folder = tmp_path_factory.mktemp("github")
    network = {"allow_hosts": [host.url.removeprefix("http://")]}
    try:
        with open_server(folder, ["openapi"], network=network) as server:
            server.url = host.url  # type: ignore[attr-defined]
            yield server
    finally:
        host.stop()


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_a_large_description_is_loaded_paged_and_described(
    server: Any, github: ApiDescription, protocol: Any
) -> None:
    """The call keeps to the tool's own timeout, over both protocols."""
    agent = server.agent(protocol)
    loaded = agent.call("openapi_load", name="github", spec_url=server.url)
    count = len(github.entries)
    listed: list[Any] = []
    while len(listed) < count:
        page = agent.call(
            "openapi_list_endpoints", name="github", limit=400, offset=len(listed)
        ).value
        assert page["total"] == count
        assert page["entries"]
        listed += page["entries"]
    operation = agent.call(
        "openapi_get_operation",
        name="github",
        path="/repos/{owner}/{repo}/issues",
        method="POST",
    ).value

    assert loaded.failure is None
    assert loaded.value["endpoint_count"] == count > 1000
    assert len({(entry["path"], entry["method"]) for entry in listed}) == count
    assert [parameter["name"] for parameter in operation["parameters"]] == ["owner", "repo"]
    assert operation["responses"]["201"]["content"]["application/json"]["schema"]["properties"][
        "user"
    ]
    assert list(remaining_references(operation)) == []


def test_every_operation_of_a_large_description_can_be_described(github: ApiDescription) -> None:
    """Whole, without a reference left, each within what one answer may hold."""
    for entry in github.entries:
        source = read_operation(github, entry).source
        text = json.dumps(source)
        assert list(remaining_references(source)) == [], entry
        assert "x-omitted-ref" not in text, entry
        assert len(text) < 4_000_000, entry


def test_operations_of_a_large_description_can_be_tools() -> None:
    """Their names are legal, and validators accept their schemas."""
    table = OpenapiSettings(apis={"hub": Api(document=str(GITHUB), tags=("issues",))})

    (pack,) = packs_from(table, lambda _: b"")

    assert isinstance(pack, Pack), pack
    assert len(pack.tools) > 40
    assert "issues_create" in pack.tools


def test_cached_descriptions_take_bounded_memory(published_description: bytes) -> None:
    """The process drops the oldest ones, however many are loaded."""
    data = canonical(published_description)
    cache = ApiStore()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(12):
        cache.put("acme", str(number), ApiDescription(data))
    numbers = [number for number in range(12) if cache.get("acme", str(number))]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert numbers == list(range(12 - len(numbers), 12))
    assert len(numbers) * ApiDescription(data).weight <= CACHED_BYTES
    assert grown * (1 if sys.platform == "darwin" else 1024) < 8 * CACHED_BYTES
