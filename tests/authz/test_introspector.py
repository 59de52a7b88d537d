"""Asking an issuer: credentials, endpoints, outages, and Google."""

import base64
import json
from typing import Any
from urllib.parse import unquote_plus

import pytest

from gatepost_authz.config import Introspection, TenantRule
from gatepost_authz.errors import IssuerUnavailable, WrongAudience
from tests.authz.office import NOW, SECRET, Office
from tests.support.idp import answer


async def test_the_secret_is_form_encoded_before_base64(office: Office) -> None:
    """RFC 6749 section 2.3.1; otherwise a colon or a percent sign makes another secret of it."""
    await office.verify()

    kind, _, coded = office.desk.headers[0]["authorization"].partition(" ")
    user, _, password = base64.b64decode(coded).decode().partition(":")
    assert kind == "Basic"
    assert (unquote_plus(user), unquote_plus(password)) == ("gate post", SECRET)


async def test_credentials_may_stand_in_the_form(office: Office) -> None:
    """For issuers that take nothing else."""
    settings = Introspection(
        client_id="gate post",
        client_secret="env:S",
        endpoint=f"{office.idp.base}/id/introspect",
        method="client_secret_post",
    )
    office.trust(office.issuer("id", introspection=settings))

    await office.verify()

    assert office.desk.asked[0]["client_id"] == "gate post"
    assert office.desk.asked[0]["client_secret"] == SECRET
    assert "authorization" not in office.desk.headers[0]


FAILURES = [
    ("introspection_status", answer(500)),
    ("introspection_status", answer(401)),
    ("introspection_status", answer(404)),
    ("introspection_redirect", answer(302, location="/elsewhere")),
    ("introspection_json", answer(body=b"[]")),
    ("introspection_content_type", answer(body=b"<html>", content_type="text/html")),
    ("introspection_too_large", answer(body=b'{"active":true,"x":"' + b"x" * 300_000 + b'"}')),
]


@pytest.mark.requirement("N25")
@pytest.mark.parametrize(("reason", "app"), FAILURES)
async def test_an_endpoint_that_fails_is_an_outage_and_nothing_is_remembered(
    office: Office, reason: str, app: Any
) -> None:
    """503 and not 401, and the next request finds it recovered."""
    office.idp.replace("/id/introspect", app)
    assert await office.refused(IssuerUnavailable) == reason

    office.idp.replace("/id/introspect", office.desk)

    assert await office.verify()


@pytest.mark.requirement("N25")
async def test_an_endpoint_nobody_listens_at_is_an_outage(office: Office) -> None:
    """As it is when the issuer's machine is gone."""
    settings = Introspection(
        client_id="g", client_secret="env:S", endpoint="http://127.0.0.1:1999/introspect"
    )
    office.trust(office.issuer("id", introspection=settings))

    assert await office.refused(IssuerUnavailable) == "introspection_connect"


async def test_the_endpoint_is_discovered_and_not_searched_for_with_every_token(
    office: Office,
) -> None:
    """Tokens come faster than metadata changes."""
    undetermined = Introspection(client_id="g", client_secret="env:S")
    office.trust(office.issuer("found", introspection=undetermined))
    path = "/.well-known/oauth-authorization-server/found"
    assert await office.refused(IssuerUnavailable) == "introspection_metadata"
    hits = office.idp.hits[path]
    assert await office.refused(IssuerUnavailable) == "introspection_metadata"
    assert office.idp.hits[path] == hits

    base = office.idp.issuer("found")
    document = {"issuer": base, "introspection_endpoint": f"{base}/introspect"}
    office.idp.replace(path, answer(body=json.dumps(document).encode()))
    office.now += 5
    office.introspectors._discovery.distrust(base)

    assert await office.verify()


GOOGLE = "1234.apps.googleusercontent.com"


def google(office: Office) -> None:
    settings = Introspection(
        client_id="unused", client_secret="env:S", endpoint=f"{office.idp.base}/id/introspect"
    )
    office.trust(
        office.issuer(
            "id",
            preset="google",
            audiences=(GOOGLE,),
            tenant=TenantRule(value="acme"),
            tenants={},
            introspection=settings,
        )
    )
    # The shape of Google's own answer: numbers are text, nothing says `active`.
    office.desk.answer = {
        "azp": GOOGLE,
        "aud": GOOGLE,
        "sub": "1089",
        "scope": "openid email",
        "exp": str(NOW + 3000),
        "expires_in": "3000",
        "email": "alice@example.com",
        "email_verified": "true",
        "access_type": "online",
    }


async def test_google_describes_its_tokens_in_its_own_way(office: Office) -> None:
    """The tokeninfo endpoint takes `access_token`, and answers 400 to a bad one."""
    google(office)

    caller = await office.verify("ya29.a0")

    assert caller is not None
    assert (caller.subject, caller.client_id, caller.tenant_id) == ("1089", GOOGLE, "acme")
    assert office.desk.asked == [{"access_token": "ya29.a0"}]
    office.desk.status = 400
    assert await office.refused(token="ya29.bad") == "inactive"
    office.desk.status = 503
    assert await office.refused(IssuerUnavailable, "ya29.c") == "introspection_status"


async def test_a_google_token_for_another_app_is_refused(office: Office) -> None:
    """Any app's tokens are described there; only those of the listed clients are ours."""
    google(office)
    office.desk.answer = dict(office.desk.answer or {}) | {"aud": "other", "azp": "other"}

    assert await office.refused(WrongAudience, "ya29.a0") == "wrong_audience"
