"""What `/readyz` says: ready is a process that can answer a call of a configured issuer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.runtime.readiness import MEANINGS, SERVING, missing
from gatepost_authz import keyset
from tests.support.issuers import Idp, answer
from tests.support.measuring import capture_logs, eventually
from tests.support.server import Server, issuer_settings, running_server
from tests.support.stores import Valkey

WITHIN_S = 30
TABLE = {"acme": "acme"}


@pytest.fixture
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server ask an issuer again without a pause."""
    monkeypatch.setattr(keyset, "INTERVAL_S", 0.05)


def readyz(server: Server) -> tuple[int, dict[str, Any]]:
    response = server.client.send("GET", "/readyz")
    return response.status, json.loads(response.body)


def test_a_server_without_the_keys_of_its_issuer_is_not_ready(idp: Idp) -> None:
    """The probe names the reason, and changes once the issuer answers, without any call."""
    trusted = issuer_settings(idp, tenants=TABLE)
    idp.replace("/main/jwks", answer(503))
    with running_server(idp, [trusted]) as server:
        status, body = readyz(server)
        assert server.client.call(server.token(org_id="acme")).status == 503
        assert (status, body["status"], body["missing"]) == (503, "unavailable", ["issuer_keys"])
        assert body["meaning"] == MEANINGS["issuer_keys"]
        eventually(lambda: readyz(server)[1]["issuers"][0]["keys"] == "status", within=WITHIN_S)

        idp.replace("/main/jwks", None)
        eventually(lambda: readyz(server)[0] == 200, within=WITHIN_S)
        assert "missing" not in readyz(server)[1]
        assert readyz(server)[1]["meaning"] == SERVING
        assert server.client.call(server.token(org_id="acme")).status == 200


def test_an_issuer_outage_after_the_start_keeps_the_server_ready(idp: Idp) -> None:
    """Its keys are cached, so its callers are served."""
    with running_server(idp, [issuer_settings(idp, tenants=TABLE)]) as server:
        eventually(lambda: readyz(server)[0] == 200, within=WITHIN_S)
        idp.replace("/main/jwks", answer(503))

        assert server.client.call(server.token(org_id="acme")).status == 200
        assert readyz(server)[0] == 200


def test_the_probe_names_one_failing_issuer_of_several(idp: Idp) -> None:
    """Callers of the other issuer are served."""
    out = issuer_settings(idp, "out", tenants={"globex": "globex"})
    idp.replace("/out/jwks", answer(503))
    with running_server(idp, [issuer_settings(idp, tenants=TABLE), out]) as server:
        eventually(lambda: readyz(server)[0] == 200, within=WITHIN_S)
        states = {issuer["issuer"]: issuer["keys"] for issuer in readyz(server)[1]["issuers"]}

        assert states[idp.issuer("main")] == "ready"
        assert states[out["issuer"]] != "ready"


STATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "all is well": ({}, []),
    "no shared store": ({"shared": "unavailable"}, []),
    "no database": ({"database": "unavailable"}, ["database"]),
    "no cut-offs": ({"knows_revocations": False}, ["revocations"]),
    "no keys": ({"issuers": ["not_fetched", "status"]}, ["issuer_keys"]),
    "keys of one": ({"issuers": ["status", "ready"]}, []),
    "a template": ({"issuers": ["template"]}, []),
    "introspection": ({"issuers": ["asked"]}, []),
    "no issuer at all": ({"issuers": []}, []),
    "nothing": (
        {"database": "unavailable", "knows_revocations": False, "issuers": ["status"]},
        ["database", "revocations", "issuer_keys"],
    ),
}


@pytest.mark.parametrize("case", STATES.values(), ids=STATES)
def test_readiness_names_each_missing_part(case: tuple[dict[str, Any], list[str]]) -> None:
    """Each case lacks one part."""
    facts, lacks = case
    stores = {"database": facts.get("database", "ok"), "shared": facts.get("shared", "ok")}
    reasons = missing(
        stores,
        knows_revocations=facts.get("knows_revocations", True),
        issuers=facts.get("issuers", ["ready"]),
    )

    assert reasons == lacks
    assert set(reasons) <= MEANINGS.keys()


def events(logs: list[Any]) -> list[str]:
    return [log["event"] for log in logs]


def test_an_outage_of_the_shared_store_is_logged_and_keeps_the_server_ready(
    idp: Idp, tmp_path: Path
) -> None:
    """Calls are served and the process stays ready; the log says it once, and when it is over."""
    limits = {"requests_per_second": 1000, "failures_per_second": 0}
    with Valkey.running() as valkey, capture_logs() as logs:
        storage = {"database": f"sqlite:///{tmp_path}/gatepost.db", "shared": valkey.url()}
        with running_server(
            idp, [issuer_settings(idp, tenants=TABLE)], storage=storage, limits=limits
        ) as server:
            token = server.token(org_id="acme")
            assert server.client.call(token).status == 200
            valkey.stop()
            served = [server.client.call(token).status for _ in range(5)]
            eventually(
                lambda: readyz(server)[1]["stores"]["shared"] == "unavailable", within=WITHIN_S
            )
            status, _ = readyz(server)
            during = events(logs).count("limits_counted_per_process")
            valkey.start()
            eventually(
                lambda: (
                    server.client.call(token).status == 200
                    and "limits_counted_together" in events(logs)
                ),
                within=WITHIN_S,
            )

    assert served == [200] * 5
    assert status == 200
    assert during == 1
