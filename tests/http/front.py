"""An edge as production builds it, over an application that only counts."""

import json

from starlette.types import Receive, Scope, Send

from gatepost.http.checks import HeadChecks, HeadRules
from gatepost.http.edge import Edge, respond
from gatepost.telemetry.access import AccessLog

PAGE = b"https://app.example.com"
RULES = HeadRules(
    origin="https://mcp.example.com",
    development=False,
    max_header_bytes=2000,
    max_body_bytes=1000,
    allowed_origins=(PAGE.decode(),),
    trusted_proxies=("10.0.0.0/8",),
)


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

    def __init__(self, rules: HeadRules = RULES) -> None:
        self.inner = Inner()
        self.written: list[bytes] = []
        self.log = AccessLog("json", self.written.append)
        self.checks = HeadChecks(rules)
        self.edge = Edge(
            self.inner,
            checks=self.checks,
            log=self.log,
            probes={"/health": healthy},
            is_endpoint=lambda path: path == "/mcp",
        )

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for batch in self.written for line in batch.splitlines()]
