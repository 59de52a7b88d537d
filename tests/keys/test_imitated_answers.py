"""What an imitation's endpoints answer: metadata, errors, and the absence of endpoints."""

import json
import re

import httpx2
import pytest

from gatepost_keys.imitation import IMITATIONS
from gatepost_keys.issuer import IssuerSettings, StaticClient
from tests.support.issuers import base64url_decoded
from tests.support.measuring import each
from tests.support.sign_in import CALLBACK, CLI, ORIGIN, RESOURCE, CodeFlow, redirect_query

NAMES = list(IMITATIONS)
APP, MACHINE, API = "the-app", "the-machine", "the-api"
SECRET = "a-secret"


def imitated_issuer(name: str, **settings: object) -> CodeFlow:
    """Return an issuer like *name*, with a public client, a program and a resource server."""
    clients = (
        StaticClient(client_id=APP, secret="", public=True, redirect_uris=(CALLBACK,)),
        StaticClient(client_id=MACHINE, secret=SECRET, tenant="acme"),
        StaticClient(client_id=API, secret=SECRET, introspects=True),
    )
    # Errors do not depend on the algorithm, and these keys are made quickly.
    issuer_settings = IssuerSettings(
        imitation=IMITATIONS[name],
        algorithm="ES256",
        clients=clients,
        cli_secret=CLI[1],
        **settings,
    )
    walk = CodeFlow(issuer_settings)
    walk.client_id = APP
    return walk


async def bad_code(walk: CodeFlow) -> httpx2.Response:
    return await walk.exchange("no-such-code")


async def machine_answer(walk: CodeFlow, **changes: str) -> httpx2.Response:
    form = {"grant_type": "client_credentials", "client_id": MACHINE, "client_secret": SECRET}
    return await walk.token(**(form | changes))


@each("name", NAMES)
async def test_each_imitation_has_its_metadata_and_endpoints_at_the_providers_paths(
    name: str,
) -> None:
    """The paths are the provider's, for every issuer that its tokens name."""
    walk = imitated_issuer(name)
    settings, shape = walk.issuer.settings, walk.issuer.settings.imitation
    for identifier in settings.identifiers:
        endpoint_url = identifier.removesuffix("/") + "/.well-known/openid-configuration"
        document = (await walk.http.get(endpoint_url)).json()
        assert document["issuer"] == identifier
        assert ("registration_endpoint" in document) == ("registration" in shape.endpoints)
        assert not shape.metadata_lacks & document.keys()
        for member, url in document.items():
            if member.endswith("_endpoint") or member == "jwks_uri":
                assert (await walk.http.request("PATCH", url)).status_code == 405, member
    other = await walk.http.get("/.well-known/openid-configuration/dev-as")
    assert other.status_code == 404


@each("name", [name for name in NAMES if "registration" not in IMITATIONS[name].endpoints])
async def test_registration_is_404_if_the_provider_has_none(name: str) -> None:
    """The path of the development issuer's registration does not exist then."""
    answer = await imitated_issuer(name).http.post("/dev-as/register", json={})

    assert answer.status_code == 404


@each("name", [name for name in NAMES if "registration" in IMITATIONS[name].endpoints])
async def test_a_client_registers_at_the_providers_path(name: str) -> None:
    """Keycloak, Auth0, Hydra and oidc-provider have client registration."""
    walk = imitated_issuer(name)

    assert (await walk.register())["client_id"] == walk.client_id


async def test_published_entra_keys_have_no_alg() -> None:
    """They have their type and use only."""
    walk = imitated_issuer("entra-v2")
    (key,) = (await walk.http.get(walk.path("jwks"))).json()["keys"]

    assert "alg" not in key
    assert key["use"] == "sig"


ENTRA_DESCRIPTION = re.compile(
    r"AADSTS(\d+): [^\r]+\r\nTrace ID: ([0-9a-f-]{36})\r\nCorrelation ID: ([0-9a-f-]{36})\r\n"
    r"Timestamp: \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
)


