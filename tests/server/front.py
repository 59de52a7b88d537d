"""An edge as production builds it, over an application that only counts."""

import json
from ipaddress import ip_network

from starlette.types import Receive, Scope, Send

from gatepost.edge.cors import Cors, Origins
from gatepost.edge.edge import Edge, respond
from gatepost.edge.flood import Flood
from gatepost.edge.headers import Headers
from gatepost.edge.limits import Limits
from gatepost.edge.origin import Origin
from gatepost.edge.transport import Transport
from gatepost.telemetry.access import AccessLog

PAGE = b"https://app.example.com"


async def healthy() -> tuple[int, bytes]:
    """A probe's answer."""
    return 200, b'{"status":"ok"}'


class Inner:
    """Stands where the application stands: counts, remembers the scope, answers 200."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.raises: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if self.raises is not None:
            raise self.raises
        if scope["path"] == "/breaks":
            raise KeyError("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln")
        await respond(send, 200, b"{}")


class Front:
    """An edge as production builds it, and what it wrote and let through."""

    def __init__(self) -> None:
        self.inner = Inner()
        self.written: list[bytes] = []
        self.now = 1000.0
        self.flood = Flood(2, monotonic=lambda: self.now)
        self.log = AccessLog("json", self.written.append)
        origins = Origins((PAGE.decode(),), development=False)
        self.edge = Edge(
            self.inner,
            checks=[
                Cors(origins),
                Transport(production=True, proxies=(ip_network("10.0.0.0/8"),)),
                Headers(),
                Limits(max_header_bytes=2000, max_body_bytes=1000),
                self.flood,
                Origin("https://mcp.example.com", origins, development=False),
            ],
            log=self.log,
            probes={"/health": healthy},
            is_endpoint=lambda path: path == "/mcp",
        )

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for batch in self.written for line in batch.splitlines()]
