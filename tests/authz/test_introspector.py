"""Asking an issuer: credentials, endpoints, outages, and Google."""

import base64
import json
from typing import Any
from urllib.parse import unquote_plus

import pytest

from gatepost_authz.config import Introspection, TenantRule
from gatepost_authz.errors import IssuerUnavailable, WrongAudience
from tests.authz.conftest import NOW, SECRET, OpaqueTokenGate
from tests.support.issuers import answer


async def test_the_secret_is_form_encoded_before_base64(opaque_gate: OpaqueTokenGate) -> None:
    """RFC 6749 section 2.3.1; a raw colon or percent sign would change the secret."""
    await opaque_gate.verify()

    kind, _, coded = opaque_gate.endpoint.headers[0]["authorization"].partition(" ")
    user, _, password = base64.b64decode(coded).decode().partition(":")
    assert kind == "Basic"
    assert (unquote_plus(user), unquote_plus(password)) == ("gate post", SECRET)


async def test_credentials_may_stand_in_the_form(opaque_gate: OpaqueTokenGate) -> None:
    """Some issuers accept no other way."""
    settings = Introspection(
        client_id="gate post",
        client_secret="env:S",
        endpoint=f"{opaque_gate.idp.base}/id/introspect",
        method="client_secret_post",
    )
    opaque_gate.trust(opaque_gate.issuer("id", introspection=settings))

    await opaque_gate.verify()

    assert opaque_gate.endpoint.asked[0]["client_id"] == "gate post"
    assert opaque_gate.endpoint.asked[0]["client_secret"] == SECRET
    assert "authorization" not in opaque_gate.endpoint.headers[0]


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
async def test_a_failing_endpoint_is_an_outage_that_is_not_cached(
    opaque_gate: OpaqueTokenGate, reason: str, app: Any
) -> None:
    """The answer is 503, and the next request finds a recovered endpoint."""
    opaque_gate.idp.replace("/id/introspect", app)
    assert await opaque_gate.refused(IssuerUnavailable) == reason

    opaque_gate.idp.replace("/id/introspect", opaque_gate.endpoint)

    assert await opaque_gate.verify()


@pytest.mark.requirement("N25")
async def test_an_endpoint_without_a_listener_is_an_outage(opaque_gate: OpaqueTokenGate) -> None:
    """The issuer's machine may be gone."""
    settings = Introspection(
        client_id="g", client_secret="env:S", endpoint="http://127.0.0.1:1999/introspect"
    )
    opaque_gate.trust(opaque_gate.issuer("id", introspection=settings))

    assert await opaque_gate.refused(IssuerUnavailable) == "introspection_connect"


async def test_tokens_in_an_outage_do_not_fill_the_log(
    opaque_gate: OpaqueTokenGate, caplog: pytest.LogCaptureFixture
) -> None:
    """Each made-up token causes a request, but the log gets one line in ten seconds."""
    opaque_gate.idp.replace("/id/introspect", answer(500))
    for number in range(20):
        await opaque_gate.refused(IssuerUnavailable, f"opaque-{number}")
    opaque_gate.now += 10
    await opaque_gate.refused(IssuerUnavailable)

    warnings = [
        record for record in caplog.records if "cannot be asked about tokens" in record.getMessage()
    ]
    assert [vars(warning)["times"] for warning in warnings] == [1, 20]


async def test_the_endpoint_is_discovered_once_for_many_tokens(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """Tokens come faster than metadata changes."""
    undetermined = Introspection(client_id="g", client_secret="env:S")
    opaque_gate.trust(opaque_gate.issuer("found", introspection=undetermined))
    path = "/.well-known/oauth-authorization-server/found"
    assert await opaque_gate.refused(IssuerUnavailable) == "introspection_metadata"
    hits = opaque_gate.idp.hits[path]
    assert await opaque_gate.refused(IssuerUnavailable) == "introspection_metadata"
    assert opaque_gate.idp.hits[path] == hits

    base = opaque_gate.idp.issuer("found")
    document = {"issuer": base, "introspection_endpoint": f"{base}/introspect"}
    opaque_gate.idp.replace(path, answer(body=json.dumps(document).encode()))
    opaque_gate.now += 5
    opaque_gate.introspectors._discovery.invalidate(base)

    assert await opaque_gate.verify()


GOOGLE = "1234.apps.googleusercontent.com"


def trust_google(opaque_gate: OpaqueTokenGate) -> None:
    settings = Introspection(
        client_id="unused", client_secret="env:S", endpoint=f"{opaque_gate.idp.base}/id/introspect"
    )
    opaque_gate.trust(
        opaque_gate.issuer(
            "id",
            preset="google",
            audiences=(GOOGLE,),
            tenant=TenantRule(value="acme"),
            tenants={},
            introspection=settings,
        )
    )
    # The shape of Google's own answer: numbers are text, nothing says `active`.
    opaque_gate.endpoint.answer = {
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


async def test_google_tokens_are_introspected_at_the_tokeninfo_endpoint(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The endpoint takes `access_token` and answers 400 for a bad token."""
    trust_google(opaque_gate)

    caller = await opaque_gate.verify("ya29.a0")

    assert caller is not None
    assert (caller.subject, caller.client_id, caller.tenant_id) == ("1089", GOOGLE, "acme")
    assert opaque_gate.endpoint.asked == [{"access_token": "ya29.a0"}]
    opaque_gate.endpoint.status = 400
    assert await opaque_gate.refused(token="ya29.bad") == "inactive"
    opaque_gate.endpoint.status = 503
    assert await opaque_gate.refused(IssuerUnavailable, "ya29.c") == "introspection_status"


async def test_a_google_token_for_another_app_is_refused(opaque_gate: OpaqueTokenGate) -> None:
    """The endpoint describes tokens of any app; only the listed clients are accepted."""
    trust_google(opaque_gate)
    opaque_gate.endpoint.answer = dict(opaque_gate.endpoint.answer or {}) | {
        "aud": "other",
        "azp": "other",
    }

    assert await opaque_gate.refused(WrongAudience, "ya29.a0") == "wrong_audience"
