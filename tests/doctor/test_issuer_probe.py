"""`gatepost issuer probe`: the printed table works as it stands, or the command says why not."""

import asyncio
import itertools
import json
import time
import tomllib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gatepost.cli.main import main
from gatepost.doctor.issuer_probe import ProbeRequest, ProbeResult, probe_issuer
from tests.support.issuers import ABSENT, Idp, TokenFactory, answer, jwk, respond, rsa_key, signer
from tests.support.measuring import each
from tests.support.proxies import CertificateAuthority
from tests.support.server import running_server

HOUR = 3600
NOW = int(time.time())
METADATA = "/.well-known/oauth-authorization-server/main"
RESOURCE = "http://127.0.0.1:8000/mcp"
Claims = dict[str, Any]


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        idp.issuer("main", [jwk(rsa_key())])
        yield idp


def probe(idp: Idp, resource: str = RESOURCE, *, typ: Any = "at+jwt", **claims: Any) -> ProbeResult:
    """Return the probe's result for a token with these claims and `typ` instead of RFC 9068's."""
    factory = TokenFactory(idp.issuer("main"), resource)
    token = factory.token(header={"typ": typ}, **claims)
    request = ProbeRequest(url=idp.issuer("main"), resource=resource, token=token)
    return asyncio.run(probe_issuer(request))


def table_of(result: ProbeResult) -> dict[str, Any]:
    [table] = tomllib.loads(result.table)["issuers"]
    return dict(table)


FITTED_TOKENS: dict[str, tuple[Claims, dict[str, Any]]] = {
    # name: (how the token differs from RFC 9068, what the table has beside issuer and preset)
    "the standard": ({}, {"tenant": {"claim": "org_id"}, "tenants": {"acme": "acme"}}),
    "no organisation": ({"org_id": ABSENT}, {"tenant": {"value": "acme"}}),
    "a list of organisations": (
        {"org_id": ABSENT, "organization": ["acme"]},
        {"tenant": {"claim": "organization", "only_entry": True}, "tenants": {"acme": "acme"}},
    ),
    "another type": ({"typ": "JWT"}, {"tokens": {"types": ["at+jwt", "jwt"]}}),
    "no type": ({"typ": ABSENT}, {"tokens": {"types": ["", "at+jwt"]}}),
    "the client in azp": (
        {"client_id": ABSENT, "azp": "app"},
        {"tokens": {"client_claims": ["azp"]}},
    ),
    "no id": (
        {"jti": ABSENT},
        {"tokens": {"required_claims": ["aud", "client_id", "exp", "iat", "iss", "sub"]}},
    ),
    "another audience": ({"aud": "api://crm"}, {"audiences": ["api://crm"]}),
    "no audience": (
        {"aud": ABSENT},
        {"audiences": ["client-1"], "tokens": {"client_as_audience": True}},
    ),
    "scopes as a list": (
        {"scope": ABSENT, "scp": ["files:read"]},
        {"tokens": {"scope_claims": ["scp"]}},
    ),
    "scope itself a list": ({"scope": ["files:read"]}, {"tokens": {"scope_list": True}}),
    "a week": ({"exp": NOW + 168 * HOUR}, {"max_lifetime_s": 168 * HOUR + 60}),
    "a user name": (
        {"sub": ABSENT, "username": "alice"},
        {"tokens": {"subject_claims": ["username"]}},
    ),
    "a machine without subject": (
        {"sub": ABSENT},
        {"tokens": {"machine": [{"no_subject": True}, {"subject_is_client": True}]}},
    ),
    "much at once": (
        {"typ": "JWT", "aud": "api", "client_id": ABSENT, "cid": "app", "jti": ABSENT},
        {"audiences": ["api"]},
    ),
    "a type and a client that ID tokens have too": (
        {"typ": "JWT", "client_id": ABSENT, "azp": "app", "scope": "files:read"},
        {
            "tokens": {
                "types": ["at+jwt", "jwt"],
                "client_claims": ["azp"],
                "required_claims": ["aud", "azp", "exp", "iat", "iss", "jti", "scope", "sub"],
            }
        },
    ),
}