async def test_entra_errors_have_error_codes_and_trace_ids() -> None:
    """The members are documented; the code is in the text and in a list."""
    walk = imitated_issuer("entra-v2")
    cases = [
        (await bad_code(walk), 400, "invalid_grant", 70008),
        (await machine_answer(walk, client_secret="wrong"), 401, "invalid_client", 7000215),
        (await machine_answer(walk, client_id="unknown"), 400, "unauthorized_client", 700016),
        (await machine_answer(walk, scope=f"{RESOURCE}/access"), 400, "invalid_scope", 1002012),
        (await walk.token(grant_type="password"), 400, "unsupported_grant_type", 70003),
    ]
    for answer, status, error, number in cases:
        body = answer.json()
        assert (answer.status_code, body["error"]) == (status, error), body
        assert body["error_codes"] == [number]
        match = ENTRA_DESCRIPTION.fullmatch(body["error_description"])
        assert match is not None, body
        assert match.groups() == (str(number), body["trace_id"], body["correlation_id"])


async def test_okta_answers_an_unknown_client_in_its_own_shape() -> None:
    """Other errors have the members of OAuth."""
    walk = imitated_issuer("okta")
    unknown = await machine_answer(walk, client_id="unknown")
    wrong = await machine_answer(walk, client_secret="wrong")
    scope = await machine_answer(walk, scope="made:up")

    assert unknown.status_code == wrong.status_code == 401
    assert unknown.json().keys() == {"errorCode", "errorSummary", "errorLink", "errorId"}
    assert wrong.json()["error"] == "invalid_client"
    assert (scope.status_code, scope.json()["error"]) == (400, "invalid_scope")


async def test_auth0_refuses_an_unknown_audience() -> None:
    """The token endpoint answers 403, and a sign-in redirects with the error."""
    walk = imitated_issuer("auth0")
    token = await machine_answer(walk, audience="https://other.example")
    back = redirect_query(await walk.authorize(audience="https://other.example", resource=None))

    assert token.status_code == 403
    assert token.json() == {
        "error": "access_denied",
        "error_description": "Service not enabled within domain: https://other.example",
    }
    assert back["error"] == "access_denied"
    assert back["error_description"] == "Service not found: https://other.example"
    assert (await bad_code(walk)).status_code == 403


async def test_cognito_errors_have_one_member_only() -> None:
    """The status is always 400."""
    walk = imitated_issuer("cognito")
    answers = [await bad_code(walk), await machine_answer(walk, client_secret="wrong")]

    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (400, {"error": "invalid_grant"}),
        (400, {"error": "invalid_client"}),
    ]


async def test_google_tokeninfo_needs_no_client_authentication() -> None:
    """Numbers are strings, and a token that is not active is 400."""
    walk = imitated_issuer("google", access_token_format="opaque")
    answer = (await walk.exchange(await walk.code(scope="openid email"))).json()
    path = walk.path("introspection")
    response = await walk.http.post(path, data={"access_token": answer["access_token"]})
    unknown = await walk.http.post(path, data={"access_token": "ya29.unknown"})

    assert answer["access_token"].startswith("ya29.")
    assert response.json()["aud"] == response.json()["azp"] == APP
    assert response.json()["scope"] == "openid https://www.googleapis.com/auth/userinfo.email"
    assert response.json()["expires_in"] == "600"
    assert "active" not in response.json()
    assert (unknown.status_code, unknown.json()["error"]) == (400, "invalid_token")


@each(
    ("name", "status", "error", "text"),
    [
        ("keycloak", 400, "invalid_grant", "Code not valid"),
        ("google", 400, "invalid_grant", "Bad Request"),
        ("okta", 400, "invalid_grant", "The authorization code is invalid or has expired."),
        ("logto", 400, "invalid_grant", "grant request is invalid"),
        ("oidc-provider", 400, "invalid_grant", "grant request is invalid"),
    ],
)
async def test_a_bad_code_is_refused_in_the_providers_words(
    name: str, status: int, error: str, text: str
) -> None:
    """Log files and clients match this text."""
    answer = await bad_code(imitated_issuer(name))

    assert answer.status_code == status
    assert (answer.json()["error"], answer.json()["error_description"]) == (error, text)


