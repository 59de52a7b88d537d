"""`/v1/mcp-servers`: a tenant's administrators manage its upstreams, and see no secret."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rest.conftest import Heard, Octopus
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

ADMIN = "gatepost:admin"
SERVERS = "/v1/mcp-servers"
LEARN = {
    "name": "microsoft_learn",
    "description": "Microsoft Learn documentation server",
    "url": "https://learn.microsoft.com/api/mcp",
    "transport_type": "http",
    "api_key": "optional-api-key",
    "headers": {"X-Custom-Header": "value-of-a-header"},
}
"""The example of the seed document."""


class Administrator(Octopus):
    """An administrator of one tenant, who sends JSON."""

    def ask(self, method: str, path: str, body: Any = None) -> Heard:
        sent = b"" if body is None else json.dumps(body).encode()
        raw = self.server.client.send(method, f"{self.base}{path}", (), sent, token=self.token)
        return Heard(raw.status, json.loads(raw.body) if raw.body else None, raw)


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    upstreams = [
        {"name": "for_acme", "tenants": ["acme"], "url": "https://mcp.example.com/mcp"},
        {"name": "for_all", "tenants": ["*"], "url": "https://all.example.com/mcp"},
    ]
    anybody = {"create_on_first_use": True}
    with running_server(
        idp, [issuer_settings(idp)], tenancy=anybody, upstreams=upstreams
    ) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[Administrator]:
    """An administrator of `acme`, whose servers are removed afterwards."""
    administrator = Administrator(server, server.token(scope=ADMIN))
    yield administrator
    for one in administrator.ask("GET", SERVERS).json["data"]:
        if one["source"] == "api":
            assert administrator.ask("DELETE", f"{SERVERS}/{one['id']}").status == 204


@pytest.mark.requirement("E1", "E6", "E7")
def test_the_example_of_the_document_is_added_read_changed_and_removed(
    admin: Administrator,
) -> None:
    """Create, read, disable, delete, with the documented fields, and never a secret."""
    added = admin.ask("POST", SERVERS, LEARN)
    assert added.status == 201, added
    one = f"{SERVERS}/{added.json['id']}"
    read = admin.ask("GET", one)
    listed = admin.ask("GET", SERVERS)

    assert read.json["api_key_set"] is True
    assert read.json["transport_type"] == "http"
    assert read.json["status"] == "active"
    assert read.json["cached_tools"] == []
    assert read.json["tools_cached_at"] is None
    assert read.json["header_names"] == ["x-custom-header"]
    assert read.json["created_at"].endswith("Z")
    for answer in (added, read, listed):
        assert b"optional-api-key" not in answer.raw.body
        assert b"value-of-a-header" not in answer.raw.body
    disabled = admin.ask("PATCH", one, {"status": "disabled"})
    assert (disabled.status, disabled.json["status"]) == (200, "disabled")
    assert admin.ask("DELETE", one).status == 204
    assert admin.ask("GET", one).error == (404, "not_found")
