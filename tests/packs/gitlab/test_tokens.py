"""A token for GitLab goes where it is meant for, and nowhere else."""

import base64
from typing import Any

import pytest

from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.packs.gitlab.conftest import OAUTH, PERSONAL, ForgeServers, ask

pytestmark = pytest.mark.requirement("X4")


def test_a_token_of_oauth_is_sent_as_one(agent: PackCaller, forge_servers: ForgeServers) -> None:
    """GitLab takes those as a bearer only."""
    value = ask(agent, forge_servers, "/projects/1", token=OAUTH).value

    assert value["status_code"] == 200
    assert "private-token" not in forge_servers.gitlab.asked[-1].headers


def test_a_token_stays_with_the_server_it_is_for(
    agent: PackCaller, forge_servers: ForgeServers
) -> None:
    """A redirect elsewhere (artifacts, uploads) is followed without it."""
    value = ask(agent, forge_servers, "/artifact", headers={"X-Mine": "x"}).value

    assert value["status_code"] == 200
    assert not {"private-token", "authorization", "x-mine"} & set(value["json"]["headers"])
    assert PERSONAL not in value["json"]["seen"]


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_literal_tokens_can_be_refused(
    forge_servers: ForgeServers, protocol: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Then only what is kept is used, and what was given is not repeated."""
    with open_server(
        tmp_path_factory.mktemp("strict"),
        ["gitlab"],
        network={"allow_hosts": [forge_servers.gitlab.place]},
        packs={"gitlab": {"literals": False}},
    ) as strict:
        agent = strict.agent_with(protocol, forge_servers.gitlab.place, GITLAB_TOKEN=PERSONAL)
        refused = ask(agent, forge_servers, "/projects/1", token=OAUTH)
        taken = ask(agent, forge_servers, "/projects/1")

    assert "`token` takes no literal value here; name a secret" in str(refused.failure)
    assert OAUTH not in str(refused.failure)
    assert taken.value["status_code"] == 200


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(
    "given", ["secret:GITLAB_TOKEN", PERSONAL, OAUTH], ids=["kept", "glpat", "oauth"]
)
def test_a_token_never_comes_back(
    agent: PackCaller, forge_servers: ForgeServers, given: str
) -> None:
    """The other side may return it in a value, in a header, encoded, or in the bytes."""
    reply = ask(agent, forge_servers, "/mirror", token=given, include_base64=True)
    token = PERSONAL if given.startswith("secret:") else given

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
    reply = ask(agent, forge_servers, wrong.get("path", "/projects"), token=OAUTH, **wrong)
    elsewhere = ask(agent, forge_servers, f"/a/../{OAUTH}", token=OAUTH)

    assert OAUTH not in str(reply.failure)
    assert OAUTH not in str(elsewhere.failure)


def test_a_token_is_in_no_log(
    server: PackServer, agent: PackCaller, forge_servers: ForgeServers
) -> None:
    """Neither a literal token nor a stored one is logged."""
    ask(agent, forge_servers, "/projects/1", token="glpat-literally-this-one")
    ask(agent, forge_servers, "/projects/1")

    assert "glpat-" not in server.log()
