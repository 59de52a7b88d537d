"""Limits: how often a caller may call, whichever way its calls come in."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.policy.limits.rules import bucket_of
from gatepost.storage.rate_limits import Buckets
from tests.support.client import failure, result
from tests.support.endpoint import a_caller
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

BURST_SIZE = 5


@pytest.fixture
def server(idp: Idp) -> Iterator[Server]:
    """Run a server that takes a call a minute and five at once."""
    limits = {"requests_per_second": 1 / 60, "burst": BURST_SIZE}
    with running_server(
        idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}, limits=limits
    ) as server:
        yield server


@pytest.mark.requirement("SEC-07", "TL-18", "P12")
def test_beyond_the_burst_a_caller_gets_retry_after(server: Server) -> None:
    """-32000 with HTTP 200: a status of 429 would read as a login failure to some clients."""
    token = server.token(org_id="acme")
    for _ in range(BURST_SIZE):
        result(server.client.call(token))

    with server.nothing_runs():
        answer = server.client.call(token)

    assert answer.status == 200
    assert failure(answer)["code"] == -32000
    assert failure(answer)["message"] == "Rate limit exceeded. Please try again later."
    assert 0 < int(answer.field("retry-after") or 0) <= 60


@pytest.mark.requirement("SEC-07")
def test_one_callers_calls_do_not_use_up_anothers(server: Server) -> None:
    """This covers a colleague and a caller of the same name in another tenant."""
    for _ in range(BURST_SIZE + 1):
        server.client.call(server.token(org_id="acme", sub="alice"))

    for claims in ({"org_id": "acme", "sub": "bob"}, {"org_id": "globex", "sub": "alice"}):
        result(server.client.call(server.token(**claims)))


@pytest.mark.requirement("SEC-07")
def test_a_second_client_or_token_shares_the_callers_limit(server: Server) -> None:
    """Calls count by caller, in either era."""
    token = server.token(org_id="acme", client_id="another")
    session = server.client.open(token)
    for number in range(BURST_SIZE - 1):
        result(server.client.call(server.token(org_id="acme", client_id=f"client-{number}")))

    with server.nothing_runs():
        assert failure(server.client.call(token))["code"] == -32000
        assert failure(server.client.within(token, session))["code"] == -32000


def test_callers_that_look_alike_have_buckets_of_their_own() -> None:
    """No choice of issuer and subject makes two principals one."""
    first = a_caller(issuer="https://a.example.com x", subject="y")
    other = a_caller(issuer="https://a.example.com", subject="x y")
    machine = a_caller(subject_kind="client")

    assert len({bucket_of(caller) for caller in (first, other, machine, a_caller())}) == 4


steps = st.lists(st.floats(0, 3, allow_nan=False), max_size=60)


@given(steps, st.sampled_from([0.5, 1.0, 10.0]), st.sampled_from([1, 5, 20]))
def test_a_bucket_agrees_with_a_textbook_token_bucket(
    pauses: list[float], rate: float, burst: int
) -> None:
    """A wait is exactly as long as the model needs."""
    buckets = Buckets()
    level, now = float(burst), 1_000.0
    for pause in pauses:
        now += pause
        level = min(burst, level + pause * rate)
        wait = buckets.spend("caller", now, rate=rate, burst=burst)
        if level >= 1 + 1e-6:
            assert wait == 0
        if level <= 1 - 1e-6:
            assert wait == pytest.approx((1 - level) / rate, abs=1e-6)
        if wait == 0:
            level -= 1


def test_the_number_of_buckets_is_bounded() -> None:
    """Full buckets go first; if more callers are busy than fit, no caller is refused for it."""
    buckets = Buckets(max_buckets=10)
    for number in range(10):
        buckets.spend(f"quiet-{number}", 0.0, rate=1, burst=2)
    for number in range(10):
        buckets.spend(f"busy-{number}", 100.0, rate=1, burst=2)
    assert len(buckets) == 10

    assert buckets.spend("one-more", 100.0, rate=1, burst=2) == 0
    assert len(buckets) == 10
