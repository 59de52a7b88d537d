"""A server says no secret that it knows: by each protocol, in each place, in each encoding."""

import json
import logging
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from gatepost.redaction.redactor import Redactor
from gatepost.telemetry.logs import LogFormat
from tests.redaction.conftest import KEPT_TEXT
from tests.redaction.test_encodings import FORMS, leaks
from tests.redaction.test_split import (
    SECRETS,
    EchoServer,
    echo_server,
    listed_resources,
    read_resource,
    texts,
)
from tests.support.measuring import count_lines, each, eventually, formatted_logs

SECRET_VALUE = SECRETS["acme"]["API_KEY"]
REDACTION_MARK = "[REDACTED:API_KEY]"
Said = Callable[[EchoServer, str], str]


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with echo_server() as server:
        yield server


def completion_result(server: EchoServer, text: str) -> str:
    argument = {"name": "text", "value": text}
    reference = {"type": "ref/prompt", "name": "tell"}
    return server.mcp("completion/complete", ref=reference, argument=argument)


def prompt_result(server: EchoServer, text: str) -> str:
    return server.mcp("prompts/get", name="tell", arguments={"text": text})


def replayed_answer(server: EchoServer, text: str) -> str:
    key = ("Idempotency-Key", f"key-{hash(text)}")
    first = server.rest("say_once", key, text=text)
    assert server.rest("say_once", key, text=text) == first
    return first


OUTPUT_CHANNELS: dict[str, Said] = {
    "text": lambda server, text: server.call("say", text=text),
    "structured value": lambda server, text: server.call("say_rows", text=text),
    "blocks": lambda server, text: server.call("say_blocks", text=text),
    "two blocks": lambda server, text: server.call("say_halves", text=text),
    "unknown prompt": lambda server, text: server.mcp("prompts/get", name=f"x{text}"),
    "unknown resource": lambda server, text: server.mcp("resources/read", uri=f"parrot:{text}"),
    "failure": lambda server, text: server.call("fail", text=text),
    "error": lambda server, text: server.call("refuse", text=text),
    "refused argument": lambda server, text: server.call("pick", text=text),
    "progress and log": lambda server, text: server.call("report", text=text),
    "question": lambda server, text: server.call("ask", text=text),
    "task": lambda server, text: server.task(text=text),
    "failed task": lambda server, text: server.task(text=text, fails=True),
    "resource": read_resource,
    "list of resources": listed_resources,
    "prompt": prompt_result,
    "completion": completion_result,
    "text in a session": lambda server, text: server.old("say", text=text),
    "progress in a session": lambda server, text: server.old("report", text=text),
    "REST text": lambda server, text: server.rest("say", text=text),
    "REST value": lambda server, text: server.rest("say_rows", text=text),
    "REST blocks": lambda server, text: server.rest("say_blocks", text=text),
    "REST failure": lambda server, text: server.rest("fail", text=text),
    "REST error": lambda server, text: server.rest("refuse", text=text),
    "REST refused argument": lambda server, text: server.rest("pick", text=text),
    "REST replay": replayed_answer,
}
FORMS_EVERYWHERE = ("as it is", "base64, one byte before", "percent")


@pytest.mark.requirement("P13")
@each("form", FORMS_EVERYWHERE)
@each("channel", OUTPUT_CHANNELS)
def test_no_output_shows_a_secret(server: EchoServer, channel: str, form: str) -> None:
    """An output does not show even half of a secret, and names the secret instead."""
    row = FORMS[form]

    answer = texts(OUTPUT_CHANNELS[channel](server, row.encode(SECRET_VALUE)))

    assert not leaks(SECRET_VALUE, row, answer), answer
    assert REDACTION_MARK in answer


@pytest.mark.requirement("P13")
@each("form", FORMS)
def test_no_encoding_of_a_secret_gets_through(server: EchoServer, form: str) -> None:
    """This holds for both protocols, in texts and in structured values."""
    row = FORMS[form]
    secret = "PIN" if form == "over several lines" else "API_KEY"
    value = SECRETS["acme"][secret]
    written = row.encode(value)

    for channel in ("text", "structured value", "blocks", "REST text", "REST value"):
        answer = texts(OUTPUT_CHANNELS[channel](server, written))

        assert not leaks(value, row, answer), (channel, answer)
        assert f"[REDACTED:{secret}]" in answer


