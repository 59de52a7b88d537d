"""Where an issuer's metadata is looked for, and whose document counts."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatepost_authz.discovery import (
    Discovery,
    DiscoveryLocation,
    IssuerMetadata,
    locations,
    metadata_of,
)
from gatepost_authz.fetch import Fetcher, FetchError
from tests.authz.conftest import WaitingClock
from tests.support.issuers import Answer, Idp, Receive, Scope, Send, answer

OAUTH, OPENID = "oauth-authorization-server", "openid-configuration"
METADATA_URLS = [
    (
        "https://a.example/t",
        (),
        [
            f"https://a.example/.well-known/{OAUTH}/t",
            f"https://a.example/.well-known/{OPENID}/t",
            f"https://a.example/t/.well-known/{OPENID}",
        ],
    ),
    (
        "https://h.example:8443/realms/R/",
        (),
        [
            f"https://h.example:8443/.well-known/{OAUTH}/realms/R",
            f"https://h.example:8443/.well-known/{OPENID}/realms/R",
            f"https://h.example:8443/realms/R/.well-known/{OPENID}",
        ],
    ),
    (
        "https://t.auth0.com/",
        (),
        [f"https://t.auth0.com/.well-known/{OAUTH}", f"https://t.auth0.com/.well-known/{OPENID}"],
    ),
    (
        "https://t.example",
        (),
        [f"https://t.example/.well-known/{OAUTH}", f"https://t.example/.well-known/{OPENID}"],
    ),
    (
        "https://o.okta.com/oauth2/x",
        (f"/.well-known/{OAUTH}",),
        [
            f"https://o.okta.com/.well-known/{OAUTH}/oauth2/x",
            f"https://o.okta.com/.well-known/{OPENID}/oauth2/x",
            f"https://o.okta.com/oauth2/x/.well-known/{OPENID}",
            f"https://o.okta.com/oauth2/x/.well-known/{OAUTH}",
        ],
    ),
]


@pytest.mark.parametrize(("issuer", "extra", "expected"), METADATA_URLS)
def test_metadata_locations_of_an_issuer_are_tried_in_order(
    issuer: str, extra: tuple[str, ...], expected: list[str]
) -> None:
    """RFC 8414 puts the well-known part in the middle, OpenID Connect at the end."""
    assert locations(issuer, extra) == expected


ISSUER = "https://id.example.com/realms/acme"


def metadata_read(document: dict[str, Any], **changes: Any) -> IssuerMetadata:
    return metadata_of(DiscoveryLocation(issuer=ISSUER, **changes), "https://location", document)


@pytest.mark.requirement("N10")
@pytest.mark.parametrize(
    "named",
    [
        None,
        17,
        [ISSUER],
        "",
        f"{ISSUER}/",
        ISSUER.upper(),
        "https://id.example.com/realms/globex",
        "https://id.example.com:443/realms/acme",
        "https://id.example.com/realms/{tenant}",
    ],
)
def test_a_document_of_another_issuer_is_refused(named: object) -> None:
    """Issuers are compared as strings, because one host may serve many issuers."""
    with pytest.raises(FetchError, match="issuer"):
        metadata_read({"issuer": named, "jwks_uri": f"{ISSUER}/keys"})


@pytest.mark.requirement("N10")
@pytest.mark.parametrize(
    "url",
    [
        "https://keys.evil.example/jwks",
        "https://id.example.com:8443/keys",
        "https://id.example.com.evil.example/keys",
        "https://id.example.com@evil.example/keys",
        "http://169.254.169.254/keys",
        "file:///etc/passwd",
        "//evil.example/keys",
        "https://[broken/keys",
    ],
)
def test_metadata_endpoints_on_another_host_are_refused(url: str) -> None:
    """An attacker who plants a metadata document must not add keys or get a secret."""
    metadata = metadata_read({"issuer": ISSUER, "jwks_uri": url, "introspection_endpoint": url})

    for name in ("jwks_uri", "introspection_endpoint"):
        with pytest.raises(FetchError, match="elsewhere"):
            metadata.endpoint(name)


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.com/logout",
        "javascript://id.example.com/%0aalert(1)",
        "https://id.example.com/déconnexion",
        "https://id.example.com/log out",
    ],
)
def test_metadata_urls_for_browsers_must_be_https(url: str) -> None:
    """The URL carries an ID token, and no address policy checks it."""
    metadata = metadata_read(
        {"issuer": ISSUER, "end_session_endpoint": url, "authorization_endpoint": url}
    )

    assert metadata.end_session_endpoint == ""
    with pytest.raises(FetchError, match="elsewhere"):
        metadata.endpoint("authorization_endpoint")


@pytest.mark.requirement("N10")
def test_keys_on_another_host_are_accepted_if_the_preset_names_it() -> None:
    """Entra publishes keys of version 1 issuers on the host of version 2."""
    url = "https://login.example.net/common/keys"
    document = {"issuer": ISSUER, "jwks_uri": url, "introspection_endpoint": url}

    metadata = metadata_read(document, key_hosts=("login.example.net",))

    assert metadata.endpoint("jwks_uri") == url
    with pytest.raises(FetchError, match="elsewhere"):
        metadata.endpoint("introspection_endpoint")


def test_a_missing_or_invalid_endpoint_in_metadata_is_an_error() -> None:
    """A list in place of a URL makes the document invalid."""
    with pytest.raises(FetchError, match="metadata"):
        metadata_read({"issuer": ISSUER}).endpoint("jwks_uri")
    with pytest.raises(FetchError, match="metadata"):
        metadata_read({"issuer": ISSUER, "jwks_uri": ["https://id.example.com/keys"]})


@pytest.fixture
def idp(idp: Idp) -> Idp:
    """Return the identity provider as if it had just been started, with one issuer."""
    idp.reset().issuer("acme", [])
    return idp


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(development=True)
    yield fetcher
    await fetcher.aclose()


def document(issuer: str) -> Answer:
    return answer(body=json.dumps({"issuer": issuer, "jwks_uri": f"{issuer}/keys"}).encode())


@pytest.mark.parametrize(
    "first",
    [
        answer(404),
        answer(500),
        answer(302, location="/login"),
        answer(body=b"<html>", content_type="text/html"),
        answer(body=b"not json"),
        document("https://other.issuer.example"),
    ],
)
async def test_the_next_location_is_tried_after_an_unusable_document(
    idp: Idp, fetcher: Fetcher, first: Answer
) -> None:
    """Servers answer unknown paths with many kinds of status and content."""
    issuer = idp.issuer("acme")
    idp.replace(f"/.well-known/{OAUTH}/acme", first)
    idp.replace(f"/acme/.well-known/{OPENID}", document(issuer))

    metadata = await Discovery(fetcher).find(DiscoveryLocation(issuer=issuer))

    assert metadata.location == f"{issuer}/.well-known/{OPENID}"
    assert metadata.jwks_uri == f"{issuer}/keys"


async def test_a_sign_in_reads_the_document_of_openid_connect_first(
    idp: Idp, fetcher: Fetcher
) -> None:
    """Some servers name the end session endpoint in that document only."""
    issuer = idp.issuer("acme")
    document = {"issuer": issuer, "end_session_endpoint": f"{issuer}/end"}
    idp.replace(f"/acme/.well-known/{OPENID}", answer(body=json.dumps(document).encode()))
    discovery = Discovery(fetcher)

    for sign_in, ends in ((True, f"{issuer}/end"), (False, ""), (True, f"{issuer}/end")):
        metadata = await discovery.find(DiscoveryLocation(issuer=issuer, sign_in=sign_in))
        assert metadata.end_session_endpoint == ends
    assert idp.hits[f"/acme/.well-known/{OPENID}"] == 1


async def test_an_issuer_mismatch_is_reported_instead_of_a_later_404(
    idp: Idp, fetcher: Fetcher
) -> None:
    """A 404 of a later location would hide the wrong setting."""
    idp.replace(f"/.well-known/{OAUTH}/acme", document(f"{idp.issuer('acme')}/"))

    with pytest.raises(FetchError) as failure:
        await Discovery(fetcher).find(DiscoveryLocation(issuer=idp.issuer("acme")))

    assert failure.value.reason == "issuer"


async def test_an_unreachable_issuer_is_tried_at_one_location_only(fetcher: Fetcher) -> None:
    """The other locations are on the same host."""
    with pytest.raises(FetchError) as failure:
        await Discovery(fetcher).find(DiscoveryLocation(issuer="http://127.0.0.1:1999/x"))

    assert failure.value.reason == "connect"


async def test_metadata_is_cached_for_an_hour_and_longer_during_an_outage(
    idp: Idp, fetcher: Fetcher
) -> None:
    """Metadata seldom changes, so an outage of it must not stop key fetches."""
    clock = WaitingClock()
    discovery = Discovery(fetcher, monotonic=clock.monotonic)
    location = DiscoveryLocation(issuer=idp.issuer("acme"))
    path = f"/.well-known/{OAUTH}/acme"
    first = await discovery.find(location)

    clock.now += 3599
    assert await discovery.find(location) == first
    assert idp.hits[path] == 1
    idp.replace(path, answer(503))
    clock.now += 1
    assert await discovery.find(location) == first
    assert idp.hits[path] == 2

    idp.replace(path, None)
    discovery.invalidate(location.issuer)
    await discovery.find(location)
    assert idp.hits[path] == 3


@pytest.mark.requirement("N15")
async def test_callers_share_one_discovery_that_no_caller_cancels(
    idp: Idp, fetcher: Fetcher
) -> None:
    """The caller that started the discovery may disconnect."""
    arrived, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    issuer = idp.issuer("acme")

    async def stalled(scope: Scope, receive: Receive, send: Send) -> None:
        loop.call_soon_threadsafe(arrived.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), loop))
        await document(issuer)(scope, receive, send)

    idp.replace(f"/.well-known/{OAUTH}/acme", stalled)
    discovery = Discovery(fetcher)
    lookups = [
        asyncio.create_task(discovery.find(DiscoveryLocation(issuer=issuer))) for _ in range(100)
    ]
    await asyncio.wait_for(arrived.wait(), 5)
    lookups[0].cancel()
    go_on.set()

    answers = await asyncio.wait_for(asyncio.gather(*lookups[1:]), 5)

    assert {answer.issuer for answer in answers} == {issuer}
    assert idp.hits[f"/.well-known/{OAUTH}/acme"] == 1
    await discovery.aclose()
