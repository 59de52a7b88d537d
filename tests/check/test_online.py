"""`gatepost check --online`: every issuer is asked for what the configuration expects of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gatepost.check.online import OnlineResult, check_issuers
from gatepost.cli.main import main
from gatepost.config.settings import Config
from tests.support.issuers import Answer, Idp, answer
from tests.support.measuring import each
from tests.support.processes import free_port
from tests.support.proxies import CertificateAuthority
from tests.support.server import configuration, issuer_settings

METADATA = "/.well-known/oauth-authorization-server/main"
Settings = dict[str, Any]
Change = Callable[[Idp], Settings]
"""A change at the issuer; returns settings of its table."""


async def check(issuer: Settings, *, scopes: tuple[str, ...] = (), **more: Any) -> OnlineResult:
    config = msgspec.convert(configuration(8000, [issuer], **more), Config)
    return await check_issuers(config, scopes)


def document(idp: Idp, **members: Any) -> None:
    """Add members to the metadata of the issuer."""
    idp.replace(METADATA, None)
    metadata = idp._document(METADATA) or {}
    idp.replace(METADATA, answer(body=json.dumps(metadata | members).encode()))


def with_metadata(**members: Any) -> Change:
    def change(idp: Idp) -> Settings:
        document(idp, **members)
        return {}

    return change


def with_introspection(answer: Answer) -> Change:
    def change(idp: Idp) -> Settings:
        idp.replace("/main/introspect", answer)
        document(idp, introspection_endpoint=f"{idp.base}/main/introspect")
        client = {"client_id": "gatepost", "client_secret": "env:GATEPOST_TEST_SECRET"}
        return {"introspection": client}

    return change


def with_dashboard(answer: Answer) -> Change:
    def change(idp: Idp) -> Settings:
        idp.replace("/main/token", answer)
        client = {"client_id": "dashboard", "client_secret": "env:GATEPOST_TEST_SECRET"}
        return {"dashboard": client}

    return change


def without_keys(idp: Idp) -> Settings:
    idp.replace("/main/jwks", answer(body=b'{"keys":[]}'))
    return {}


def with_confirmation_but_no_keys(idp: Idp) -> Settings:
    introspection = with_introspection(INACTIVE_ANSWER)(idp)["introspection"]
    return without_keys(idp) | {"introspection": introspection | {"when": "always"}}


def with_other_types(idp: Idp) -> Settings:
    return with_introspection(ACTIVE_ANSWER)(idp) | {"preset": "oidc-provider"}


def at_another_port(idp: Idp) -> Settings:
    return {"issuer": f"http://127.0.0.1:{free_port()}/main"}


INACTIVE_ANSWER, ACTIVE_ANSWER = answer(body=b'{"active":false}'), answer(body=b'{"active":true}')
INVALID_CLIENT = answer(401, b'{"error":"invalid_client"}')
INVALID_GRANT = answer(400, b'{"error":"invalid_grant"}')
DIFFERENT_ISSUER = with_metadata(issuer="https://id.example.com/")

PROBLEMS: dict[str, tuple[Change, str, str]] = {
    # name: (what is different, the problem's id, what message or hint say)
    "another issuer": (DIFFERENT_ISSUER, "config.E130", 'write issuer = "https://id.example.com/"'),
    "not there": (at_another_port, "config.E130", "the connection failed"),
    "no key": (without_keys, "config.E131", "its key set cannot be used"),
    "no PKCE": (with_metadata(code_challenge_methods_supported=["plain"]), "config.W130", "S256"),
    "no such scope": (
        with_metadata(scopes_supported=["openid", "x"]),
        "config.W131",
        "files:write",
    ),
    "a secret that is wrong": (with_introspection(INVALID_CLIENT), "config.E132", "credentials"),
    "everything is active": (
        with_introspection(ACTIVE_ANSWER),
        "config.E132",
        "accepts everything",
    ),
    "all is a refresh token": (with_other_types, "config.E132", "accepts everything"),
    "no key of confirmed tokens": (
        with_confirmation_but_no_keys,
        "config.E131",
        "its key set cannot be used",
    ),
    "an unknown dashboard by 400": (
        with_dashboard(answer(400, b'{"error":"invalid_client"}')),
        "config.E133",
        "client_secret",
    ),
    "an unauthorized dashboard": (
        with_dashboard(answer(403, b'{"error":"unauthorized_client"}')),
        "config.E133",
        "client_secret",
    ),
    "a wall before the token endpoint": (
        with_dashboard(answer(403, b"no")),
        "config.E133",
        "status 403",
    ),
    "an unknown dashboard": (with_dashboard(INVALID_CLIENT), "config.E133", "client_secret"),
}


@each("case", PROBLEMS)
async def test_a_capability_that_the_issuer_lacks_is_reported_with_its_setting(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning does not hide the line about what works."""
    monkeypatch.setenv("GATEPOST_TEST_SECRET", "s3cret")
    change, id, says = PROBLEMS[case]
    with Idp() as idp:
        issuer = issuer_settings(idp)
        result = await check(issuer | change(idp), scopes=("files:write",))

    [problem] = result.problems
    assert problem.id == id
    assert says in f"{problem.message} {problem.hint}"
    assert problem.setting.startswith("issuers[0].")
    assert bool(result.lines) is (problem.level == "warning")
    assert "s3cret" not in str(result)