async def test_logto_errors_have_an_additional_code() -> None:
    """The members of OAuth are there as well."""
    body = (await bad_code(imitated_issuer("logto"))).json()

    assert (body["code"], body["message"]) == ("oidc.invalid_grant", "grant request is invalid")


@each("name", ["zitadel", "hydra", "logto", "oidc-provider"])
async def test_introspection_responses_have_the_providers_members(name: str) -> None:
    """The response also has the mark of development."""
    walk = imitated_issuer(name, access_token_format="opaque")
    shape = walk.issuer.settings.imitation
    answer = await walk.exchange(await walk.code(scope="files:read " + scopes_of(name)))
    token = answer.json()["access_token"]
    response = await walk.http.post(
        walk.path("introspection"), data={"token": token}, auth=(API, SECRET)
    )
    described = response.json()

    assert token.startswith(shape.opaque_prefix)
    assert described["active"] is True
    assert described["dev"] is True
    assert described.keys() - {"dev"} <= shape.introspection.keys()
    assert {"client_id", "sub", "exp", "iat"} <= described.keys()


def scopes_of(name: str) -> str:
    """Return the scope by which Zitadel puts the project into the audience."""
    project = IMITATIONS[name].sign_in_scopes
    return " ".join(scope.format(api="0") for scope in project)


async def test_a_machine_of_oidc_provider_has_no_subject() -> None:
    """The response names the client."""
    walk = imitated_issuer("oidc-provider", access_token_format="opaque")
    token = (await machine_answer(walk, scope="files:read", resource=RESOURCE)).json()[
        "access_token"
    ]
    response = await walk.http.post(
        walk.path("introspection"), data={"token": token}, auth=(API, SECRET)
    )

    assert response.json()["client_id"] == MACHINE
    assert "sub" not in response.json()


@each("name", [name for name in NAMES if IMITATIONS[name].opaque != "always"])
async def test_tokens_of_every_imitation_are_marked_as_development_tokens(name: str) -> None:
    """A production gate refuses them by claim and by key id."""
    walk = imitated_issuer(name)
    answer = await walk.http.post(
        walk.path("token"),
        data={
            "grant_type": "urn:gatepost:params:oauth:grant-type:development-token",
            "tenant": "acme",
        },
        auth=CLI,
    )
    head, claims = (json.loads(part) for part in parts_of(answer.json()["access_token"]))

    assert head["kid"].startswith("dev-")
    assert head.get("typ", "") == walk.issuer.settings.imitation.access_type
    assert claims["dev"] is True
    assert str(claims["iss"]).startswith(f"{ORIGIN}/dev-as")


def parts_of(token: str) -> list[bytes]:
    """Return the header and the claims of a signed token."""
    return [base64url_decoded(part) for part in token.split(".")[:2]]


async def test_a_tenant_that_tokens_cannot_name_is_refused() -> None:
    """`gatepost token --tenant globex` gives the reason."""
    walk = imitated_issuer("okta")
    answer = await walk.http.post(
        walk.path("token"),
        data={
            "grant_type": "urn:gatepost:params:oauth:grant-type:development-token",
            "tenant": "globex",
        },
        auth=CLI,
    )

    assert answer.status_code == 400
    assert "okta name no tenant" in answer.json()["error_description"]


@pytest.mark.parametrize("name", ["entra-v2", "cognito"])
async def test_some_imitations_send_no_iss_in_the_authorization_response(name: str) -> None:
    """Their metadata do not announce it either (RFC 9207)."""
    walk = imitated_issuer(name)
    scope = f"{RESOURCE}/access" if name == "entra-v2" else f"{RESOURCE}/files:read"
    consent = await walk.sign_in(scope=scope)

    assert "iss" not in redirect_query(await walk.submit(consent, decision="allow"))
