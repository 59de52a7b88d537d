"""/openapi.json describes the routes: generated requests and their answers agree with it."""

import json
import urllib.request
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, Literal

import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel, Field

from gatepost import CallContext, Pack
from gatepost.rest.tool_descriptions import MAX_TOOLS
from gatepost.runtime.version import version
from gatepost.tools.offers.offer import Outcome
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

pack = Pack("calm")


class Order(BaseModel):
    """What was ordered."""

    item: str
    count: int


@pack.tool(read_only=True)
async def now(ctx: CallContext) -> str:
    """Take no argument."""
    return "now"


@pack.tool()
async def order(
    ctx: CallContext,
    item: Literal["tea", "coffee"] = "tea",
    count: Annotated[int, Field(ge=1, le=9)] = 1,
) -> Order:
    """Take arguments that may all be left out."""
    return Order(item=item, count=count)


@pack.tool(read_only=True)
async def draw(ctx: CallContext) -> Outcome:
    """Answer a picture."""
    return Outcome(({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},))


@pack.tool(scopes={"never:granted"})
async def guarded(ctx: CallContext) -> str:
    """Need a scope that no caller has."""
    return "no"


TOOL_NAMES = [*pack.tools, "nothing"]

# The document cannot know what arguments a tool takes, so a good object may still be refused.
LEFT_OUT = ["positive_data_acceptance"]

FEW_EXAMPLES, MANY_EXAMPLES = 3, 16
"""Beside those that each value of each schema asks for, which are hundreds."""
EXAMPLES = pytest.mark.parametrize(
    "examples", [FEW_EXAMPLES, pytest.param(MANY_EXAMPLES, marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Yield a server whose tools never fail: the generator finds their names in the list."""
    tools, anybody = {"load": [__name__]}, {"create_on_first_use": True}
    with running_server(
        idp,
        [issuer_settings(idp)],
        tools=tools,
        tenancy=anybody,
        scopes={"admin": "gatepost:admin"},
    ) as server:
        yield server


def fetched_document(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.client.origin}/openapi.json", timeout=60) as answer:  # noqa: S310
        document: dict[str, Any] = json.load(answer)
    return document


def with_valid_headers(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the tenant's name in the checked header, so that requests pass."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "X-Octopus-Tenant-Id":
                    parameter["schema"] = {"type": "string", "enum": ["acme"]}
    return document


def generated_requests(
    server: Server,
    document: dict[str, Any],
    examples: int,
    *,
    excluded_checks: list[str],
    **claims: Any,
) -> tuple[int, set[str]]:
    """Return the number of generated requests, and what was wrong with the answers."""
    # Imported on use: it takes a second, and every process of the tests collects this file.
    engine, events = (
        import_module("schemathesis.engine"),
        import_module("schemathesis.engine.events"),
    )
    config = import_module("schemathesis.config").SchemathesisConfig()
    config.projects.default.generation.update(max_examples=examples, deterministic=True)
    config.projects.default.update(
        headers={"Authorization": f"Bearer {server.token(**claims)}"}, request_timeout=60
    )
    schema = import_module("schemathesis.openapi").from_dict(document, config=config)
    schema.config.update(base_url=server.client.origin)
    import_module("schemathesis.checks").load_all_checks()
    schema.config.checks.update(excluded_check_names=excluded_checks)
    sent, wrong = 0, set()
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            wrong.add(str(event.value))
        if isinstance(event, events.ScenarioFinished):
            sent += len(event.recorder.interactions)
            for checks in event.recorder.checks.values():
                for check in checks:
                    if check.status is engine.Status.FAILURE:
                        wrong.add(f"{event.label}: {check.name}: {check.failure_info.failure}")
    return sent, wrong


@EXAMPLES
def test_generated_requests_get_only_documented_answers(server: Server, examples: int) -> None:
    """Status, type, body and headers of every answer are described; bad requests get 4xx."""
    document = with_valid_headers(fetched_document(server))
    # Some probes ask with other methods, so health answers them all.
    del document["paths"]["/health"]
    if examples == FEW_EXAMPLES:
        # An administrator asks there below; others are refused before anything is read.
        document["paths"] = {
            path: item for path, item in document["paths"].items() if not path.startswith("/v1/")
        }
    sent, wrong = generated_requests(server, document, examples, excluded_checks=LEFT_OUT)

    assert wrong == set()
    assert sent > 50


def test_generated_calls_of_real_tools_get_only_documented_answers(server: Server) -> None:
    """This holds for any arguments and headers."""
    document = with_valid_headers(fetched_document(server))
    call = document["paths"]["/tool/{name}/call"]
    call["post"]["parameters"][0]["schema"] = {"type": "string", "enum": TOOL_NAMES}
    document["paths"] = {"/tool/{name}/call": call, "/health": document["paths"]["/health"]}
    sent, wrong = generated_requests(
        server, document, MANY_EXAMPLES, excluded_checks=[*LEFT_OUT, "unsupported_method"]
    )

    assert wrong == set()
    assert sent > 50


@pytest.mark.requirement("E1", "E9")
@EXAMPLES
def test_generated_requests_of_an_administrator_get_only_documented_answers(
    server: Server, examples: int
) -> None:
    """The refresh is left out, as no server answers at generated addresses (502)."""
    document = with_valid_headers(fetched_document(server))
    paths = document["paths"]
    document["paths"] = {path: item for path, item in paths.items() if path.startswith("/v1/")}
    del document["paths"]["/v1/mcp-servers/{id}/refresh"]
    sent, wrong = generated_requests(
        server, document, examples, excluded_checks=LEFT_OUT, scope="gatepost:admin"
    )

    assert wrong == set()
    assert sent > 50


@pytest.mark.requirement("O1", "O3")
def test_responses_match_the_schemas_of_the_document(server: Server) -> None:
    """A generated client reads tools, errors and health by these schemas."""
    document = fetched_document(server)
    rest_client, schemas = RestClient(server), document["components"]["schemas"]
    for tool in rest_client.tools().json:
        Draft202012Validator(schemas["Tool"]).validate(tool)
    Draft202012Validator(schemas["Health"]).validate(rest_client.health().json)
    Draft202012Validator(schemas["Error"]).validate(rest_client.call("nothing").json)
    listing = document["paths"]["/tools"]["get"]["responses"]["200"]
    assert listing["content"]["application/json"]["schema"]["maxItems"] == MAX_TOOLS


def test_the_document_has_the_version_that_runs(server: Server) -> None:
    """The package, health and the document have one version."""
    assert fetched_document(server)["info"]["version"] == version()
    assert fetched_document(server)["openapi"].startswith("3.1")