@each("case", FITTED_TOKENS)
def test_the_printed_table_has_only_settings_that_the_token_needs(case: str, idp: Idp) -> None:
    """Each line has a comment with its reason."""
    claims, expected = FITTED_TOKENS[case]
    result = probe(idp, iat=NOW - 60, **claims)
    table = table_of(result)

    assert result.works, result.findings
    assert table.items() >= expected.items()
    if case != "much at once" and "tokens" not in expected:
        assert "tokens" not in table
    lines = result.table.splitlines()
    assert all(
        before.startswith("# ")
        for before, line in itertools.pairwise(lines)
        if line and line[0] not in "#["
    )


@each("case", FITTED_TOKENS)
def test_a_server_with_the_printed_table_accepts_the_token(case: str, idp: Idp) -> None:
    """The table is used without changes."""
    claims, _ = FITTED_TOKENS[case]
    changes = {"iat": NOW - 60} | claims
    typ = changes.pop("typ", "at+jwt")
    table = table_of(probe(idp, typ=typ, **changes))
    with running_server(idp, [table], tenancy={"create_on_first_use": True}) as server:
        factory = TokenFactory(idp.issuer("main"), server.client.resource)
        answer = server.client.call(factory.token(header={"typ": typ}, **changes))

    assert answer.status == 200, answer


REFUSED_TOKENS: dict[str, tuple[Claims, str]] = {
    "what may be an ID token": (
        {"typ": "JWT", "client_id": ABSENT, "azp": "app", "scope": ABSENT},
        "Nothing tells this token from an ID token",
    ),
    "an ID token": ({"typ": "JWT", "nonce": "n", "at_hash": "h"}, "not an access token"),
    "bound to a key": ({"cnf": {"jkt": "x"}}, "must not be bound to a key"),
    "of another issuer": ({"iss": "https://id.example.com"}, "byte for byte"),
    "a logout token": ({"typ": "logout+jwt"}, "must be that of an access token"),
    "a refresh token": ({"typ": "rt+jwt"}, "must allow the token's `typ`"),
    "an ID token by its type": ({"typ": "id+jwt"}, "must allow the token's `typ`"),
    "a type that moves the cursor": ({"typ": "x\x9b31m"}, "must allow the token's `typ`"),
    "two organisations": ({"org_id": ["acme", "globex"]}, "must be one short"),
    "no expiry": ({"exp": ABSENT}, "every claim"),
}


@each("case", REFUSED_TOKENS)
def test_a_token_that_no_setting_may_accept_is_reported(case: str, idp: Idp) -> None:
    """The probe never proposes to accept another kind of token."""
    claims, says = REFUSED_TOKENS[case]
    result = probe(idp, **claims)

    assert not result.works
    assert says in " ".join(result.findings)
    assert "types" not in table_of(result).get("tokens", {})
    assert all(line.isprintable() for line in result.table.splitlines())


def test_an_organisation_that_does_not_fit_a_table_stays_the_tenant_claim(idp: Idp) -> None:
    """One fixed tenant would combine every organisation of the issuer."""
    result = probe(idp, org_id="Acme Corp")

    assert result.works, result.findings
    assert table_of(result)["tenant"] == {"claim": "org_id"}


def test_a_machine_token_without_subject_keeps_the_machine_marks(idp: Idp) -> None:
    """Other machines of the provider would otherwise count as people, who can approve."""
    realm = idp.issuer("realms/main", [jwk(rsa_key())])
    claims = {"sub": ABSENT, "azp": "agent", "typ": "Bearer", "organization": ["acme"]}
    token = TokenFactory(realm, RESOURCE).token(header={"typ": "JWT"}, **claims)
    request = ProbeRequest(url=realm, resource=RESOURCE, token=token)
    result = asyncio.run(probe_issuer(request))

    assert result.works, result.findings
    assert table_of(result)["preset"] == "keycloak"
    assert {"claim": "clientAddress"} in table_of(result)["tokens"]["machine"]


