"""What an API was loaded with proves who calls, and is never seen again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.packs.office import Office, Worker, open_office
from tests.packs.openapi.conftest import Desk, Shop
from tests.packs.openapi.kit import load

pytestmark = pytest.mark.requirement("X7")

TOKEN = "s3cr3t-of-the-petstore"


def call(worker: Worker, path: str = "/list", **more: Any) -> Any:
    return worker.call("openapi_call", name="echo", path=path, method="GET", **more)


def heard(shop: Shop, name: str) -> str | None:
    """What the petstore got as that header with its last request."""
    value: str | None = shop.store.asked[-1]["headers"].get(name)
    return value


def test_a_literal_is_sent_and_never_shown(worker: Worker, shop: Shop) -> None:
    """Neither when the API is loaded, nor when it says what it was asked; it stays usable."""
    told = load(worker, shop, "echo", auth_header=f"Bearer {TOKEN}")
    answer = call(worker).value

    assert heard(shop, "authorization") == f"Bearer {TOKEN}"
    assert TOKEN not in json.dumps([told, answer])
    assert answer["body"]["headers"]["authorization"].startswith("Bearer [REDACTED")


def test_nothing_of_a_literal_is_kept_in_the_clear(worker: Worker, shop: Shop, desk: Desk) -> None:
    """What is kept of the API names what is sealed."""
    load(worker, shop, "echo", auth_header=f"Bearer {TOKEN}")

    kept = repr(vars(desk.services.records))

    assert TOKEN not in kept


@pytest.mark.parametrize("text", ["secret:PETS", "Token secret:PETS"])
def test_a_secret_is_meant_by_its_name(worker: Worker, shop: Shop, desk: Desk, text: str) -> None:
    """Under another header too; what it is now counts, not what it was."""
    desk.set(worker.tenant, "PETS", TOKEN, shop.host)
    load(worker, shop, "echo", auth_header=text, auth_header_name="X-Key")
    call(worker)
    first = heard(shop, "x-key")
    desk.set(worker.tenant, "PETS", "another-secret-value", shop.host)
    answer = call(worker).value

    assert first == text.replace("secret:PETS", TOKEN)
    assert heard(shop, "x-key") == text.replace("secret:PETS", "another-secret-value")
    assert answer["body"]["headers"]["x-key"] == text.replace("secret:PETS", "[REDACTED:PETS]")


def test_a_secret_that_is_not_there_is_said(worker: Worker, shop: Shop) -> None:
    """Before anything is loaded."""
    failed = worker.call(
        "openapi_load", name="echo", spec_url=f"{shop.url}/echo.json", auth_header="secret:NO"
    )

    assert failed.kind in (None, "not_found")
    assert "NO" in str(failed.failure)
    assert worker.call("openapi_list_apis").value == {"apis": []}


def test_a_credential_stays_with_its_own_origin(worker: Worker, shop: Shop) -> None:
    """Not sent to where an operation or a redirect leads, nor to fetch the description."""
    load(worker, shop, "echo", auth_header=TOKEN, base_url_override=f"{shop.url}/echo")
    call(worker, "/moved")
    own = heard(shop, "authorization")
    # The same server by another name is another origin.
    other = shop.url.replace("127.0.0.1", "localhost")
    document = {
        "openapi": "3.0.0",
        "info": {"title": "", "version": ""},
        "servers": [{"url": f"{other}/echo"}],
        "paths": {"/list": {"get": {"servers": [{"url": f"{shop.url}/echo"}]}}},
    }
    worker.call("openapi_load", name="echo", spec_content=json.dumps(document), auth_header=TOKEN)
    call(worker)

    assert own == TOKEN
    assert heard(shop, "authorization") is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"headers": {"authorization": "mine"}}, "set by what the API was loaded with"),
        ({"headers": {"AUTHORIZATION": "mine"}}, "set by what the API was loaded with"),
    ],
)
def test_nobody_puts_another_in_its_place(
    worker: Worker, shop: Shop, given: dict[str, Any], says: str
) -> None:
    """Two headers of one name would let the server choose."""
    load(worker, shop, "echo", auth_header=f"Bearer {TOKEN}")

    assert says in str(call(worker, **given).failure)


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "tok€n-of-nobody", "x" * 9000])
def test_what_no_header_can_hold_is_refused(worker: Worker, shop: Shop, value: str) -> None:
    """Without repeating it."""
    url = f"{shop.url}/echo.json"
    failed = worker.call("openapi_load", name="echo", spec_url=url, auth_header=value)

    assert "no header can hold" in str(failed.failure)
    assert value not in str(failed.failure)


def test_literals_can_be_turned_off(shop: Shop, tmp_path: Path) -> None:
    """Then only references are taken."""
    packs = {"openapi": {"literals": False, "apis_per_tenant": 1}}
    network = {"allow_hosts": [shop.host]}
    with open_office(tmp_path, ["openapi"], packs=packs, network=network) as office:
        worker = office.worker("rest")
        failed = worker.call(
            "openapi_load", name="a", spec_url=f"{shop.url}/echo.json", auth_header="Bearer abc"
        )
        load(worker, shop, "echo")
        load(worker, shop, "echo")
        full = worker.call("openapi_load", name="b", spec_url=f"{shop.url}/echo.json")

    assert (failed.kind, "secret:NAME" in str(failed.failure)) == ("validation", True)
    assert full.kind == "denied"
    assert "Replace one: echo" in str(full.failure)


def test_tenants_do_not_share_credentials(office: Office, shop: Shop) -> None:
    """The same API, loaded by two tenants."""
    one, other = office.worker("rest"), office.worker("rest")
    load(one, shop, "echo", auth_header=TOKEN)
    load(other, shop, "echo")
    call(other)

    assert heard(shop, "authorization") is None
