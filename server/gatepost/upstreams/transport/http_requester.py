"""Send HTTP requests to one upstream, signed in with its credential."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gatepost.credentials.credential import OutboundCredential
from gatepost.outbound.http_client import OutboundClient
from gatepost.outbound.streaming import StreamedReply, streamed
from gatepost.tools.context.interfaces import Sending, SignedHeaders
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.transport.failures import reported
from gatepost.upstreams.upstream_server import UpstreamServer

RESERVED_HEADERS = frozenset(
    {"accept", "cookie", "host", "idempotency-key", "last-event-id", "traceparent"}
)
"""Headers that no credential sets; nor any of `content-*`, `mcp-*` and `proxy-*`."""


class HttpRequester:
    """Sends HTTP requests within the rules for outbound requests; repeats one only after a 401."""

    def __init__(
        self,
        client: OutboundClient,
        server: UpstreamServer,
        credential: OutboundCredential,
        principal: tuple[str, ...] | None,
    ) -> None:
        self.server = server
        self._client, self._credential, self._principal = client, credential, principal

    async def credential_version(self) -> str:
        """Return the version of the credential with which the next request is signed in."""
        with reported(self.server.name):
            return (await self._credential.headers(self._principal)).version

    @asynccontextmanager
    async def open(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float,
        correlation: str | None = None,
    ) -> AsyncIterator[StreamedReply]:
        """
        Send one request and yield its answer, whatever its status; raises ConnectionFailure.

        If the server answers 401 and the credential has a newer version, the request is sent once
        more: 401 means that nothing was run.
        """
        sender = self._client.of(self.server.tenant, correlation, upstream=self.server.id)
        with reported(self.server.name):
            for last in (False, True):
                signed = await self._credential.headers(self._principal)
                options: Sending = {
                    "headers": {**self._of(signed), **headers},
                    "timeout_s": timeout_s,
                    "confidential": True,
                }
                if body:
                    options["content"] = body
                async with streamed(sender, method, self.server.url, **options) as reply:
                    retried = (
                        not last and reply.status == 401 and await self._credential.refused(signed)
                    )
                    if not retried:
                        yield reply
                        return

    def _of(self, signed: SignedHeaders) -> dict[str, str]:
        headers = {name.lower(): value for name, value in signed.headers.items()}
        for name in headers:
            if name in RESERVED_HEADERS or name.startswith(("content-", "mcp-", "proxy-")):
                raise ConnectionFailure(
                    "denied",
                    f"The credential for the MCP server {self.server.name} sets the header "
                    f"{name[:100]!r}, which it may not set.",
                )
        return headers
