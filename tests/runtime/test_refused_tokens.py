"""Why a token was refused: in the log, the metrics and `gatepost doctor`, never at its caller."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from gatepost.audit.events import AuditEvents
from gatepost.audit.record import search
from gatepost.cli.doctor import command
from gatepost.cli.migrate import migrate
from gatepost.cli.revoke import revoke
from gatepost.http.failed_tokens import FailedTokenLimit
from gatepost.runtime import refused_tokens
from gatepost.runtime.refused_tokens import RefusedTokens
from gatepost.storage.audit import AuditQuery
from gatepost.storage.backends import open_records
from gatepost.storage.leases import AUDIT_WRITER, NumberLease
from gatepost.telemetry.metric_families import TOKENS_REFUSED, FixedLabel
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import OFFSETS
from gatepost_authz.errors import InvalidToken
from tests.support import issuers as f
from tests.support.issuers import ABSENT, Idp, TokenFactory
from tests.support.measuring import ManualClock, count_lines, eventually, formatted_logs
from tests.support.server import Server, issuer_settings, running_server

CHOSEN_TEXT = "chosen-by-the-caller"
MAX_STEPS = 32
Make = Callable[[Server], str]


class RefusedTokenCase(NamedTuple):
    """A token, and what is said of it."""

    reason: str
    make: Make
    claim: str = ""
    setting: str = ""
    tenant: str | None = None
    named: bool = True
    """Whether its issuer is."""


def make_with(**changes: Any) -> Make:
    return lambda server: server.token(**changes)


def make_with_times(**seconds_from_now: int) -> Make:
    """Return a function that makes a token with times relative to the call of that function."""
    return lambda server: server.token(
        **{claim: int(time.time()) + seconds for claim, seconds in seconds_from_now.items()}
    )


def unknown_issuer(server: Server) -> str:
    return TokenFactory(f"https://{CHOSEN_TEXT}.example", server.client.resource).token()


def badly_signed_token(server: Server) -> str:
    return server.token(sign=f.signer(f.rsa_key("another"), "RS256"), org_id=CHOSEN_TEXT)


REFUSED_TOKEN_CASES = [
    RefusedTokenCase(
        "unknown_kind",
        lambda server: f"opaque-{CHOSEN_TEXT}",
        "",
        "issuers.introspection",
        named=False,
    ),
    RefusedTokenCase(
        "malformed_token", lambda server: server.token().rpartition(".")[0] + ".", named=False
    ),
    RefusedTokenCase("unknown_issuer", unknown_issuer, "iss", "issuers.issuer", named=False),
    RefusedTokenCase("refused_algorithm", make_with(header={"alg": "HS256"}), "alg", named=False),
    RefusedTokenCase(
        "algorithm_not_allowed", make_with(header={"alg": "ES256"}), "alg", "issuers.algorithms"
    ),
    RefusedTokenCase(
        "wrong_type", make_with(header={"typ": CHOSEN_TEXT}), "typ", "issuers.tokens.types"
    ),
    RefusedTokenCase("bad_signature", badly_signed_token, setting="issuers.jwks_uri"),
    RefusedTokenCase("expired", make_with_times(exp=-600, iat=-900), "exp", "issuers.leeway_s"),
    RefusedTokenCase("not_yet_valid", make_with_times(nbf=600), "nbf", "issuers.leeway_s", "acme"),
    RefusedTokenCase(
        "lives_too_long", make_with_times(exp=10**7), "exp", "issuers.max_lifetime_s", "acme"
    ),
    RefusedTokenCase(
        "missing_claim",
        make_with(client_id=ABSENT),
        "client_id",
        "issuers.tokens.required_claims",
        "acme",
    ),
    RefusedTokenCase("bad_exp", make_with(exp="soon"), "exp", "", "acme"),
    RefusedTokenCase("bad_sub", make_with(sub=" "), "sub", "issuers.tokens.subject_claims", "acme"),
    RefusedTokenCase("bad_scope", make_with(scope=1), "scope", "issuers.tokens.scope_list", "acme"),
    RefusedTokenCase("wrong_kind", make_with(events={}), "events", "issuers.preset", "acme"),
    RefusedTokenCase("sender_constrained", make_with(cnf={}), "cnf", "", "acme"),
    RefusedTokenCase(
        "wrong_audience",
        make_with(aud=f"https://{CHOSEN_TEXT}"),
        "aud",
        "issuers.audiences",
        "acme",
    ),
    RefusedTokenCase("no_tenant", make_with(org_id=ABSENT), "org_id", "issuers.tenant"),
    RefusedTokenCase("bad_tenant", make_with(org_id=["a", "b"]), "org_id", "issuers.tenant"),
    RefusedTokenCase("unknown_tenant", make_with(org_id="zeta"), "", "issuers.tenants"),
    RefusedTokenCase(
        "insufficient_scope", make_with(scope=CHOSEN_TEXT), "scope", "scopes.baseline", "acme"
    ),
]


def settings(idp: Idp) -> list[dict[str, Any]]:
    return [issuer_settings(idp, tenants={"acme": "acme"}, algorithms=["RS256"])]


PUBLIC_REASONS = {"expired", "insufficient_scope"}
"""Words of the public codes and sentences."""
BASELINE = {"scopes": {"baseline": ["files:write"]}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Idp() as idp, running_server(idp, settings(idp), **BASELINE) as server:
        server.client.call(server.token())
        yield server


def events_in(log: str, event: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [entry for entry in events if entry["event"] == event]


def refusal_count(server: Server, reason: str) -> int:
    """Return how often the metric has counted the reason."""
    [label] = TOKENS_REFUSED.labels
    index = cast("FixedLabel", label).values.index(reason)
    return server.services.meter._metrics[OFFSETS[TOKENS_REFUSED.name] + index]


@pytest.mark.parametrize(
    "case", REFUSED_TOKEN_CASES, ids=[case.reason for case in REFUSED_TOKEN_CASES]
)
def test_the_log_names_reason_claim_and_rule(
    server: Server, case: RefusedTokenCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names issuer and tenant only if they are proved, and no value that the caller chose."""
    monkeypatch.setattr(refused_tokens, "MAX_PER_PEER", 10**6)
    monkeypatch.setattr(refused_tokens, "MAX_EVENTS", 10**6)
    before = refusal_count(server, case.reason)

    with formatted_logs("json") as log:
        answer = server.client.call(case.make(server))

    [event] = events_in(log.getvalue(), "token_refused")
    assert event["reason"] == case.reason
    assert event.get("claim", "") == case.claim
    assert event.get("setting", "") == case.setting
    assert event.get("tenant") == case.tenant
    assert event.get("issuer") == (server.idp.issuer("main") if case.named else None)
    assert event["rule"].endswith(".")
    assert event["request_id"] == dict(answer.headers)["x-request-id"]
    assert event["peer"] == "127.0.0.1"
    assert CHOSEN_TEXT not in json.dumps(event)
    assert refusal_count(server, case.reason) == before + 1
    assert case.reason not in str(answer) or case.reason in PUBLIC_REASONS


