"""`completion/complete` in every revision."""

from typing import Any

import pytest

from gatepost import CallContext, Pack
from tests.mcp.conftest import declared_capabilities, pack
from tests.support.endpoint import VERSION, EndpointClient, Response, a_caller
from tests.support.endpoint_clients import REVISIONS, ask
from tests.support.measuring import each

pytestmark = pytest.mark.parametrize("revision", REVISIONS)

PROMPT = {"type": "ref/prompt", "name": "summarise"}
TEMPLATE = {"type": "ref/resource", "uri": "report://{quarter}"}


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.offers, obtainable=frozenset())


async def complete(
    client: EndpointClient,
    revision: str,
    ref: Any,
    name: str = "quarter",
    value: str = "q",
    **more: Any,
) -> Response:
    argument = {"name": name, "value": value}
    return await ask(client, revision, "completion/complete", ref=ref, argument=argument, **more)


@pytest.mark.requirement("CP-01", "V-08")
async def test_cp_01_completions_are_declared_if_an_offer_has_suggestions(revision: str) -> None:
    """A prompt or template without suggestions does not declare the capability."""
    silent = EndpointClient([pack.prompts["broken"], pack.templates["note://{+path}{?line,word}"]])
    suggesting = EndpointClient([pack.prompts["summarise"]])

    assert "completions" not in await declared_capabilities(silent, revision)
    assert (await complete(silent, revision, PROMPT)).error == (
        404 if revision == VERSION else 200,
        -32601,
    )
    assert "completions" in await declared_capabilities(suggesting, revision)


@pytest.mark.requirement("CP-02", "CP-03")
async def test_cp_02_a_variable_of_a_template_is_completed(
    client: EndpointClient, revision: str
) -> None:
    """The request names the template by its text."""
    result = (await complete(client, revision, TEMPLATE)).json["result"]

    assert result["completion"] == {
        "values": ["q1", "q2", "q3", "q4"],
        "total": 4,
        "hasMore": False,
    }
    assert (result.get("resultType") == "complete") is (revision == VERSION)
    assert "ttlMs" not in result


@pytest.mark.requirement("CP-02")
async def test_cp_02_other_arguments_are_available_since_2025_06_18(
    client: EndpointClient, revision: str
) -> None:
    """They come in `context.arguments`, which the oldest revision does not have."""
    response = await complete(client, revision, PROMPT, context={"arguments": {"tone": "warm"}})
    expected = "" if revision == "2025-03-26" else "warm"

    assert response.json["result"]["completion"]["values"][0] == f"acme-q-{expected}-0"


@pytest.mark.requirement("CP-03")
async def test_cp_03_at_most_a_hundred_values_are_returned(
    client: EndpointClient, revision: str
) -> None:
    """The answer says how many values there are."""
    completion = (await complete(client, revision, PROMPT)).json["result"]["completion"]

    assert len(completion["values"]) == 100
    assert (completion["total"], completion["hasMore"]) == (150, True)


WRONG_PARAMS = [
    ({"ref": {"type": "ref/prompt", "name": "nobody"}}, "Unknown reference"),
    ({"ref": {"type": "ref/prompt", "name": "hidden_prompt"}}, "Unknown reference"),
    ({"ref": {"type": "ref/prompt", "name": "report://{quarter}"}}, "Unknown reference"),
    ({"ref": {"type": "ref/resource", "uri": "summarise"}}, "Unknown reference"),
    ({"ref": {"type": "ref/resource", "uri": "library://rules"}}, "Unknown reference"),
    ({"ref": {"type": "ref/tool", "name": "stamp"}}, "Invalid params"),
    ({"ref": None}, "Invalid params"),
    ({"ref": PROMPT, "argument": {"name": "nothing", "value": ""}}, "not an argument"),
    ({"ref": PROMPT, "argument": {"value": ""}}, "Invalid params"),
    ({"ref": PROMPT, "argument": {"name": "quarter", "value": 1}}, "Invalid params"),
    ({"ref": PROMPT, "argument": {"name": "quarter", "value": "x" * 5000}}, "too long"),
]


@pytest.mark.requirement("CP-04", "CP-05")
@each(("params", "expected_text"), WRONG_PARAMS)
async def test_cp_04_cp_05_an_invalid_request_gets_an_error_that_names_the_problem(
    client: EndpointClient, revision: str, params: dict[str, Any], expected_text: str
) -> None:
    """A hidden prompt or resource gets the error of a missing one."""
    argument = {"name": "quarter", "value": ""}
    response = await ask(
        client, revision, "completion/complete", **{"argument": argument, **params}
    )

    assert response.error == (400 if revision == VERSION else 200, -32602)
    assert expected_text in response.json["error"]["message"]


@pytest.mark.requirement("CP-04")
@pytest.mark.parametrize("missing", ["ref", "argument"])
async def test_cp_04_a_missing_parameter_is_named(
    client: EndpointClient, revision: str, missing: str
) -> None:
    """Both parameters are needed."""
    params = {"ref": PROMPT, "argument": {"name": "quarter", "value": ""}}
    del params[missing]
    response = await ask(client, revision, "completion/complete", **params)

    assert response.json["error"]["message"] == f"params.{missing} is required"


async def test_an_argument_without_suggestions_gets_an_empty_list(
    client: EndpointClient, revision: str
) -> None:
    """An empty list is not an error of the client."""
    response = await complete(client, revision, PROMPT, name="tone")

    assert response.json["result"]["completion"]["values"] == []


@pytest.mark.requirement("CP-05")
async def test_cp_05_suggestions_are_the_callers_own(client: EndpointClient, revision: str) -> None:
    """Another tenant's names must not come up while one types."""
    acme = (await complete(client, revision, PROMPT)).json["result"]["completion"]["values"]
    client.caller = a_caller(tenant_id="globex")
    globex = (await complete(client, revision, PROMPT)).json["result"]["completion"]["values"]

    assert all(value.startswith("acme-") for value in acme)
    assert all(value.startswith("globex-") for value in globex)


@pytest.mark.requirement("CP-05")
async def test_cp_05_completion_needs_the_scopes_of_its_prompt(revision: str) -> None:
    """Without them the answer is 403, as for the prompt itself."""
    guarded = Pack("guarded")

    @guarded.prompt(scopes={"vault:read"})
    async def vault(ctx: CallContext, name: str) -> str:
        """Ask for something."""
        return name

    @vault.complete("name")
    async def names(ctx: CallContext, value: str, given: Any) -> list[str]:
        """Give away names."""
        raise AssertionError("ran")

    client = EndpointClient(guarded.offers)
    ref = {"type": "ref/prompt", "name": "vault"}
    response = await complete(client, revision, ref, name="name")

    assert response.status == 403
    assert 'scope="vault:read"' in response.headers["www-authenticate"]


async def test_a_completion_that_returns_no_list_is_an_internal_error(revision: str) -> None:
    """A single text would otherwise be taken for a list of its letters."""
    careless = Pack("careless")

    @careless.prompt()
    async def ask_for(ctx: CallContext, name: str) -> str:
        """Ask for something."""
        return name

    @ask_for.complete("name")
    def names(ctx: CallContext, value: str, given: Any) -> Any:
        """Answer something else than a list."""
        return "abc"

    ref = {"type": "ref/prompt", "name": "ask_for"}
    response = await complete(EndpointClient(careless.offers), revision, ref, name="name")

    assert response.error == (200, -32603)
