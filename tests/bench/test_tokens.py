"""The tokens of a run and the issuer that publishes their key."""

import json
from http.client import HTTPConnection
from pathlib import Path

import pytest
from joserfc import jwk, jwt

from bench.issuer import running
from bench.tokens import BATCH, Mint, TokenPools, garbage
from bench.workload import WORKLOADS, by_name


@pytest.fixture(scope="module")
def mint() -> Mint:
    return Mint.create("http://127.0.0.1:1", "http://127.0.0.1:2/mcp")


def test_a_token_is_an_rfc_9068_access_token_of_the_published_key(mint: Mint) -> None:
    """A token that a strict verifier refuses would measure refusals."""
    keys = jwk.KeySet.import_key_set(mint.key_set)
    token = jwt.decode(mint.token(12), keys, algorithms=["RS256"])

    assert token.header["typ"] == "at+jwt"
    assert token.claims["aud"] == mint.resource
    assert {"iss", "sub", "client_id", "iat", "exp", "jti"} <= set(token.claims)
    assert token.claims["org_id"] == "tenant-12"
    assert "d" not in keys.keys[0].as_dict()


def test_the_tokens_of_a_pool_are_unique_across_processes() -> None:
    """A repeated token would be cached; the published key verifies each token."""
    mint = Mint.create("http://127.0.0.1:1", "http://127.0.0.1:2/mcp", fast=True)
    pool = mint.pool(BATCH + 20, first=7)
    keys = jwk.KeySet.import_key_set(mint.key_set)

    assert len(set(pool)) == BATCH + 20
    assert jwt.decode(pool[-1], keys, algorithms=["ES256"]).claims["sub"] == f"caller-{BATCH + 26}"


def test_the_probe_takes_the_fresh_token_that_wrk_takes_last(tmp_path: Path) -> None:
    """The check before an interval must not use up the first token of the interval."""
    path = tmp_path / "fresh"
    path.write_text("first\nlast\n", encoding="ascii")
    token_pools = TokenPools({"fresh": path, "one": path})

    assert (token_pools.take("fresh"), token_pools.take("one"), token_pools.take("none")) == (
        "last",
        "first",
        None,
    )


def test_garbage_tokens_are_unique_and_fit_a_header() -> None:
    """A repeated token would measure a cache of refusals."""
    strings = garbage(500)

    assert len(set(strings)) == 500
    assert all(text.isascii() and " " not in text for text in strings)


def test_the_issuer_publishes_metadata_and_keys(mint: Mint) -> None:
    """Both metadata locations name the issuer, and the key set has its key."""
    with running() as issuer:
        issuer.key_set = mint.key_set
        connection = HTTPConnection("127.0.0.1", int(issuer.url.rpartition(":")[2]), timeout=5)
        documents = {}
        for path in ("/.well-known/oauth-authorization-server", "/jwks", "/elsewhere"):
            connection.request("GET", path)
            response = connection.getresponse()
            documents[path] = (response.status, json.loads(response.read()))
        connection.close()

    status, metadata = documents["/.well-known/oauth-authorization-server"]
    assert (status, metadata["issuer"]) == (200, issuer.url)
    assert documents["/jwks"] == (200, mint.key_set)
    assert documents["/elsewhere"][0] == 404


def test_workloads_are_selected_by_name() -> None:
    """A typing error in `--only` is answered with the known names."""
    assert by_name(["list", "warm"]) == (WORKLOADS[0], WORKLOADS[-1])
    with pytest.raises(ValueError, match="unknown workload 'wram'; there are warm,"):
        by_name(["wram"])


def test_a_wrong_answer_is_detected_before_the_measurement() -> None:
    """A server with fast wrong answers must not win."""
    warm, listing = WORKLOADS[0], WORKLOADS[-1]

    assert warm.misread(200, warm.body) is None
    assert warm.misread(401, b"") is not None
    assert warm.misread(200, b'{"error":{}}') is not None
    assert listing.misread(200, b'{"inputSchema":{}}' * 99) is not None