SCOPES = {"no scopes of tools": ("files:write",)}
"""What callers request, where the case is about it."""

VALID_ISSUERS: dict[str, tuple[Change, str]] = {
    "an issuer of signed tokens": (lambda idp: {}, "1 usable key (PS256, RS256)"),
    "registration": (
        with_metadata(registration_endpoint="https://id.example.com/register"),
        "clients register themselves",
    ),
    "introspection": (with_introspection(INACTIVE_ANSWER), "introspection answers"),
    "a dashboard": (with_dashboard(INVALID_GRANT), "the dashboard's client is known"),
    "a dashboard at Glewlwyd": (
        with_dashboard(answer(403, b'{"error":"invalid_code"}')),
        "the dashboard's client is known",
    ),
    "no scopes of tools": (
        with_metadata(scopes_supported=["openid", "profile"]),
        "its metadata list no scopes of tools",
    ),
    "keys without metadata": (
        lambda idp: {"issuer": f"{idp.base}/other", "jwks_uri": f"{idp.base}/main/jwks"},
        "1 usable key",
    ),
}


@each("case", VALID_ISSUERS)
async def test_a_working_issuer_is_reported_in_one_line(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has what was found."""
    monkeypatch.setenv("GATEPOST_TEST_SECRET", "s3cret")
    change, says = VALID_ISSUERS[case]
    with Idp() as idp:
        issuer = issuer_settings(idp)
        result = await check(issuer | change(idp), scopes=SCOPES.get(case, ()))

    assert result.problems == ()
    assert says in result.lines[0]


async def test_a_certificate_of_a_private_authority_leads_to_the_setting(tmp_path: Path) -> None:
    """With the authority in `network.ca_bundle` the issuer has no problem."""
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.certify("localhost")
    with Idp(ssl_certfile=certificate, ssl_keyfile=key) as idp:
        idp.name = f"https://localhost:{idp.port}"
        issuer = issuer_settings(idp)
        refused = await check(issuer)
        trusted = await check(issuer, network={"ca_bundle": str(authority.bundle)})

    [problem] = refused.problems
    assert problem.id == "config.E130"
    assert "network.ca_bundle" in problem.hint
    assert trusted.problems == ()


def test_issuers_are_contacted_only_with_the_online_option(tmp_path: Path) -> None:
    """A problem that the online check finds leads to exit code 1."""
    with Idp() as idp:
        issuer = idp.issuer("main")  # without keys, so that it has no metadata either
        file = tmp_path / "gatepost.toml"
        file.write_text(
            'resource = "http://127.0.0.1:8000/mcp"\nmode = "development"\n'
            f'issuers = [{{ issuer = "{issuer}", tenant = {{ value = "acme" }} }}]\n'
        )
        offline = CliRunner().invoke(main, ["check", "--config", str(file)])
        hit_count = sum(idp.hits.values())
        online = CliRunner().invoke(main, ["check", "--config", str(file), "--online"])

    assert (offline.exit_code, hit_count) == (0, 0)
    assert online.exit_code == 1
    assert "config.E130 [issuers[0].issuer]" in online.stderr