@pytest.mark.requirement("P13")
@each("written", FORMS_EVERYWHERE)
@each("tool", ["crash", "forget"])
@each("form", ["json", "console"])
def test_the_log_holds_no_secret(
    server: EchoServer, form: LogFormat, tool: str, written: str
) -> None:
    """Events of tools and libraries, tracebacks and internal failures are redacted."""
    row = FORMS[written]
    with formatted_logs(form) as log:
        text = row.encode(SECRET_VALUE)
        answer = server.call(tool, text=text) + server.rest(tool, text=text)

    logged = log.getvalue()
    assert not leaks(SECRET_VALUE, row, logged + answer), logged
    assert logged.count(REDACTION_MARK) >= 4
    assert SECRETS["acme"]["PIN"] not in logged


@pytest.mark.requirement("P13")
def test_log_lines_outside_of_calls_are_redacted_for_all_tenants(server: EchoServer) -> None:
    """The server cannot know which tenant such a line belongs to."""
    server.call("say", text="so that both tenants are known")
    server.call("say", text="here", tenant="zeta")
    with formatted_logs("json") as log:
        logging.getLogger("library").error("%s and %s", SECRET_VALUE, SECRETS["zeta"]["OTHER"])

    assert f"{REDACTION_MARK} and [REDACTED:OTHER]" in log.getvalue()


@pytest.mark.requirement("P13")
@pytest.mark.parametrize("form", ["json", "console"])
def test_log_lines_about_a_tenant_are_redacted_for_that_tenant(
    server: EchoServer, form: LogFormat
) -> None:
    """With ten thousand tenants a search for all their secrets would take too long."""
    server.call("say", text="so that both tenants are known")
    server.call("say", text="here", tenant="zeta")
    redaction = server.services.redaction
    with formatted_logs(form) as log:
        logger = logging.getLogger("gatepost.upstreams")
        logger.error(
            "ended: %s", SECRET_VALUE, extra={"tenant": "acme", "reason": [f"said {SECRET_VALUE}"]}
        )
        before = log.getvalue()
        logging.getLogger("library").error("also %s", SECRET_VALUE, extra={"tenant": "zeta"})
        few = count_lines(lambda: logger.error("ended", extra={"tenant": "acme"}))
        for number in range(20):
            version = -1 - number
            redaction._redactors[version] = Redactor({"KEY": f"a-secret-of-{number}"})
        many = count_lines(lambda: logger.error("ended", extra={"tenant": "acme"}))
        for number in range(20):
            del redaction._redactors[-1 - number]

    assert before.count(REDACTION_MARK) == 2
    assert SECRET_VALUE not in log.getvalue()
    assert many <= few * 1.2


@pytest.mark.requirement("P13")
def test_a_nested_call_does_not_end_the_redaction_of_its_callers_secrets(
    server: EchoServer,
) -> None:
    """Its secret arguments are still redacted in what it logs after the nested call."""
    with formatted_logs("json") as log:
        answer = server.call("shared_store", token="only-of-this-call", text="inner text")

    assert "inner text" in answer
    assert "only-of-this-call" not in log.getvalue() + answer
    assert "used [REDACTED:TOKEN]" in log.getvalue()


@pytest.mark.requirement("P13")
def test_log_lines_of_background_work_are_redacted_for_all_tenants(server: EchoServer) -> None:
    """A connection that one tenant's call opened serves others later."""
    KEPT_TEXT[0] = f"{SECRET_VALUE} and {SECRETS['zeta']['OTHER']}"
    server.call("say", text="so that it is known")
    server.call("leave", tenant="zeta")
    with formatted_logs("json") as log:
        server.call("release", tenant="bare")

    assert f"about {REDACTION_MARK} and [REDACTED:OTHER]" in log.getvalue()


