"""Fourteen bad tokens: what docs/troubleshooting.md says of each is what the operator reads."""

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from gatepost.cli.doctor import command
from tests.architecture.source import ROOT
from tests.support.commands import ServerProcess, server_process
from tests.support.issuers import ABSENT, Idp, TokenFactory, rsa_key, signer
from tests.support.measuring import eventually
from tests.support.server import issuer_settings

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \| (?:`([\w.]+)`)? ?\|$", re.MULTILINE)
NOW = int(time.time())


def with_other_signature(factory: TokenFactory) -> str:
    """Return the payload of one token with the signature of another."""
    head, payload, _ = factory.token(sub="bob").split(".")
    return f"{head}.{payload}.{factory.token().rpartition('.')[2]}"


Make = Callable[[TokenFactory], str]
TOKENS: dict[str, Make] = {
    "expired": lambda f: f.token(exp=NOW - 3600, iat=NOW - 7200),
    "not valid yet": lambda f: f.token(nbf=NOW + 3600),
    "for another server": lambda f: f.token(aud="https://other.example.com/mcp"),
    "from an issuer that is not configured": lambda f: f.token(iss=f"{f.issuer}/"),
    "changed after it was signed": with_other_signature,
    "signed with a key that the issuer does not publish": lambda f: f.token(
        header={"kid": "other"}, sign=signer(rsa_key("other"), "RS256")
    ),
    "unsigned (`alg` is `none`)": lambda f: f.token(header={"alg": "none"}),
    "an ID token": lambda f: f.token(header={"typ": "JWT"}, nonce="n"),
    "opaque, from an issuer without introspection": lambda f: "2YotnFZFEjr1zCsicMWpAA",
    "bound to a key (DPoP or a certificate)": lambda f: f.token(cnf={"jkt": "x" * 43}),
    "without a subject": lambda f: f.token(sub=ABSENT),
    "without the claim that names the tenant": lambda f: f.token(org_id=ABSENT),
    "of a tenant that is not configured": lambda f: f.token(org_id="initech"),
    "without a baseline scope": lambda f: f.token(scope="files:read"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bad-tokens")
    with (
        Idp() as idp,
        server_process(
            idp,
            folder,
            [issuer_settings(idp, tenants={"acme": "acme"})],
            # The log has at most five refusals of one address.
            env={"GATEPOST_LISTEN__TRUSTED_PROXIES": "127.0.0.1/32"},
            scopes={"baseline": ["files:write"]},
        ) as server,
    ):
        yield server


def rows() -> dict[str, tuple[str, str, str]]:
    """Return the reason, rule and setting that the page gives for each token."""
    section = PAGE.split("## Fourteen bad tokens")[1].split("\n## ")[0]
    return {
        token.strip(): (reason, rule.strip(), setting or "")
        for token, reason, rule, setting in ROW.findall(section)
    }


@pytest.mark.parametrize("token", TOKENS)
def test_the_page_has_the_reason_and_rule_that_doctor_and_log_print(
    server: ServerProcess, token: str
) -> None:
    """The log of the running server and `gatepost doctor --config` match the table."""
    reason, rule, setting = rows()[token]
    encoded = TOKENS[token](TokenFactory(server.idp.issuer("main"), server.client.resource))
    config = str(server.folder / "gatepost.toml")

    result = CliRunner().invoke(command, ["--config", config, "--token", encoded])
    peer = ("X-Forwarded-For", f"192.0.2.{list(TOKENS).index(token)}")
    answer = server.client.call(encoded, "whoami", fields=[peer])

    assert result.exit_code == 1
    printed = dict(re.findall(r"^(\w+): +(.*)$", result.output, re.MULTILINE))
    assert (printed["reason"], printed["rule"], printed.get("setting", "")) == (
        reason,
        rule,
        setting,
    )
    assert answer.status in (401, 403)
    request = answer.field("x-request-id")
    eventually(lambda: str(request) in server.process.output, within=10)
    (event,) = [
        event
        for line in server.process.output.splitlines()
        if line.startswith("{") and (event := json.loads(line)).get("request_id") == request
        if event["event"] == "token_refused"
    ]
    assert (event["reason"], event["rule"], event.get("setting", "")) == (reason, rule, setting)
    assert encoded not in server.process.output


@pytest.mark.parametrize("claim", ["iss", "aud"])
def test_doctor_shows_the_issuer_or_audience_that_is_refused(
    server: ServerProcess, claim: str
) -> None:
    """An operator compares it with the configuration, and need not decode the token."""
    factory = TokenFactory(server.idp.issuer("main"), server.client.resource)
    values = {"iss": "https://other.example.com\x1b[2J", "aud": ["api://7", "https://b.example"]}
    config = str(server.folder / "gatepost.toml")
    token = factory.token(sub="person-7", **{claim: values[claim]})
    result = CliRunner().invoke(command, ["--config", config, "--token", token])
    shown = {"iss": "https://other.example.com\\x1b[2J", "aud": '["api://7","https://b.example"]'}

    assert f"value:   {shown[claim]}\n" in result.output
    assert "person-7" not in result.output
    assert token not in result.output


def test_the_page_has_a_row_for_each_bad_token() -> None:
    """It has fourteen rows, one for each token of this file."""
    assert rows().keys() == TOKENS.keys()
    assert len(TOKENS) == 14


def test_doctor_reports_a_token_without_a_scope_that_a_tool_needs(server: ServerProcess) -> None:
    """The token is accepted, but its caller sees no tools."""
    factory = TokenFactory(server.idp.issuer("main"), server.client.resource)
    server.write({"scopes": {"baseline": ["openid"]}})
    config = str(server.folder / "gatepost.toml")
    try:
        outputs = [
            CliRunner().invoke(command, ["--config", config, "--token", factory.token(scope=scope)])
            for scope in ("openid profile", "openid files:write")
        ]
    finally:
        server.write({"scopes": {"baseline": ["files:write"]}})

    assert [output.exit_code for output in outputs] == [0, 0]
    assert "The token has no scope that a tool needs" in outputs[0].output
    assert "files:write" in outputs[0].output.rpartition("one of:")[2]
    assert "no scope" not in outputs[1].output