def test_a_refused_token_with_a_valid_signature_is_recorded(server: Server) -> None:
    """The dashboard shows the record; a token with a bad signature is on no tenant's record."""
    refusals_of = server.services.refusals
    refusals_of._window_ends = 0.0
    server.client.call(make_with_times(exp=10**7)(server))
    server.client.call(badly_signed_token(server))
    audit_store = server.services.audit_writer.store

    def outcomes() -> set[str]:
        work = search(audit_store, "acme", AuditQuery(kind="token"))
        return {record.outcome for record in server.run(work)}

    eventually(lambda: "lives_too_long" in outcomes(), within=10)
    assert "bad_signature" not in outcomes()


def test_a_request_without_a_token_is_no_refused_token(server: Server) -> None:
    """Every client begins with such a request."""
    with formatted_logs("json") as log:
        assert server.client.call(None).status == 401

    assert not events_in(log.getvalue(), "token_refused")


@pytest.mark.parametrize(
    "case", REFUSED_TOKEN_CASES, ids=[case.reason for case in REFUSED_TOKEN_CASES]
)
def test_the_doctor_names_the_same_reason_as_the_log(
    server: Server, case: RefusedTokenCase, tmp_path: Path
) -> None:
    """It uses the same configuration, names the setting to change, and hides the token."""
    token = case.make(server)

    done = examined(server, tmp_path, token)

    assert done.exit_code == 1, done.output
    lines = dict(line.split(":", 1) for line in done.output.splitlines() if ":" in line)
    fields = {name: value.strip() for name, value in lines.items()}
    assert fields["reason"] == case.reason
    assert fields.get("claim", "") == case.claim
    assert fields.get("setting", "") == case.setting
    assert fields.get("tenant") == case.tenant
    assert fields["do"].endswith(".")
    assert token not in done.output


def test_the_doctor_names_the_tenant_of_an_accepted_token(server: Server, tmp_path: Path) -> None:
    """It reads the token from standard input."""
    done = examined(server, tmp_path, server.token())

    assert done.exit_code == 0, done.output
    assert "The token is accepted." in done.output
    assert "acme" in done.output


