"""The official Python client, `mcp` 2.x, from the first 401 to a refreshed token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import anyio
import httpx2
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.support.browser import Person

REDIRECT = "http://127.0.0.1:33419/callback"
ANSWER_WITHIN_S = 60


class Wallet:
    """What a client must remember between connections; the SDK calls it a TokenStorage."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Wire:
    """Every request as it went over the wire, secrets left out."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []

    async def record(self, response: httpx2.Response) -> None:
        request = response.request
        form: dict[str, str] = {}
        if request.headers.get("content-type", "").startswith("application/x-www-form"):
            form = dict(parse_qsl(request.content.decode()))
        self.exchanges.append(
            {
                "method": request.method,
                "url": str(request.url),
                "status": response.status_code,
                "grant_type": form.get("grant_type"),
                "resource": form.get("resource"),
                "challenge": response.headers.get("www-authenticate"),
            }
        )


def provider_for(url: str, wallet: Wallet, person: Person) -> OAuthClientProvider:
    """The SDK's OAuth flow, with *person* at its browser."""
    back: list[str] = []

    async def open_browser(authorize: str) -> None:
        back.append(await anyio.to_thread.run_sync(person.visit, authorize))

    async def callback() -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(back.pop()).query).items()}
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="Gatepost's Python test client",
            redirect_uris=[AnyUrl(REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        ),
        wallet,
        redirect_handler=open_browser,
        callback_handler=callback,
    )


@asynccontextmanager
async def connected(
    url: str, auth: httpx2.Auth | None, mode: str, wire: Wire
) -> AsyncIterator[Client]:
    """A client that has settled its era with the server at *url*."""
    hooks = {"response": [wire.record]}
    async with (
        httpx2.AsyncClient(auth=auth, event_hooks=hooks, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def walk(url: str, person: Person, *, mode: str, csv: dict[str, Any]) -> dict[str, Any]:
    """Sign in, list, call, step up, refresh; answers the report that the other clients answer."""
    wallet, wire = Wallet(), Wire()
    auth = provider_for(url, wallet, person)
    with anyio.fail_after(ANSWER_WITHIN_S):
        async with connected(url, auth, mode, wire) as client:
            report = await _use(client, csv)
            # The SDK refreshes by the clock alone: make it believe that the token has run out.
            auth.context.token_expiry_time = 1.0
            report["after_refresh"] = await _text(client, "echo", {"text": "again"})
    assert wallet.tokens is not None
    return {
        **report,
        "callbacks": len(person.asked),
        "granted": wallet.tokens.scope,
        "exchanges": wire.exchanges,
    }


async def _use(client: Client, csv: dict[str, Any]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append({"progress": progress, "total": total})

    report: dict[str, Any] = {
        "protocol": client.protocol_version,
        "tools": [tool.name for tool in (await client.list_tools()).tools],
        "echo": await _text(client, "echo", {"text": "grüß Gott"}),
        "whoami": (await client.call_tool("whoami", {})).structured_content,
    }
    arguments = {"steps": 3, "delay_s": 0.02}
    await client.call_tool("count_slowly", arguments, progress_callback=step)
    report["progress"] = steps
    report["saved"] = await _text(client, "save_csv", csv)
    return report


async def _text(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return "".join(getattr(block, "text", "") for block in result.content)
