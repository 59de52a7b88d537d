"""A running server that asks its issuer about tokens, with every kind of credentials."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gatepost_authz import signature
from tests.support.issuers import Idp, Receive, Scope, Send, ec_key, respond
from tests.support.server import issuer_settings, running_server


class ScriptedOpaqueTokens:
    """An introspection endpoint that knows one client by its key, and these tokens."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.answers: dict[str, dict[str, Any]] = {}
        self.assertions: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        form = {name: value[0] for name, value in parse_qs(body.decode()).items()}
        status, reply = 401, {"error": "invalid_client"}
        if self.is_ours(form):
            status, reply = 200, self.answers.get(form["token"], {"active": False})
        await respond(send, status, json.dumps(reply).encode())

    def is_ours(self, form: dict[str, str]) -> bool:
        parts = signature.split(form["client_assertion"])
        self.assertions.append(str(parts.unverified["jti"]))
        proved = signature.CHECKS["ES256"].verify(
            parts.signed, ec_key("gate").public_key(), parts.signature
        )
        return proved and parts.unverified["aud"] == self.issuer


def settings(idp: Idp, folder: Path, **changes: Any) -> dict[str, Any]:
    """Return an issuer that is asked with an assertion of our key, which is in a file."""
    file = folder / "gate.pem"
    key = ec_key("gate").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(key)
    introspection = {
        "client_id": "gatepost",
        "method": "private_key_jwt",
        "private_key": f"file:{file}",
        "endpoint": f"{idp.base}/main/introspect",
    }
    table = issuer_settings(idp, tenants={"acme": "acme"})
    return table | {"introspection": introspection | changes.pop("asked", {})} | changes


def test_opaque_tokens_of_people_and_machines_are_accepted(idp: Idp, tmp_path: Path) -> None:
    """Answers without subject and audience, as django-oauth-toolkit writes them."""
    table = settings(
        idp,
        tmp_path,
        preset="django-oauth-toolkit",
        audiences=["app-1", "nightly"],
        clients={"nightly": {"tenant": "acme", "scopes": ["files:read"]}},
    )
    endpoint = ScriptedOpaqueTokens(table["issuer"])
    idp.replace("/main/introspect", endpoint)
    usual = {"active": True, "exp": int(time.time()) + 300}
    alice = usual | {"client_id": "app-1", "username": "alice", "org_id": "acme"}
    endpoint.answers = {
        "of-alice": alice | {"scope": "files:write"},
        "of-nightly": usual | {"client_id": "nightly"},
        "of-a-neighbour": alice | {"client_id": "app-2"},
        "of-nobody": usual | {"client_id": "app-1", "org_id": "acme", "email": "a@example.com"},
    }
    with running_server(idp, [table]) as server:
        answers = {token: server.client.call(token).status for token in endpoint.answers}
        unknown = server.client.call("unknown").status

    assert answers == {
        "of-alice": 200, "of-nightly": 200, "of-a-neighbour": 401, "of-nobody": 401
    }  # fmt: skip
    assert unknown == 401
    assert len(set(endpoint.assertions)) == len(endpoint.assertions) == 5


def test_a_signed_token_that_the_issuer_has_revoked_is_refused(idp: Idp, tmp_path: Path) -> None:
    """Its signature is valid, but introspection decides."""
    table = settings(idp, tmp_path, asked={"when": "always"})
    endpoint = ScriptedOpaqueTokens(table["issuer"])
    idp.replace("/main/introspect", endpoint)
    with running_server(idp, [table]) as server:
        valid, revoked = server.token(jti="good"), server.token(jti="revoked")
        endpoint.answers = {valid: {"active": True}, revoked: {"active": False}}

        statuses = [server.client.call(token).status for token in (valid, revoked, revoked)]

    assert statuses == [200, 401, 401]
    assert len(endpoint.assertions) == 2
