"""`gatepost doctor`: the token, and the connections over which it gets one."""

from base64 import b64decode
from pathlib import Path
from urllib.parse import unquote_plus

from click.testing import CliRunner
from starlette.types import Receive, Scope, Send

from gatepost.cli.doctor import command
from gatepost.doctor import DoctorCredentials, examine
from gatepost.doctor.report import Findings
from gatepost.doctor.token import TokenUse, judge_token
from tests.doctor.test_examination import ExaminedServers
from tests.support.issuers import AsgiServer, TokenFactory
from tests.support.measuring import each
from tests.support.proxies import CertificateAuthority

ISSUER, RESOURCE = "https://id.example.com", "https://mcp.example.com/mcp"
OTHER_CLAIMS = {
    "audience": {"aud": "client-7"},
    "issuer": {"iss": "https://other.example.com"},
}


@each("claim", OTHER_CLAIMS)
def test_another_audience_or_issuer_is_a_failure_only_if_the_server_refuses(claim: str) -> None:
    """The configuration may accept both, so the server's answer decides."""
    token = TokenFactory(ISSUER, RESOURCE).token(**OTHER_CLAIMS[claim])
    levels = {}
    for accepted in (True, False):
        findings = Findings()
        judge_token(token, TokenUse(ISSUER, RESOURCE, accepted), 0, findings)
        levels[accepted] = {step.level for step in findings.steps} - {"ok"}

    assert levels == {True: {"warn"}, False: {"fail"}}


def test_a_duplicate_claim_is_a_failure() -> None:
    """The gate refuses such a token, although other parsers read the last value."""
    factory = TokenFactory(ISSUER, RESOURCE)
    token = factory.text("aud", f'"https://other.example.com", "aud": "{RESOURCE}"')
    findings = Findings()
    judge_token(token, TokenUse(ISSUER, RESOURCE, accepted=False), 0, findings)

    [step] = findings.steps
    assert step.level == "fail"
    assert "not strict JSON: duplicate member" in step.detail


class EncodedClient(ExaminedServers):
    """An authorization server whose client id and secret hold characters of both encodings."""

    sent = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/token":
            self.sent = dict(scope["headers"])[b"authorization"].decode()
        await super().__call__(scope, receive, send)


async def test_client_id_and_secret_are_form_encoded() -> None:
    """RFC 6749 section 2.3.1; a colon in the id would change the secret."""
    server = EncodedClient()
    with AsgiServer(server, port=server.port):
        await examine(
            server.url, credentials=DoctorCredentials(client_id="a:b", client_secret="100%&+")
        )
    halves = b64decode(server.sent.removeprefix("Basic ")).decode().split(":")

    assert [unquote_plus(half) for half in halves] == ["a:b", "100%&+"]


def test_a_certificate_of_a_private_authority_is_reported_with_the_option(tmp_path: Path) -> None:
    """With `--ca-bundle` the examination continues."""
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.certify("localhost")
    server = ExaminedServers()
    url = f"https://localhost:{server.port}/mcp"
    with AsgiServer(server, port=server.port, ssl_certfile=certificate, ssl_keyfile=key):
        refused = CliRunner().invoke(command, [url])
        trusted = CliRunner().invoke(command, [url, "--ca-bundle", str(authority.bundle)])
    unreadable = CliRunner().invoke(command, [url, "--ca-bundle", str(tmp_path / "none.pem")])

    assert "no known CA issued its certificate" in refused.output
    assert "network.ca_bundle" in refused.output
    assert f"{url} answers" in trusted.output
    assert unreadable.exit_code == 2
    assert "--ca-bundle" in unreadable.output