OPAQUE_TOKENS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: (what introspection answers beside `active`, what the table has)
    "all members": ({}, {"tenant": {"claim": "org_id"}}),
    "a user name, as django-oauth-toolkit": (
        {"sub": ABSENT, "username": "alice", "token_type": ABSENT, "iat": ABSENT, "iss": ABSENT},
        {"tokens": {"subject_claims": ["username"]}},
    ),
    "a machine": (
        {"sub": ABSENT},
        {"tokens": {"machine": [{"no_subject": True}, {"subject_is_client": True}]}},
    ),
    "another audience": ({"aud": "api://crm"}, {"audiences": ["api://crm"]}),
    "no audience": (
        {"aud": ABSENT},
        {"audiences": ["agent"], "tokens": {"client_as_audience": True}},
    ),
}


def introspecting(idp: Idp, basic: str, answered: dict[str, Any]) -> None:
    """Let the issuer answer about the token `opaque`, to a client with these credentials."""
    form = b"client_id=gatepost"

    async def introspect(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        headers = dict(scope["headers"])
        sent = headers.get(b"authorization", b"").decode()
        is_known = sent == basic if basic else not sent and form in body
        known_token = b"token=opaque" in body
        reply = {"active": True, **answered} if known_token else {"active": False}
        await respond(send, 200 if is_known else 401, json.dumps(reply).encode())

    idp.replace("/main/introspect", introspect)
    metadata = idp._document(METADATA) or {}
    metadata |= {"introspection_endpoint": f"{idp.issuer('main')}/introspect"}
    idp.replace(METADATA, answer(body=json.dumps(metadata).encode()))


def basic_auth(client_id: str, secret: str) -> str:
    return f"Basic {b64encode(f'{client_id}:{secret}'.encode()).decode()}"


def answered_by(idp: Idp, changes: dict[str, Any]) -> dict[str, Any]:
    members = {
        "iss": idp.issuer("main"),
        "aud": RESOURCE,
        "sub": "alice",
        "client_id": "agent",
        "scope": "files:read",
        "token_type": "Bearer",
        "iat": NOW,
        "exp": NOW + HOUR,
        "org_id": "acme",
    }
    return {name: value for name, value in (members | changes).items() if value is not ABSENT}


def probe_opaque(idp: Idp, secret: str) -> ProbeResult:
    return asyncio.run(
        probe_issuer(
            ProbeRequest(
                url=idp.issuer("main"),
                resource=RESOURCE,
                token="opaque",
                client_id="gatepost",
                client_secret=secret,
            )
        )
    )


@each("case", OPAQUE_TOKENS)
def test_the_probe_introspects_an_opaque_token(case: str) -> None:
    """The table has a setting for each member that the issuer leaves out."""
    changes, expected = OPAQUE_TOKENS[case]
    with Idp() as idp:
        idp.issuer("main", [jwk(rsa_key())])
        introspecting(idp, basic_auth("gatepost", "s"), answered_by(idp, changes))
        result = probe_opaque(idp, "s")

    assert result.works, result.findings
    assert table_of(result).items() >= expected.items()


@each(
    ("sent", "expected"),
    [
        (basic_auth("gatepost", "s%25%3A"), {"method": "client_secret_basic"}),
        (basic_auth("gatepost", "s%:"), {"method": "client_secret_basic", "encoding": "raw"}),
        ("", {"method": "client_secret_post"}),
    ],
)
def test_the_table_has_the_client_authentication_that_works(
    sent: str, expected: dict[str, str]
) -> None:
    """The methods are tried in the order of the standards; the secret is a reference."""
    with Idp() as idp:
        idp.issuer("main", [jwk(rsa_key())])
        introspecting(idp, sent, answered_by(idp, {}))
        result = probe_opaque(idp, "s%:")
    introspection = table_of(result)["introspection"]

    assert result.works, result.findings
    assert introspection.items() >= expected.items()
    assert introspection["client_secret"].startswith("env:")
    assert "s%" not in str(result)


def test_the_client_secret_is_not_sent_to_an_issuer_on_another_host() -> None:
    """A planted metadata document may name such an issuer."""
    with Idp() as idp, Idp() as rival:
        idp.issuer("main", [jwk(rsa_key())])
        rival.issuer("main", [jwk(rsa_key())])
        introspecting(rival, basic_auth("gatepost", "s"), answered_by(rival, {}))
        planted = json.dumps({"issuer": rival.issuer("main")}).encode()
        idp.replace(METADATA, answer(body=planted))
        result = probe_opaque(idp, "s")

    assert not result.works
    assert "another host" in " ".join(result.findings)
    assert "introspection" not in table_of(result)


def test_probing_an_opaque_token_needs_client_credentials(idp: Idp) -> None:
    """Without them, the command names the missing options."""
    done = run(idp.issuer("main"), GATEPOST_PROBE_TOKEN="opaque")

    assert done.exit_code == 1
    assert "--client-id" in done.stderr


def test_a_token_with_a_wrong_signature_is_not_accepted_by_the_probe(idp: Idp) -> None:
    """Claims of such a token are proposals of an untrusted server."""
    factory = TokenFactory(idp.issuer("main"), RESOURCE)
    token = factory.token(sign=signer(rsa_key("stranger"), "RS256"))
    request = ProbeRequest(url=idp.issuer("main"), resource=RESOURCE, token=token)
    result = asyncio.run(probe_issuer(request))

    assert not result.works
    assert "The signature must match" in " ".join(result.findings)


def test_an_expired_token_still_gives_a_table(idp: Idp) -> None:
    """Tokens live for minutes, so an operator often has an expired one."""
    now = int(time.time())
    result = probe(idp, iat=now - 2 * HOUR, exp=now - HOUR, aud="api://crm")

    assert result.works
    assert table_of(result)["audiences"] == ["api://crm"]
    assert "has expired" in " ".join(result.findings)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["issuer", "probe", *arguments], env=environment)


