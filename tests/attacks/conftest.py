"""One server per HTTP parser in front of many issuers, for all attacks of a run."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Outcome, Pack
from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.secrets.keyring import KeyRing
from gatepost.tools.offers.offer import Tool
from gatepost_authz import keyset
from gatepost_authz.caller import TenantContext
from tests.support import issuers as f
from tests.support.client import RawAnswer, exchange, modern_request, request
from tests.support.endpoint import JSON, EndpointClient, Response, a_caller
from tests.support.issuers import (
    ABSENT,
    Idp,
    Signer,
    base64url_number,
    ec_key,
    ed448_key,
    ed_key,
    rsa_key,
    signer,
)
from tests.support.measuring import HOLD_S, shortest_hold
from tests.support.server import CALLS, SAMPLE_TOOLS, Server, running_server

SMALL_MODULI = {512: (1 << 511) | 1, 768: (1 << 767) | 1}


def with_modulus(modulus: int, **members: Any) -> dict[str, Any]:
    return f.jwk(rsa_key()) | {"n": base64url_number(modulus)} | members


def spare_key() -> dict[str, Any]:
    """Return a good key to put beside bad ones, so that the set as a whole is usable."""
    return f.jwk(rsa_key("spare"), "spare")


def key_off_curve() -> dict[str, Any]:
    good = f.jwk(ec_key())
    return good | {"kid": "bad", "y": good["x"]}


def key_at_infinity() -> dict[str, Any]:
    return f.jwk(ec_key()) | {
        "kid": "infinity",
        "x": base64url_number(0, 32),
        "y": base64url_number(0, 32),
    }


def private_keys() -> list[dict[str, Any]]:
    leaked = f.jwk(rsa_key(), "leaked")
    secret = rsa_key().private_numbers().d
    return [leaked | {"d": base64url_number(secret)}, f.jwk(rsa_key("other"), "other")]


ODD_ENTRIES: dict[str, Any] = {
    "akp": {"kty": "AKP", "kid": "bad", "alg": "ML-DSA-44", "pub": "AAAA"},
    "text": "a string",
    "nothing": None,
    "number": 17,
}


def keys_of_one_id() -> list[dict[str, Any]]:
    return [f.jwk(rsa_key()), f.jwk(rsa_key("twin")), f.jwk(ec_key("twin"))]


def odd_key_sets() -> dict[str, list[Any]]:
    """Return the key set of each issuer name; each issuer signs for the tenant of its name."""
    good = f.jwk(rsa_key())
    bad = {
        "ed448": f.jwk(ed448_key()),
        "ed448-too": f.jwk(ed448_key()),
        "p384": f.jwk(ec_key("main", "P-384")),
        "rsa-512": with_modulus(SMALL_MODULI[512]),
        "rsa-768": with_modulus(SMALL_MODULI[768]),
        "rsa-1024": f.jwk(rsa_key("weak", 1024)),
        "rsa-16384": with_modulus((1 << 16383) | 1),
        "exponent-3": f.jwk(rsa_key("three", 2048, 3)),
        "exponent-1": good | {"e": base64url_number(1)},
        "off-curve": key_off_curve(),
        "infinity": key_at_infinity(),
        "use-enc": good | {"kid": "bad", "use": "enc"},
        "key-ops": f.jwk(rsa_key(), "bad", use=ABSENT, key_ops=["encrypt"]),
        "oaep": good | {"kid": "bad", "alg": "RSA-OAEP"},
        "no-kty": f.jwk(rsa_key(), "bad", kty=ABSENT),
        "bad-base64": good | {"kid": "bad", "n": "not base64!"},
    } | ODD_ENTRIES
    return {
        "oct": [{"kty": "oct", "kid": "main", "k": f.base64url_encoded(b"k" * 32)}, spare_key()],
        "ec": [f.jwk(ec_key())],
        "rs-only": [f.jwk(rsa_key(), alg="RS256")],
        "ed": [f.jwk(ed_key())],
        "private": private_keys(),
        "twins": keys_of_one_id(),
    } | {name: [entry, spare_key()] for name, entry in bad.items()}


# Issuers that behave until a test makes them misbehave; each is used by one test on one parser.
FAULTY_ISSUERS = (
    "slow", "drip", "fails-500", "fails-404", "fails-429", "huge", "html", "array", "null",
    "no-list", "no-keys", "doubled", "redirects", "lies", "rotates", "drops", "replaces", "many",
    "leaver", "flood", "outage", "shares-a", "shares-b", "recovers", "offline",
)  # fmt: skip


def configure(idp: Idp) -> list[dict[str, Any]]:
    """Serve the key sets of all issuers and return their `[[issuers]]` tables."""
    tables: list[dict[str, Any]] = [
        {
            "issuer": idp.issuer("main", [f.jwk(rsa_key())]),
            "tenant": {"claim": "org_id"},
            "tenants": {"acme": "acme", "globex": "globex"},
            "roles": {"admin": {"claim": "roles", "value": "admin"}},
        },
        {
            "issuer": idp.issuer("rival", [f.jwk(rsa_key())]),
            "tenant": {"claim": "org_id"},
            "tenants": {"rival-org": "rival"},
        },
    ]
    sets = odd_key_sets() | {name: [f.jwk(rsa_key())] for name in FAULTY_ISSUERS}
    for name, keys in sets.items():
        tables.append({"issuer": idp.issuer(name, keys), "tenant": {"value": name}})
        if name == "shares-b":
            tables[-1]["jwks_uri"] = f"{idp.base}/shares-a/jwks"
    return tables


WELL_KNOWN = "/.well-known/oauth-protected-resource"
Fields = Sequence[tuple[str, str | bytes]]


class AttackedServer(Server):
    """A running server in front of these issuers, and calls to it with any token."""

    @property
    def metadata_path(self) -> str:
        return f"{self.client.path}{WELL_KNOWN}"

    @property
    def inserted_metadata_path(self) -> str:
        return f"{WELL_KNOWN}{self.client.path}"

    def signer_of(self, issuer: str) -> Signer:
        """Return the signer that belongs to an issuer with an EC key."""
        assert issuer == "ec"
        return signer(ec_key(), "ES256")

    def raw(
        self,
        fields: Fields,
        *,
        method: str = "POST",
        target: str | None = None,
        body: bytes | None = None,
        hosts: list[str] | None = None,
        tool: str = "record_call",
        content_type: str = "application/json",
    ) -> RawAnswer:
        """Send one request with exactly these extra fields; by default a call of `record_call`."""
        usual, call = modern_request("tools/call", {"name": tool, "arguments": {}})
        sent = call if body is None else body
        head: list[tuple[str, str | bytes]] = [
            ("Host", host) for host in ([self.client.authority] if hosts is None else hosts)
        ]
        head += [("Content-Type", content_type), ("Connection", "close"), *usual, *fields]
        if not any(name.lower() == "content-length" for name, _ in fields):
            head.append(("Content-Length", str(len(sent))))
        return exchange(self.client.port, request(method, target or self.client.path, head, sent))

    def call(self, token: str, *, fields: Fields = (), tool: str = "record_call") -> RawAnswer:
        return self.raw([("Authorization", f"Bearer {token}"), *fields], tool=tool)

    def refused(
        self,
        token: str,
        *,
        status: int = 401,
        error: str = "invalid_token",
        tool: str = "record_call",
        fields: Fields = (),
    ) -> RawAnswer:
        """Assert that the token is refused, no tool runs, and no answer or log contains it."""
        with self.nothing_runs():
            answer = self.call(token, fields=fields, tool=tool)
        assert answer.status == status, answer
        if status == 403:
            # The message was read, so its sender gets a JSON-RPC answer to it.
            assert json.loads(answer.body)["error"]["data"]["scopes"], answer
        else:
            assert json.loads(answer.body)["error"] == error, answer
        challenge = answer.field("www-authenticate") or ""
        assert challenge.startswith(f'Bearer resource_metadata="{self.client.metadata_url}"')
        assert f'error="{error}"' in challenge
        assert answer.field("cache-control") == "no-store"
        secret = token.rsplit(".", 1)[-1][:40]
        assert len(secret) < 20 or secret not in f"{answer}{self.log()}"
        return answer

    def accepted(
        self,
        token: str,
        *,
        tool: str = "record_call",
        fields: Fields = (),
        headers: dict[str, str] | None = None,
    ) -> TenantContext:
        """Assert that the tool ran exactly once, and return the caller that it saw."""
        before = len(CALLS)
        answer = self.call(token, fields=[*fields, *(headers or {}).items()], tool=tool)
        assert answer.status == 200, answer
        assert json.loads(answer.body)["result"]["content"], answer
        assert len(CALLS) == before + 1
        assert token.rsplit(".", 1)[-1] not in self.log()
        return CALLS[-1]


PARSERS = {"httptools": HttptoolsProtocol, "h11": StrictH11Protocol}


@pytest.fixture(autouse=True)
def short_refresh_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Let an issuer be asked again after half a second instead of five.

    In which order tests meet an issuer decides which of them has to wait for that.
    """
    monkeypatch.setattr(keyset, "INTERVAL_S", 0.5)


