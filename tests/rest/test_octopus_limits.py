"""What bounds a call of an Octopus agent: its time (O8) and the size of its answer (O9)."""

import socket

import pytest

from tests.rest.conftest import CALL_CANCELLED, CALL_STARTED, RUNS, TOOLS
from tests.support.client import RestClient, request
from tests.support.issuers import Idp
from tests.support.server import issuer_settings, running_server


@pytest.mark.requirement("O8")
@pytest.mark.parametrize(("tool", "default_s"), [("wait_briefly", 30), ("wait_long", 0.2)])
def test_o8_a_call_that_takes_too_long_is_stopped(idp: Idp, tool: str, default_s: float) -> None:
    """The tool's own limit or that of the server ends the tool itself, too."""
    CALL_CANCELLED.clear()
    limits = {"load": [TOOLS], "timeout_s": default_s}
    with running_server(
        idp, [issuer_settings(idp)], tools=limits, tenancy={"create_on_first_use": True}
    ) as server:
        answer = RestClient(server).call(tool)

        assert answer.error == (504, "timeout")
        assert CALL_CANCELLED.wait(5)


@pytest.mark.requirement("O8")
def test_o8_a_disconnect_cancels_the_call(rest_client: RestClient) -> None:
    """No client waits for the answer any more, so Gatepost cancels the call."""
    CALL_STARTED.clear()
    CALL_CANCELLED.clear()
    client = rest_client.server.client
    head = [
        ("Host", client.authority),
        ("Authorization", f"Bearer {rest_client.token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", "2"),
    ]
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(request("POST", "/tool/wait_long/call", head, b"{}"))
        assert CALL_STARTED.wait(60)

    assert CALL_CANCELLED.wait(60)


@pytest.mark.requirement("O9")
def test_o9_a_large_text_is_cut_and_says_so(rest_client: RestClient) -> None:
    """The answer is valid JSON within the limit and says that it was cut."""
    answer = rest_client.call("export_tickets", {"count": 5000})

    assert answer.status == 200
    assert len(answer.raw.body) <= 3000
    assert answer.json["result"].startswith("éé")
    assert "[The answer was cut: it had" in answer.json["result"]


@pytest.mark.requirement("O9")
def test_o9_a_large_structure_is_not_cut_into_another(rest_client: RestClient) -> None:
    """A cut value could violate its schema, so the call fails with the size."""
    answer = rest_client.call("export_rows", {"count": 5000})

    assert answer.error == (500, "internal_error")
    assert "more than the 3000 that can be shown. Ask for less" in answer.json["message"]


@pytest.mark.requirement("O9")
def test_o9_a_write_with_a_too_large_answer_is_reported_as_done(rest_client: RestClient) -> None:
    """If the model were told to correct its arguments, it would repeat the write."""
    before = len(RUNS)
    key = ("Idempotency-Key", "import-1")
    for _ in range(2):
        answer = rest_client.call("import_rows", {"count": 5000}, key)

        assert answer.error == (500, "internal_error")
        assert answer.json["message"].startswith("The call was carried out.")
        assert answer.json["message"].endswith("Do not repeat it: look at what it did instead.")
        assert "field" not in answer.json
    assert len(RUNS) == before + 1