@pytest.mark.requirement("P13")
@pytest.mark.parametrize("form", FORMS_EVERYWHERE)
def test_the_access_log_holds_no_secret(server: EchoServer, form: str) -> None:
    """Gatepost redacts the path, and the client's correlation id."""
    row, pin = FORMS[form], SECRETS["acme"]["PIN"]
    before = len(server.log())

    server.rest("say", ("X-Octopus-Correlation-Id", f"a-{pin}"), text="fine")
    answer = server.rest(quote(row.encode(pin), safe=""), text="no such tool")

    eventually(lambda: server.log()[before:].count("[REDACTED:PIN]") == 2, within=20)
    assert not leaks(pin, row, answer + server.log()[before:])


@pytest.mark.requirement("P13")
def test_secrets_of_other_tenants_are_not_redacted(server: EchoServer) -> None:
    """A marker would tell this tenant which texts are secrets of another one."""
    answer = texts(
        server.call("say", text=f"{SECRETS['zeta']['OTHER']} {SECRET_VALUE}", tenant="bare")
    )

    assert SECRETS["zeta"]["OTHER"] in answer
    assert SECRET_VALUE in answer


@pytest.mark.requirement("P13")
def test_a_secret_counts_from_the_moment_it_is_set(server: EchoServer) -> None:
    """It counts for an outcome that an idempotency key had stored before, too."""
    key, value = ("Idempotency-Key", "before-it-was-one"), "was-no-secret-until-now"
    before = texts(server.rest("say_once", key, text=value))

    server.put("acme", "LATER", value)

    assert value in before
    assert texts(server.rest("say_once", key, text=value)) == "result\n~\n[REDACTED:LATER]"


LITERALS = [
    ("a-token-of-my-own", "a-token-of-my-own", "[REDACTED:TOKEN]"),
    ("Bearer a-token-of-my-own", "the a-token-of-my-own", "the [REDACTED:TOKEN]"),
    ("Basic dXNlcjpteS1vd24tcGFzc3dvcmQ=", "my-own-password", "[REDACTED:TOKEN]"),
]


@pytest.mark.requirement("P13", "X4")
@pytest.mark.parametrize(("token", "text", "clean"), LITERALS)
def test_a_literal_secret_argument_is_redacted_in_its_own_call(
    server: EchoServer, token: str, text: str, clean: str
) -> None:
    """The marker has the argument's name; other calls are not affected."""
    expected = f"[REDACTED:TOKEN] {clean}"
    if token.startswith("B"):
        assert clean in texts(server.rest("use", token=token, text=text))
    else:
        assert expected in texts(server.rest("use", token=token, text=text))
    assert not leaks(token, FORMS["as it is"], server.call("use", token=token, text=text))
    assert text in texts(server.rest("say", text=text))


@pytest.mark.requirement("P13")
def test_a_secret_that_is_named_is_used_and_not_shown(server: EchoServer) -> None:
    """A model can use a secret that it never sees."""
    assert REDACTION_MARK in texts(server.call("use", token="secret:API_KEY", text="x"))


TOKENS = {
    "GITHUB_TOKEN": "ghp_" + "a1B2" * 9,
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
}


@pytest.mark.requirement("P13")
@each("name", TOKENS)
@each("channel", ["text", "structured value", "blocks", "failure", "REST text"])
def test_tokens_of_known_forms_are_redacted_for_every_tenant(
    server: EchoServer, name: str, channel: str
) -> None:
    """They go from the answers of every tenant, even of one without secrets."""
    answer = texts(OUTPUT_CHANNELS[channel](server, TOKENS[name]))

    assert TOKENS[name] not in answer
    assert f"[REDACTED:{name}]" in answer
    assert f"[REDACTED:{name}]" in server.call("say", text=TOKENS[name], tenant="bare")


def test_only_the_secret_of_an_answer_is_replaced(server: EchoServer) -> None:
    """Only the secret is replaced by its marker."""
    answer = json.loads(server.rest("say_rows", text=SECRET_VALUE))

    assert answer == {
        "rows": [1, REDACTION_MARK],
        REDACTION_MARK: 2.5,
        "inner": {"x": [REDACTION_MARK, None]},
    }