@contextmanager
def serving(
    idp: Idp, parser: str, *, keyring: KeyRing | None = None, **settings: Any
) -> Iterator[AttackedServer]:
    """Serve the attacked configuration with *settings* changed."""
    usual: dict[str, Any] = {
        "tools": {"packs": [], "load": [SAMPLE_TOOLS]},
        "scopes": {"obtainable": ["files:read", "files:write"]},
    }
    with running_server(
        idp,
        configure(idp),
        kind=AttackedServer,
        keyring=keyring,
        parser=PARSERS[parser],
        **usual | settings,
    ) as attacked:
        yield attacked


@pytest.fixture(scope="session", params=PARSERS)
def server(request: pytest.FixtureRequest) -> Iterator[AttackedServer]:
    """Serve Gatepost on uvicorn with this HTTP parser."""
    with Idp() as idp, serving(idp, request.param) as server:
        yield server


TOO_DEEP_ERROR = b"nested deeper than"


async def accept_arguments(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(({"type": "text", "text": "taken"},))


def endpoint_of(tools: list[Tool]) -> EndpointClient:
    """Return an endpoint with these tools, which do nothing once their arguments are valid."""
    client = EndpointClient(
        [msgspec.structs.replace(tool, invoke=accept_arguments) for tool in tools]
    )
    client.caller = a_caller(scopes=frozenset[str]().union(*(tool.scopes for tool in tools)))
    return client


async def delays_no_other_call(client: EndpointClient, tool: str, arguments: bytes) -> None:
    fields, body = modern_request("tools/call", {"name": tool, "arguments": "HERE"})
    body = body.replace(b'"HERE"', arguments)
    answers: list[Response] = []

    async def ask() -> None:
        answers.append(await client.send(body, [JSON, *fields]))

    held, limit = await shortest_hold(ask, HOLD_S)
    # Nothing else is wrong with the request, so that the arguments were come to.
    assert all(
        one.status == 413 or TOO_DEEP_ERROR in one.body or "result" in one.json for one in answers
    )
    assert held < limit, (f"{held * 1000:.1f} ms", f"of {limit * 1000:.1f}", arguments[:200])


def list_of(item: bytes, size: int) -> bytes:
    """Return a list of *size* bytes."""
    return b"[" + b",".join([item] * max(size // (len(item) + 1), 1)) + b"]"


def object_of(item: bytes, members: int) -> bytes:
    """Return an object with *members* members."""
    return b"{" + b",".join(b'"k%d":' % n + item for n in range(members)) + b"}"


def tool_of_type(hint: Any) -> Tool:
    """Return a tool that takes an argument of the type *hint*."""

    async def tool(ctx: CallContext, value: Any) -> None:
        """Take it."""

    tool.__annotations__ = {"ctx": CallContext, "value": hint, "return": None}
    ctx, value = inspect.signature(tool).parameters.values()
    own = inspect.Signature([ctx, value.replace(annotation=hint)])
    tool.__signature__ = own  # type: ignore[attr-defined]
    pack = Pack("generated")
    pack.tool()(tool)
    return pack.tools["tool"]


def tool_of_schema(schema: Mapping[str, Any]) -> Tool:
    """Return a tool with that schema for its only argument."""
    root = {"type": "object", "properties": {"value": schema}, "additionalProperties": False}
    pack = Pack("generated")
    pack.add(name="tool", description="Take it.", input_schema=root, invoke=accept_arguments)
    return pack.tools["tool"]
