"""Fetch the documents that the configuration names by URL, before the server starts to serve."""

import asyncio
import threading

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost.tools.context.interfaces import OutboundReply
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher

FETCH_S = 15.0
MAX_BYTES = 20_000_000
REDIRECTS = 5
SERVER_TENANT = ""
"""The tenant of the operator's own fetches; no caller has it."""


class RemoteDocuments:
    """Fetch by the rules of `[network]`, as tools do: public addresses and allowed hosts."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __call__(self, url: str) -> bytes:
        """Return the content of *url*; raises ToolFailure with the reason."""
        answer: list[bytes | ToolFailure] = []

        def work() -> None:
            try:
                answer.append(asyncio.run(self._get(url)))
            except ToolFailure as failure:
                answer.append(failure)

        # Use another event loop in a thread, because a reload runs inside an event loop.
        thread = threading.Thread(target=work, name="gatepost-remote", daemon=True)
        thread.start()
        thread.join()
        if not answer:
            raise ToolFailure("upstream_unavailable", "it cannot be fetched")
        if isinstance(answer[0], ToolFailure):
            raise answer[0]
        return answer[0]

    async def _get(self, url: str) -> bytes:
        fetcher = Fetcher(development=False, network=self._network)
        client = OutboundClient(self._network, tls=fetcher.tls)
        try:
            reply: OutboundReply = await client.of(SERVER_TENANT).send(
                "GET", url, timeout_s=FETCH_S, max_bytes=MAX_BYTES, redirects=REDIRECTS
            )
        finally:
            await client.aclose()
            await fetcher.aclose()
        if reply.status != 200 or reply.truncated:
            reason = f"more than {MAX_BYTES} bytes" if reply.truncated else str(reply.status)
            raise ToolFailure("upstream_unavailable", f"it answered {reason}")
        return reply.body