def test_the_doctor_checks_revocations(server: Server, tmp_path: Path) -> None:
    """It reads them from the database, as running servers do."""
    token, folder = server.token(), tmp_path / "my data"  # with a blank, which a URL escapes
    folder.mkdir()
    assert "were not checked" in examined(server, folder, token).output
    path = configured_reasons(server, folder)
    CliRunner().invoke(migrate, ["--config", str(path)], catch_exceptions=False)

    done = CliRunner().invoke(revoke, ["--config", str(path), "--tenant", "acme"])

    assert done.exit_code == 0, done.output
    judged = examined(server, folder, token)
    assert judged.exit_code == 1, judged.output
    assert "reason:  revoked" in judged.output
    assert "tenant:  acme" in judged.output


@pytest.mark.parametrize("processes", [1, 2])
def test_the_doctor_warns_about_servers_that_count_limits_separately(
    server: Server, tmp_path: Path, processes: int
) -> None:
    """They share the database, and there is no shared store."""
    configured_reasons(server, tmp_path)

    async def serve() -> None:
        async with aclosing(await open_records(f"sqlite:///{tmp_path}/none.db")) as records:
            for _ in range(processes):
                numbered = SimpleNamespace(number=1)
                await NumberLease(records, AUDIT_WRITER, numbered, clock=time.time).take()

    asyncio.run(serve())
    output = examined(server, tmp_path, server.token()).output

    assert ("set storage.shared" in output) == (processes > 1), output


def configured_reasons(server: Server, folder: Path) -> Path:
    """Write and return the server's configuration, with a database of its own."""
    port = server.client.resource.split(":")[2].split("/")[0]
    [table] = settings(server.idp)
    path = folder / "gatepost.toml"
    path.write_text(
        f'resource = "http://127.0.0.1:{port}/mcp"\nmode = "development"\n'
        f'[storage]\ndatabase = "sqlite:///{quote(str(folder))}/none.db"\n'
        '[tools]\npacks = ["demo"]\n[scopes]\nbaseline = ["files:write"]\n'
        f'[[issuers]]\nissuer = "{table["issuer"]}"\nalgorithms = ["RS256"]\n'
        'tenant = { claim = "org_id" }\ntenants = { acme = "acme" }\n'
    )
    return path


def examined(server: Server, folder: Path, token: str) -> Any:
    """Return the doctor's result for the token, which it reads from its standard input."""
    path = configured_reasons(server, folder)
    return CliRunner().invoke(command, ["--config", str(path), "--token", "-"], input=token + "\n")


def many_refused_tokens(clock: ManualClock) -> RefusedTokens:
    async def note(*args: Any, **kwargs: Any) -> None:
        return None

    audit_events = cast("AuditEvents", SimpleNamespace(note=note))
    return RefusedTokens(Meter.unshared(), FailedTokenLimit(0), audit_events, monotonic=clock)


async def test_a_flood_cannot_fill_the_log() -> None:
    """Per minute the log takes a few refusals per peer, and not many in all; it counts the rest."""
    clock = ManualClock(100.0)
    heard = many_refused_tokens(clock)
    with formatted_logs("json") as log:
        for at in range(1_000):
            for host in ("10.0.0.1", f"10.1.{at // 250}.{at % 250}"):
                scope = {"type": "http", "client": (host, 1)}
                heard.by_gate(scope, InvalidToken("bad_signature"))
        heard.tell_left_out()

        events = events_in(log.getvalue(), "token_refused")
        assert len(events) == refused_tokens.MAX_EVENTS
        assert sum(event["peer"] == "10.0.0.1" for event in events) == refused_tokens.MAX_PER_PEER
        [rest] = events_in(log.getvalue(), "token_refusals_left_out")
        assert rest["count"] == 2_000 - refused_tokens.MAX_EVENTS
        assert len(heard._logged) <= refused_tokens.MAX_EVENTS

        clock.now += refused_tokens.WINDOW_S
        heard.by_gate({"type": "http", "client": ("10.0.0.1", 1)}, InvalidToken("bad_signature"))
        assert len(events_in(log.getvalue(), "token_refused")) == refused_tokens.MAX_EVENTS + 1
    await asyncio.sleep(0)


async def test_one_refusal_of_a_flood_costs_a_few_steps() -> None:
    """Strangers decide how many there are, so none of them looks anything up one by one."""
    heard = many_refused_tokens(ManualClock(100.0))
    scope = {"type": "http", "client": ("10.0.0.1", 1)}
    for _ in range(refused_tokens.MAX_PER_PEER + 1):
        heard.by_gate(scope, InvalidToken("malformed_token"))

    assert (
        count_lines(lambda: heard.by_gate(scope, InvalidToken("revoked_or_suspended"))) <= MAX_STEPS
    )
