"""oidc-provider, a second and independent authorization server, on a free loopback port."""

import contextlib
import hashlib
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import httpx2
from joserfc import jwt
from joserfc.jwk import ECKey

from tests.support.node import command, environment
from tests.support.process import Process

TokenForm = Literal["jwt", "opaque"]

MACHINE = "machine"
RESOURCE_SERVER = "gatepost"
SECRET = "not-a-secret-outside-this-test-run"
CLIENTS = [
    {
        "client_id": MACHINE,
        "client_secret": SECRET,
        "grant_types": ["client_credentials"],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "client_secret_basic",
    },
    {
        "client_id": RESOURCE_SERVER,
        "client_secret": SECRET,
        "grant_types": [],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "client_secret_basic",
    },
]


class ProofKey:
    """A client's key for DPoP (RFC 9449): makes the proof that binds a token to it."""

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256")

    def proof(self, method: str, url: str, *, access_token: str | None = None) -> str:
        """A proof for one request, with `ath` when it accompanies a token (section 4.2)."""
        header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self.key.as_dict(private=False)}
        claims: dict[str, Any] = {
            "htm": method,
            "htu": url,
            "iat": int(time.time()),
            "jti": uuid4().hex,
        }
        if access_token is not None:
            digest = hashlib.sha256(access_token.encode()).digest()
            claims["ath"] = urlsafe_b64encode(digest).rstrip(b"=").decode()
        return jwt.encode(header, claims, self.key)


class AuthorizationServer:
    """A running oidc-provider: its issuer, and tokens without a person."""

    def __init__(self, process: Process, issuer: str) -> None:
        self.process = process
        self.issuer = issuer

    def machine_token(
        self, resource: str, scopes: Sequence[str] = (), *, proof_key: ProofKey | None = None
    ) -> str:
        """An access token by client credentials; with a proof key it is bound to that key."""
        endpoint = f"{self.issuer}/token"
        headers = {"DPoP": proof_key.proof("POST", endpoint)} if proof_key else {}
        answer = httpx2.post(
            endpoint,
            data={
                "grant_type": "client_credentials",
                "resource": resource,
                "scope": " ".join(scopes),
            },
            auth=(MACHINE, SECRET),
            headers=headers,
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["token_type"] == ("DPoP" if proof_key else "Bearer")
        return str(body["access_token"])


@contextlib.contextmanager
def authorization_server(
    resources: Mapping[str, TokenForm],
    *,
    scopes: Sequence[str],
    tenants: Mapping[str, str],
    lifetime_s: int = 300,
    clients: Sequence[Mapping[str, Any]] = (),
) -> Iterator[AuthorizationServer]:
    """
    Run one for the given resources (URL → form of its tokens) until the block ends.

    *tenants* maps account and client ids to the claim `org_id`; the account `alice` is signed in
    and consents without being asked. *clients* (RFC 7591) are known beside the usual ones.
    """
    settings = {
        "resources": dict(resources),
        "scopes": list(scopes),
        "tenants": dict(tenants),
        "clients": [*CLIENTS, *clients],
        "lifetime_s": lifetime_s,
    }
    process = Process(command("authorization_server.mjs", json.dumps(settings)), env=environment())
    try:
        yield AuthorizationServer(process, json.loads(process.next_line())["issuer"])
    finally:
        process.kill()
