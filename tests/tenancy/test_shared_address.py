"""One address that honest callers share with a sender of bad tokens."""

import time
from collections.abc import Iterator

import pytest

from gatepost_authz.verdict_cache import MIN_ACCEPTED, AcceptedTokens
from tests.support.client import RawAnswer
from tests.support.issuers import Idp, jwk, rsa_key, signer
from tests.support.server import Server, issuer_settings, running_server

pytestmark = pytest.mark.requirement("W23")

RESOURCE = "https://mcp.example.com/mcp"
ONE_FAILURE = {"failures_per_second": 0.001, "requests_per_second": 0, "cached_tokens": 1}
"""One failure, and the next in a quarter of an hour."""


@pytest.fixture
def local_server(idp: Idp) -> Iterator[Server]:
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"}, leeway_s=0)], limits=ONE_FAILURE
    ) as home:
        yield home


def status(server: Server, token: str) -> int:
    """Return the status of a call with that token, on a connection of its own."""
    answer: RawAnswer = server.client.call(token, "whoami")
    assert answer.status != 429 or answer.field("retry-after")
    return answer.status


def forged(server: Server, **claims: object) -> str:
    """Return a token that looks like the issuer's, signed with an unknown key."""
    return server.tokens().token(sign=signer(rsa_key("stranger"), "RS256"), **claims)


def test_an_accepted_token_passes_despite_forged_ones_from_its_address(
    local_server: Server,
) -> None:
    """The limit for forged tokens of one address does not affect it."""
    known_token, unseen = local_server.token(sub="known"), local_server.token(sub="unseen")
    assert status(local_server, known_token) == 200
    assert [status(local_server, forged(local_server)) for _ in range(3)] == [401, 429, 429]

    assert [status(local_server, known_token) for _ in range(20)] == [200] * 20
    assert status(local_server, unseen) == 429


def test_an_accepted_token_passes_after_its_cached_verdict_expired(local_server: Server) -> None:
    """A verdict lasts a minute at most; the memory of accepted tokens is longer."""
    known_token = local_server.token()
    assert status(local_server, known_token) == 200
    assert status(local_server, local_server.token()) == 200
    assert len(local_server.services.verdicts) == 1
    assert [status(local_server, forged(local_server)) for _ in range(2)] == [401, 429]

    assert status(local_server, known_token) == 200


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_token_that_resembles_a_good_one_counts_as_forged(
    local_server: Server, position: int
) -> None:
    """Only the whole token is compared."""
    known_token = local_server.token()
    assert status(local_server, known_token) == 200
    other = local_server.token(sub="other").split(".")
    parts = known_token.split(".")
    parts[position] = (
        other[position] if position else local_server.tokens().token(header={"a": 1}).split(".")[0]
    )
    assert [status(local_server, ".".join(parts)) for _ in range(3)] == [401, 429, 429]


def test_expired_and_underscoped_genuine_tokens_do_not_count_as_forged(
    local_server: Server,
) -> None:
    """Clients send an expired token about once an hour; a forged expired token still counts."""
    assert status(local_server, local_server.token(sub="first")) == 200, (
        "the issuer's keys are at hand"
    )
    past = int(time.time()) - 100
    expired = [local_server.token(sub=f"{n}", iat=past - 100, exp=past) for n in range(5)]
    assert [status(local_server, token) for token in [*expired, *expired]] == [401] * 10
    assert status(local_server, local_server.token(sub="new")) == 200

    made_up = [forged(local_server, iat=past - 100, exp=past) for _ in range(2)]
    assert [status(local_server, token) for token in made_up] == [401, 429]
    assert status(local_server, expired[0]) == 401, "its client has to hear why"


def test_a_refused_token_is_removed_from_the_accepted_ones(local_server: Server) -> None:
    """Otherwise each repetition would cost a signature check."""
    known_token = local_server.token()
    assert status(local_server, known_token) == 200
    services = local_server.services
    services.verdicts.forget(lambda caller: True)
    services.keys.retain([])
    local_server.idp.issuer("main", [jwk(rsa_key("stranger"))])
    assert [status(local_server, known_token) for _ in range(3)] == [401, 429, 429]


def test_the_number_of_accepted_tokens_is_bounded() -> None:
    """The token that was accepted longest ago is dropped first."""
    seen = AcceptedTokens(verdicts=0)
    for number in (*range(MIN_ACCEPTED), 0, MIN_ACCEPTED):
        seen.add(b"%d" % number, RESOURCE)

    numbers = [number for number in range(4) if seen.was_accepted(b"%d" % number, RESOURCE)]
    assert (len(seen), numbers) == (MIN_ACCEPTED, [0, 2, 3])
