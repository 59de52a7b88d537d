"""A token for GitLab goes where it is meant for, and nowhere else."""

import base64
from typing import Any

import pytest

from tests.packs.forges.gitlab import OAUTH, PERSONAL
from tests.packs.forges.shop import Shop, ask
from tests.packs.keeping import Keeping
from tests.packs.office import Office, Worker, open_office

pytestmark = pytest.mark.requirement("X4")


def test_a_token_of_oauth_is_sent_as_one(worker: Worker, shop: Shop) -> None:
    """GitLab takes those as a bearer only."""
    value = ask(worker, shop, "/projects/1", token=OAUTH).value

    assert value["status_code"] == 200
    assert "private-token" not in shop.gitlab.asked[-1].headers


def test_a_token_stays_with_the_server_it_is_for(worker: Worker, shop: Shop) -> None:
    """A redirect elsewhere (artifacts, uploads) is followed without it."""
    value = ask(worker, shop, "/artifact", headers={"X-Mine": "x"}).value

    assert value["status_code"] == 200
    assert not {"private-token", "authorization", "x-mine"} & set(value["json"]["headers"])
    assert PERSONAL not in value["json"]["seen"]


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_literal_tokens_can_be_refused(
    shop: Shop, protocol: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Then only what is kept is used, and what was given is not repeated."""
    keeping = Keeping()
    with open_office(
        tmp_path_factory.mktemp("strict"),
        ["gitlab"],
        network={"allow_hosts": [shop.gitlab.place]},
        packs={"gitlab": {"literals": False}},
        prepare=keeping.begin,
    ) as strict:
        worker = keeping.worker(strict, protocol, shop.gitlab.place, GITLAB_TOKEN=PERSONAL)
        refused = ask(worker, shop, "/projects/1", token=OAUTH)
        taken = ask(worker, shop, "/projects/1")

    assert "`token` takes no literal value here; name a secret" in str(refused.failure)
    assert OAUTH not in str(refused.failure)
    assert taken.value["status_code"] == 200


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(
    "given", ["secret:GITLAB_TOKEN", PERSONAL, OAUTH], ids=["kept", "glpat", "oauth"]
)
def test_a_token_never_comes_back(worker: Worker, shop: Shop, given: str) -> None:
    """However the other side writes it: in a value, a header, encoded, or in the bytes."""
    heard = ask(worker, shop, "/mirror", token=given, include_base64=True)
    token = PERSONAL if given.startswith("secret:") else given

    assert heard.value["status_code"] == 200
    assert token not in heard.text
    for shift in range(3):  # where it may stand in groups of three bytes
        coded = base64.b64encode(b"\0" * shift + token.encode()).decode()[4:-4]
        assert coded not in heard.text
    assert "[REDACTED" in str(heard.value["json"]["seen"])
    assert "[REDACTED" in heard.value["headers"]["x-seen"]


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
def test_a_token_is_in_no_failure(worker: Worker, shop: Shop, wrong: dict[str, Any]) -> None:
    """Nor is a token that stands where none should."""
    heard = ask(worker, shop, wrong.get("path", "/projects"), token=OAUTH, **wrong)
    elsewhere = ask(worker, shop, f"/a/../{OAUTH}", token=OAUTH)

    assert OAUTH not in str(heard.failure)
    assert OAUTH not in str(elsewhere.failure)


def test_a_token_is_in_no_log(office: Office, worker: Worker, shop: Shop) -> None:
    """Neither one that was given nor one that is kept."""
    ask(worker, shop, "/projects/1", token="glpat-literally-this-one")
    ask(worker, shop, "/projects/1")

    assert "glpat-" not in office.site.inside.log()
