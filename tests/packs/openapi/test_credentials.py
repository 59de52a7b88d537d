"""What an API was loaded with proves who calls, and is never seen again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.packs.openapi.test_tools import INLINE_DOCUMENT, Petstore, load, petstore, server

__all__ = ["petstore", "server"]  # fixtures

pytestmark = pytest.mark.requirement("X7")

TOKEN = "s3cr3t-of-the-petstore"


def call(agent: PackCaller, path: str = "/list", **more: Any) -> Any:
    return agent.call("openapi_call", name="echo", path=path, method="GET", **more)


def sent_header(petstore: Petstore, name: str) -> str | None:
    """Return the header of that name in the petstore's last request."""
    value: str | None = petstore.asked[-1]["headers"].get(name)
    return value


def test_a_literal_is_sent_and_never_shown(agent: PackCaller, petstore: Petstore) -> None:
    """No answer shows it, not even the echo of a request, and later calls still send it."""
    loaded = load(agent, petstore, "echo", auth_header=f"Bearer {TOKEN}")
    answer = call(agent).value

    assert sent_header(petstore, "authorization") == f"Bearer {TOKEN}"
    assert TOKEN not in json.dumps([loaded, answer])
    assert answer["body"]["headers"]["authorization"] == "Bearer [REDACTED:AUTH_HEADER]"


def test_a_literal_credential_is_not_stored_in_plain_text(
    agent: PackCaller, petstore: Petstore, server: PackServer
) -> None:
    """The stored API only refers to the sealed credential."""
    load(agent, petstore, "echo", auth_header=f"Bearer {TOKEN}")

    content = repr(vars(server.services.records))

    assert TOKEN not in content


@pytest.mark.parametrize("text", ["secret:PETS", "Token secret:PETS"])
def test_a_secret_reference_is_resolved_at_each_call(
    agent: PackCaller, petstore: Petstore, server: PackServer, text: str
) -> None:
    """Any header may use it; each call sends its current value."""
    server.put_secrets(agent.tenant, petstore.place, PETS=TOKEN)
    load(agent, petstore, "echo", auth_header=text, auth_header_name="X-Key")
    call(agent)
    first = sent_header(petstore, "x-key")
    server.put_secrets(agent.tenant, petstore.place, PETS="another-secret-value")
    answer = call(agent).value

    assert first == text.replace("secret:PETS", TOKEN)
    assert sent_header(petstore, "x-key") == text.replace("secret:PETS", "another-secret-value")
    assert answer["body"]["headers"]["x-key"] == text.replace("secret:PETS", "[REDACTED:PETS]")


def test_a_missing_secret_is_reported(agent: PackCaller, petstore: Petstore) -> None:
    """The failure comes before anything is loaded."""
    failed = agent.call(
        "openapi_load",
        name="echo",
        spec_url=f"{petstore.url}/echo.json",
        auth_header="secret:NO",
    )

    assert failed.kind in (None, "not_found")
    assert "NO" in str(failed.failure)
    assert agent.call("openapi_list_apis").value == {"apis": []}


def test_a_credential_is_sent_to_its_own_origin_only(agent: PackCaller, petstore: Petstore) -> None:
    """Other hosts of operations, redirects and the description do not get it."""
    load(
        agent,
        petstore,
        "echo",
        auth_header=TOKEN,
        base_url_override=f"{petstore.url}/echo",
    )
    call(agent, "/moved")
    own = sent_header(petstore, "authorization")
    # The same server by another name is another origin.
    other = petstore.url.replace("127.0.0.1", "localhost")
    document = {
        "openapi": "3.0.0",
        "info": {"title": "", "version": ""},
        "servers": [{"url": f"{other}/echo"}],
        "paths": {"/list": {"get": {"servers": [{"url": f"{petstore.url}/echo"}]}}},
    }
    agent.call("openapi_load", name="echo", spec_content=json.dumps(document), auth_header=TOKEN)
    call(agent)

    assert own == TOKEN
    assert sent_header(petstore, "authorization") is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"headers": {"authorization": "mine"}}, "carries the API's credential"),
        ({"headers": {"AUTHORIZATION": "mine"}}, "carries the API's credential"),
    ],
)
def test_a_caller_cannot_replace_a_configured_header(
    agent: PackCaller, petstore: Petstore, arguments: dict[str, Any], says: str
) -> None:
    """With two headers of one name the server would choose one."""
    load(agent, petstore, "echo", auth_header=f"Bearer {TOKEN}")

    assert says in str(call(agent, **arguments).failure)


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "tok€n-of-nobody", "x" * 9000])
def test_a_credential_that_no_header_can_hold_is_refused(
    agent: PackCaller, petstore: Petstore, value: str
) -> None:
    """The error does not repeat it."""
    url = f"{petstore.url}/echo.json"
    failed = agent.call("openapi_load", name="echo", spec_url=url, auth_header=value)

    assert "which a header cannot hold" in str(failed.failure)
    assert value not in str(failed.failure)


def test_literals_are_refused_unless_the_operator_allows_them(
    petstore: Petstore, tmp_path: Path
) -> None:
    """By default a credential must be a reference to a secret."""
    packs = {"openapi": {"apis_per_tenant": 1}}
    network = {"allow_hosts": [petstore.place]}
    with open_server(tmp_path, ["openapi"], packs=packs, network=network) as server:
        agent = server.agent("rest")
        failed = agent.call(
            "openapi_load",
            name="a",
            spec_url=f"{petstore.url}/echo.json",
            auth_header="Bearer abc",
        )
        load(agent, petstore, "echo")
        load(agent, petstore, "echo")
        full = agent.call("openapi_load", name="b", spec_url=f"{petstore.url}/echo.json")

    assert (failed.kind, "secret:NAME" in str(failed.failure)) == ("validation", True)
    assert full.kind == "denied"
    assert "Replace one of: echo" in str(full.failure)


def test_tenants_do_not_share_credentials(server: PackServer, petstore: Petstore) -> None:
    """Two tenants load the same API."""
    first, other = server.agent("rest"), server.agent("rest")
    load(first, petstore, "echo", auth_header=TOKEN)
    load(other, petstore, "echo")
    call(other)

    assert sent_header(petstore, "authorization") is None


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_tenants_with_the_same_api_names_are_isolated(
    server: PackServer, petstore: Petstore, protocol: Any
) -> None:
    """They share no lists and no descriptions, and a load of one leaves the other unchanged."""
    first, other = server.agent(protocol), server.agent(protocol)
    load(first, petstore, "echo")

    assert other.call("openapi_list_apis").value == {"apis": []}
    assert other.call("openapi_list_endpoints", name="echo").failure is not None

    other.call("openapi_load", name="echo", spec_content=INLINE_DOCUMENT)

    assert first.call("openapi_list_endpoints", name="echo").value["total"] == 13
    assert other.call("openapi_list_endpoints", name="echo").value["total"] == 1
    assert other.call("openapi_call", name="echo", path="/list", method="GET").failure is not None
