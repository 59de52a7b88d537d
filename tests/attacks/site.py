"""Gatepost as shipped in front of an identity provider that tests control, and a call to it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gatepost_authz.caller import TenantContext
from tests.support.client import RawAnswer, exchange, request
from tests.support.issuers import Idp
from tests.support.sample_tools import CALLS
from tests.support.tokens import Signer, TokenFactory, ec_key, signer

WELL_KNOWN = "/.well-known/oauth-protected-resource"
Fields = Sequence[tuple[str, str | bytes]]


def tools_call(tool: str) -> tuple[list[tuple[str, str | bytes]], bytes]:
    """The header fields and body of a 2026-07-28 `tools/call` without arguments."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": {}, "_meta": meta},
    }
    fields: list[tuple[str, str | bytes]] = [
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
    ]
    return fields, json.dumps(message).encode()


class Site(NamedTuple):
    """A running server (its resource URL and port), its issuers, and its log so far."""

    idp: Idp
    resource: str
    read_log: Any

    @property
    def authority(self) -> str:
        return urlsplit(self.resource).netloc

    @property
    def origin(self) -> str:
        return f"http://{self.authority}"

    @property
    def path(self) -> str:
        return urlsplit(self.resource).path

    @property
    def port(self) -> int:
        return urlsplit(self.resource).port or 80

    @property
    def metadata_url(self) -> str:
        return f"{self.resource}{WELL_KNOWN}"

    @property
    def metadata_path(self) -> str:
        return f"{self.path}{WELL_KNOWN}"

    @property
    def inserted_metadata_path(self) -> str:
        return f"{WELL_KNOWN}{self.path}"

    def log(self) -> str:
        """Everything the server has written so far."""
        text: str = self.read_log()
        return text

    def tokens(self, issuer: str = "main") -> TokenFactory:
        return TokenFactory(self.idp.issuer(issuer), self.resource)

    def signs(self, issuer: str) -> Signer:
        """The signer that belongs to an issuer with an EC key."""
        assert issuer == "ec"
        return signer(ec_key(), "ES256")

    @contextmanager
    def nothing_runs(self) -> Iterator[None]:
        """No tool runs inside the block."""
        before = len(CALLS)
        yield
        assert len(CALLS) == before, "a tool ran"

    def raw(
        self,
        fields: Fields,
        *,
        method: str = "POST",
        target: str | None = None,
        body: bytes | None = None,
        hosts: list[str] | None = None,
        tool: str = "witness",
        content_type: str = "application/json",
    ) -> RawAnswer:
        """One request with exactly these extra fields; by default a call of the witness tool."""
        usual, call = tools_call(tool)
        sent = call if body is None else body
        head: list[tuple[str, str | bytes]] = [
            ("Host", host) for host in ([self.authority] if hosts is None else hosts)
        ]
        head += [("Content-Type", content_type), ("Connection", "close"), *usual, *fields]
        if not any(name.lower() == "content-length" for name, _ in fields):
            head.append(("Content-Length", str(len(sent))))
        return exchange(self.port, request(method, target or self.path, head, sent))

    def call(self, token: str, *, fields: Fields = (), tool: str = "witness") -> RawAnswer:
        return self.raw([("Authorization", f"Bearer {token}"), *fields], tool=tool)

    def refused(
        self,
        token: str,
        *,
        status: int = 401,
        error: str = "invalid_token",
        tool: str = "witness",
        fields: Fields = (),
    ) -> RawAnswer:
        """The token opens nothing: this refusal, no tool run, nothing of it in answer or log."""
        with self.nothing_runs():
            answer = self.call(token, fields=fields, tool=tool)
        assert answer.status == status, answer
        if status == 403:
            # The message was read, so its sender gets a JSON-RPC answer to it.
            assert json.loads(answer.body)["error"]["data"]["scopes"], answer
        else:
            assert json.loads(answer.body)["error"] == error, answer
        challenge = answer.field("www-authenticate") or ""
        assert challenge.startswith(f'Bearer resource_metadata="{self.metadata_url}"')
        assert f'error="{error}"' in challenge
        assert answer.field("cache-control") == "no-store"
        secret = token.rsplit(".", 1)[-1][:40]
        assert len(secret) < 20 or secret not in f"{answer}{self.log()}"
        return answer

    def accepted(
        self,
        token: str,
        *,
        tool: str = "witness",
        fields: Fields = (),
        headers: dict[str, str] | None = None,
    ) -> TenantContext:
        """The token opens: the tool ran exactly once; answers the caller that it saw."""
        before = len(CALLS)
        answer = self.call(token, fields=[*fields, *(headers or {}).items()], tool=tool)
        assert answer.status == 200, answer
        assert json.loads(answer.body)["result"]["content"], answer
        assert len(CALLS) == before + 1
        assert token.rsplit(".", 1)[-1] not in self.log()
        return CALLS[-1]
