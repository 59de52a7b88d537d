"""
Whole journeys at every real provider: the same tests for all, and each one's limits as data.

Every token is one that the provider issued; nothing here signs or alters any.
"""

from pathlib import Path

import pytest

from tests.providers.conftest import ENVIRONMENT, PROVIDERS
from tests.providers.provider import MACHINE, NEIGHBOUR, OTHER_MACHINE, Pairing, configuration
from tests.support import commands
from tests.support.client import RawAnswer, ResourceClient
from tests.support.commands import toml_file
from tests.support.measuring import eventually
from tests.support.processes import free_port

pytestmark = pytest.mark.slow
LASTS_S, OVER_WITHIN_S = 2, 15


def journey(name: str) -> pytest.MarkDecorator:
    """Mark a test as a journey that some providers cannot go; their `limits` say why."""
    able = [
        provider_name
        for provider_name, provider in sorted(PROVIDERS.items())
        if name not in provider.limits
    ]
    assert 0 < len(able) < len(PROVIDERS), f"no limit is about {name!r}"
    return pytest.mark.parametrize("pair", able, indirect=True)


def refusal_reason(pair: Pairing, token: str) -> str:
    """Return the reason that Gatepost counts for refusing that token; it must be refused."""
    before = pair.refusals()
    answer = pair.client.call(token, "whoami")
    assert answer.status == 401, answer
    challenge = answer.field("www-authenticate")
    assert challenge is not None
    assert 'error="invalid_token"' in challenge
    # The page of the metrics is made at most once a second.
    eventually(lambda: pair.refusals() - before, within=5)
    [reason] = pair.refusals() - before
    assert token not in pair.gatepost.output
    return reason


def test_each_person_is_one_caller(pair: Pairing) -> None:
    """Two people of one client are two callers, and neither is taken for a machine."""
    callers = [pair.client.whoami(pair.provider.person_token(name)) for name in ("alice", "bob")]

    assert [caller["subject_kind"] for caller in callers] == ["user", "user"]
    assert len({caller["subject"] for caller in callers}) == 2
    for caller in callers:
        assert caller["issuer"] == pair.provider.issuer
        assert caller["resource"] == pair.provider.site.resource
        assert set(pair.provider.scopes) <= set(caller["scopes"])


def test_a_person_has_the_same_subject_at_every_sign_in(pair: Pairing) -> None:
    """Tasks and sessions belong to the subject."""
    first, second = (pair.client.whoami(pair.provider.person_token("alice")) for _ in range(2))

    assert first["subject"] == second["subject"]


def test_a_machine_is_a_caller_of_kind_client(pair: Pairing) -> None:
    """Client credentials make a caller of the kind client, whose id is the client's."""
    caller = pair.client.whoami(pair.provider.machine_token())

    assert (caller["subject_kind"], caller["subject"]) == ("client", MACHINE)
    assert caller["client_id"] == MACHINE
    assert caller["roles"] == []


@journey("audience")
def test_a_token_for_another_resource_is_refused(pair: Pairing) -> None:
    """Client, person and scopes are the same; only the `resource` differs."""
    other = pair.provider.site.neighbour

    assert refusal_reason(pair, pair.provider.machine_token(resource=other)) == "wrong_audience"
    reason = refusal_reason(pair, pair.provider.person_token("alice", resource=other))
    assert reason == "wrong_audience"


def test_a_token_of_another_client_is_refused(pair: Pairing) -> None:
    """A neighbour's person and machine, who name no resource, or get their own audience."""
    person = pair.provider.person_token("alice", NEIGHBOUR, resource="")
    machine = pair.provider.machine_token(OTHER_MACHINE, resource="")

    for token in (person, machine):
        assert refusal_reason(pair, token) in {
            "wrong_audience",
            "no_audience",
            "inactive",
            "unknown_kind",
        }


def test_id_and_refresh_tokens_are_refused(pair: Pairing) -> None:
    """Neither is an access token."""
    tokens = pair.provider.signed_in("alice")

    assert pair.client.call(tokens["access_token"], "whoami").status == 200
    for name in ("id_token", "refresh_token"):
        if name in tokens:
            refusal_reason(pair, tokens[name])


def test_an_expired_token_is_refused(pair: Pairing) -> None:
    """The same token was accepted before its expiry."""
    provider = pair.provider
    usual, provider.lasts_s = provider.lasts_s, LASTS_S
    provider.restart()
    person, machine = provider.person_token("alice"), provider.machine_token()
    provider.lasts_s = usual
    provider.restart()

    for token in (person, machine):
        eventually(lambda token=token: status(pair, token) == 401, within=OVER_WITHIN_S)
        assert refusal_reason(pair, token) in {
            "expired",
            "inactive",
            "unknown_key",
            "bad_signature",
        }


def status(pair: Pairing, token: str) -> int:
    """Return the status of a call with that token."""
    return pair.client.call(token, "whoami").status


@journey("revoked")
def test_a_revoked_token_is_refused(pair: Pairing) -> None:
    """Revoked at the provider before Gatepost has seen it; afterwards an answer is kept 30 s."""
    token = pair.provider.machine_token()
    pair.provider.revoke(token)

    assert refusal_reason(pair, token) == "inactive"


@journey("keys")
def test_new_keys_are_fetched_and_removed_keys_are_refused(pair: Pairing) -> None:
    """Gatepost finds them without a restart, and refuses tokens of a key that is gone."""
    before = pair.provider.person_token("alice")
    assert status(pair, before) == 200
    pair.provider.rotate()
    after = pair.provider.person_token("alice")

    eventually(lambda: status(pair, after) == 200, within=OVER_WITHIN_S)
    assert refusal_reason(pair, before) in {"unknown_key", "bad_signature", "inactive"}


@journey("tenants")
def test_every_person_is_in_their_own_tenant(pair: Pairing) -> None:
    """The organisation of people and machines comes from their tokens."""
    tokens = {
        "acme": pair.provider.person_token("alice"),
        "globex": pair.provider.person_token("bob"),
    }

    assert {name: pair.client.whoami(token)["tenant"] for name, token in tokens.items()} == {
        "acme": "acme",
        "globex": "globex",
    }
    assert pair.client.whoami(pair.provider.machine_token())["tenant"] == "globex"


@journey("roles")
def test_roles_come_from_the_provider(pair: Pairing) -> None:
    """Alice approves, Bob does not."""
    alice, bob = (pair.client.whoami(pair.provider.person_token(name)) for name in ("alice", "bob"))

    assert (alice["roles"], bob["roles"]) == (["approver"], [])


def test_an_untrusted_certificate_of_the_provider_is_logged(pair: Pairing, tmp_path: Path) -> None:
    """Without `network.ca_bundle` calls get 503, and the log names the issuer."""
    port = free_port()
    settings = configuration(pair.provider) | {
        "resource": f"http://127.0.0.1:{port}/mcp",
        "listen": {"port": port},
    }
    token = pair.provider.person_token("alice")
    with commands.serve(toml_file(settings), tmp_path, env=ENVIRONMENT) as gatepost:
        answer: RawAnswer = ResourceClient(gatepost.url).call(token, "whoami")
        assert answer.status == 503, answer
        eventually(lambda: pair.provider.issuer in gatepost.output, within=5)
