"""Arguments are looked at after the limits, so that wrong ones cost their caller a call."""

from collections.abc import Iterator

import pytest

from tests.support.client import Fields, failure, result
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

BURST_SIZE = 3


@pytest.fixture
def server(idp: Idp) -> Iterator[Server]:
    """Run a server where a caller may call three times."""
    limits = {"requests_per_second": 1 / 600, "burst": BURST_SIZE}
    with running_server(
        idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}, limits=limits
    ) as server:
        yield server


@pytest.mark.requirement("P12")
@pytest.mark.parametrize(
    ("fields", "most"),
    [
        pytest.param((), BURST_SIZE, id="plain"),
        pytest.param((("Idempotency-Key", "k"),), 2 * BURST_SIZE, id="with an idempotency key"),
    ],
)
def test_a_call_with_invalid_arguments_spends_from_the_limits(
    server: Server, fields: Fields, most: int
) -> None:
    """Beyond the limit, the call is refused before its arguments are validated."""
    token = server.token(org_id="acme")
    for _ in range(most):
        answer = result(server.client.call(token, "echo", {"txt": 1}, fields=fields))
        assert answer["isError"], answer
    refused = failure(server.client.call(token, "echo", {"txt": 1}, fields=fields))

    assert (refused["code"], refused["data"]["limit"]) == (-32000, "caller")


@pytest.mark.requirement("P12")
def test_wrong_arguments_of_one_caller_cost_no_other(server: Server) -> None:
    """The bucket is the caller's own."""
    for _ in range(BURST_SIZE + 1):
        server.client.call(server.token(org_id="acme"), "echo", {"txt": 1})

    result(server.client.call(server.token(org_id="acme", sub="bob"), "whoami"))
