"""What is loaded at one replica is there at every other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.packs.openapi.test_tools import INLINE_DOCUMENT, Petstore, petstore
from tests.support.issuers import Idp
from tests.support.replicas import ReplicaProcesses

__all__ = ["petstore"]  # fixtures

pytestmark = pytest.mark.requirement("X7")

SCOPES = "openapi:load openapi:read openapi:call"
TOKEN = "s3cr3t-of-the-petstore"


@pytest.fixture(scope="module")
def replicas(
    petstore: Petstore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaProcesses]:
    """Run two processes on one database."""
    folder = tmp_path_factory.mktemp("replicas")
    storage = {"database": f"sqlite:///{folder / 'shared.db'}"}
    with Idp() as idp:
        pair = ReplicaProcesses(
            idp,
            folder,
            storage,
            tools=Path("gatepost_packs.openapi.tools"),
            network={"allow_hosts": [petstore.place]},
            packs={"openapi": {"literals": True}},
        )
        with pair.running():
            yield pair


def call(
    replicas: ReplicaProcesses, at: int, tool: str, tenant: str = "acme", **arguments: Any
) -> Any:
    """Return that replica's answer to an agent of the tenant."""
    answer = httpx2.post(
        f"http://127.0.0.1:{replicas.ports[at]}/tool/openapi_{tool}/call",
        json=arguments,
        headers={
            "Authorization": f"Bearer {replicas.token(org_id=tenant, scope=SCOPES)}",
            "Host": f"127.0.0.1:{replicas.port}",
        },
        timeout=30,
        trust_env=False,
    )
    return answer.json()


def test_apis_are_shared_by_replicas(replicas: ReplicaProcesses, petstore: Petstore) -> None:
    """A replica uses and replaces an API and its credential after its loader is gone."""
    url = f"{petstore.url}/echo.json"
    loaded = call(replicas, 0, "load", name="echo", spec_url=url, auth_header=f"Bearer {TOKEN}")
    listed = call(replicas, 1, "list_apis")
    called = call(replicas, 1, "call", name="echo", path="/list", method="GET")
    reply = petstore.asked[-1]["headers"]["authorization"]
    other_tenant = call(replicas, 1, "list_apis", tenant="globex")
    call(replicas, 1, "load", name="echo", spec_content=INLINE_DOCUMENT)
    anew = call(replicas, 0, "list_endpoints", name="echo")
    replicas.kill(1)
    answer = call(replicas, 0, "get_operation", name="echo", path="/users", method="GET")

    assert listed == {"apis": [loaded]}
    assert called["status"] == 200
    assert reply == f"Bearer {TOKEN}"
    assert other_tenant == {"apis": []}
    assert anew["total"] == 1
    assert answer["summary"] == "List users"