def test_only_the_table_is_printed_on_standard_output(idp: Idp) -> None:
    """It can be appended to a file; the token comes from the environment."""
    token = TokenFactory(idp.issuer("main"), RESOURCE).token()
    done = run(*(idp.issuer("main") + "/", "--resource", RESOURCE), GATEPOST_PROBE_TOKEN=token)

    assert done.exit_code == 0, done.stderr
    assert tomllib.loads(done.stdout)["issuers"][0]["issuer"] == idp.issuer("main")
    assert "The metadata spell the issuer" in done.stderr
    assert "The token is accepted: tenant acme, user alice" in done.stderr
    assert token not in done.output


def test_without_a_token_the_table_is_made_from_the_metadata(idp: Idp) -> None:
    """The table is valid, and the command names the missing option."""
    done = run(idp.issuer("main"))

    assert done.exit_code == 0
    assert tomllib.loads(done.stdout)["issuers"][0]["preset"] == "generic"
    assert "Add --token" in done.stderr


def test_an_untrusted_certificate_is_named(tmp_path: Path) -> None:
    """With the CA bundle the probe works."""
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.certify("localhost")
    with Idp(ssl_certfile=certificate, ssl_keyfile=key) as idp:
        idp.name = f"https://localhost:{idp.port}"
        issuer = idp.issuer("main", [jwk(rsa_key())])
        refused = run(issuer)
        trusted = run(issuer, "--ca-bundle", str(authority.bundle))

    assert refused.exit_code == 1
    assert "network.ca_bundle" in refused.stderr
    assert trusted.exit_code == 0


@pytest.mark.parametrize("url", ["https://127.0.0.1:9/x", "nonsense", "ftp://id.example.com"])
def test_an_unreadable_issuer_url_is_reported_in_a_sentence(url: str) -> None:
    """No traceback is printed."""
    done = run(url)

    assert done.exit_code == 1
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.output
