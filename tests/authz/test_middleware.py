"""The gate around any ASGI app: what passes, what is refused, and what it leaves behind."""

from typing import Any

import pytest

from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import AuthError, InvalidToken, IssuerUnavailable
from gatepost_authz.middleware import CALLER, BearerMiddleware, caller_of
from gatepost_authz.protected_resource import Resource, Target

METADATA_URL = "https://h/mcp/.well-known/oauth-protected-resource"


class OneTokenVerifier:
    """Knows one token; remembers for which resource it was asked."""

    def __init__(self, answer: TenantContext | AuthError | None = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Target]] = []

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        self.asked.append((token, target))
        if isinstance(self.answer, AuthError):
            raise self.answer
        return self.answer

    def cached(self, token: bytes, target: Target) -> TenantContext | None:
        return None


class RecordingApp:
    """The app behind the gate: remembers every scope that reached it."""

    def __init__(self) -> None:
        self.reached: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope)


ALICE = TenantContext(
    tenant_id="acme",
    issuer="https://id.example",
    subject="alice",
    subject_kind="user",
    resource="https://h/mcp",
    expires_at=2_000_000_000,
    scopes=frozenset({"mcp:read"}),
)


def bearer_gate(
    verifier: OneTokenVerifier, app_behind: RecordingApp, url: str = "https://h/mcp", **more: Any
) -> BearerMiddleware:
    return BearerMiddleware(
        app_behind, resource=Resource(url), verifier=verifier, challenge=Challenge(), **more
    )


async def call(app: Any, scope: dict[str, Any]) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the gate decides before anything is read")

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def http(*values: str, path: str = "/mcp") -> dict[str, Any]:
    headers = [(b"authorization", value.encode()) for value in values]
    return {"type": "http", "path": path, "query_string": b"access_token=good", "headers": headers}


def challenge_in(sent: list[Any]) -> str:
    return str(dict(sent[0]["headers"])[b"www-authenticate"].decode())


@pytest.mark.requirement("A-10", "A-12")
async def test_a_good_token_passes_the_request_on_with_its_caller() -> None:
    """The app behind the gate reads the caller from the scope."""
    app_behind, verifier = RecordingApp(), OneTokenVerifier(ALICE)

    sent = await call(bearer_gate(verifier, app_behind), http("Bearer good"))

    assert sent == []
    assert caller_of(app_behind.reached[0]) is ALICE
    assert app_behind.reached[0][CALLER] is ALICE
    assert [(token, target.url) for token, target in verifier.asked] == [("good", "https://h/mcp")]


@pytest.mark.requirement("A-11", "A-15", "W10", "W22")
@pytest.mark.parametrize(
    ("values", "status"),
    [((), 401), (("Basic YTpi",), 401), (("Bearer",), 400), (("Bearer a", "Bearer a"), 400)],
)
async def test_the_verifier_is_not_called_without_exactly_one_token(
    values: tuple[str, ...], status: int
) -> None:
    """The app is not called either, and the body is not read."""
    app_behind, verifier = RecordingApp(), OneTokenVerifier(ALICE)

    sent = await call(bearer_gate(verifier, app_behind), http(*values))

    assert sent[0]["status"] == status
    assert challenge_in(sent).startswith(f'Bearer resource_metadata="{METADATA_URL}"')
    assert (app_behind.reached, verifier.asked) == ([], [])


@pytest.mark.parametrize(
    ("answer", "status"),
    [(InvalidToken("forged"), 401), (None, 401), (IssuerUnavailable("down"), 503)],
)
async def test_the_app_gets_no_request_that_the_verifier_refuses(
    answer: AuthError | None, status: int
) -> None:
    """The cases are a refusal, an unknown kind of token and an unavailable issuer."""
    app_behind, reasons = RecordingApp(), []
    app = bearer_gate(
        OneTokenVerifier(answer),
        app_behind,
        on_refusal=lambda scope, error: reasons.append(error.reason),
    )

    sent = await call(app, http("Bearer x"))

    assert sent[0]["status"] == status
    assert app_behind.reached == []
    assert reasons == [answer.reason if answer else "unknown_kind"]


async def test_every_request_needs_the_baseline_scopes() -> None:
    """A missing scope leads to a step-up challenge with 403."""
    app_behind = RecordingApp()
    enough = bearer_gate(OneTokenVerifier(ALICE), app_behind, baseline=frozenset({"mcp:read"}))
    short = bearer_gate(
        OneTokenVerifier(ALICE), app_behind, baseline=frozenset({"mcp:read", "mcp:use"})
    )

    assert await call(enough, http("Bearer x")) == []
    sent = await call(short, http("Bearer x"))

    assert sent[0]["status"] == 403
    assert 'scope="mcp:read mcp:use"' in challenge_in(sent)
    assert len(app_behind.reached) == 1


async def test_each_tenant_in_the_path_is_a_resource_of_its_own() -> None:
    """The verifier gets the tenant's resource, and the challenge names its metadata."""
    verifier = OneTokenVerifier(ALICE)
    app = bearer_gate(verifier, RecordingApp(), "https://h/t/{tenant}/mcp")

    await call(app, http("Bearer x", path="/t/acme/mcp"))
    sent = await call(app, http(path="/t/globex/mcp"))

    assert verifier.asked[0][1].url == "https://h/t/acme/mcp"
    assert verifier.asked[0][1].tenant == "acme"
    assert 'resource_metadata="https://h/t/globex/mcp/.well-known/' in challenge_in(sent)


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("values", [(), ("Bearer good",)])
async def test_a_path_without_tenant_is_refused(values: tuple[str, ...]) -> None:
    """Such a path has no audience and no metadata."""
    app_behind, verifier = RecordingApp(), OneTokenVerifier(ALICE)

    sent = await call(
        bearer_gate(verifier, app_behind, "https://h/t/{tenant}/mcp"), http(*values, path="/x")
    )

    assert sent[0]["status"] == 401
    assert "resource_metadata" not in challenge_in(sent)
    assert (app_behind.reached, verifier.asked) == ([], [])


async def test_only_http_and_lifespan_scopes_are_passed_on() -> None:
    """A websocket is closed, and an unknown scope type raises an error."""
    app_behind = RecordingApp()
    app = bearer_gate(OneTokenVerifier(ALICE), app_behind)

    await call(app, {"type": "lifespan"})
    assert [scope["type"] for scope in app_behind.reached] == ["lifespan"]

    assert await call(app, {"type": "websocket", "path": "/mcp", "headers": []}) == [
        {"type": "websocket.close", "code": 1008}
    ]
    with pytest.raises(ValueError, match="webtransport"):
        await call(app, {"type": "webtransport", "path": "/mcp", "headers": []})
    assert len(app_behind.reached) == 1


@pytest.mark.requirement("A6")
def test_caller_of_raises_without_a_caller_from_the_gate() -> None:
    """An app without a gate gets an error instead of a value that is no caller."""
    for scope in ({}, {CALLER: "alice"}, {CALLER: None}):
        with pytest.raises(LookupError):
            caller_of(scope)
