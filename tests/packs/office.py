"""Agents who call the same tools by either protocol, and read the answers as a model would."""

import json
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from tests.rest.octopus import Octopus
from tests.support.door import result
from tests.tenancy.house import House

Protocol = Literal["mcp", "rest"]

SCOPES = "files:read files:write memory:read memory:write"

KINDS = {
    422: "validation",
    404: "not_found",
    403: "denied",
    409: "conflict",
    500: "internal",
}


class Heard(msgspec.Struct, frozen=True):
    """What came of a call: its value (structured, else text), or a failure's message."""

    value: Any = None
    text: str = ""
    failure: str | None = None
    kind: str | None = None
    """As REST says it; MCP only has the text."""


class Worker:
    """One agent of one tenant; what it names lies in *folder*."""

    def __init__(self, site: House, root: Path, tenant: str, protocol: Protocol) -> None:
        self.site, self.tenant, self.protocol = site, tenant, protocol
        self.folder = root / tenant
        self.token = site.token(org_id=tenant, scope=SCOPES)

    def call(self, tool: str, **arguments: Any) -> Heard:
        if self.protocol == "mcp":
            answer = result(self.site.door.call(self.token, tool, arguments))
            text = "\n\n".join(block["text"] for block in answer["content"])
            if answer["isError"]:
                return Heard(failure=text)
            return Heard(answer.get("structuredContent", text), text)
        heard = Octopus(self.site, self.token).call(tool, arguments)
        if heard.status != 200:
            return Heard(failure=heard.json["message"], kind=KINDS[heard.status])
        value = heard.json.get("result", heard.json)
        return Heard(value, value if isinstance(value, str) else json.dumps(value))

    def listed(self) -> list[str]:
        """The names of the tools it is shown."""
        if self.protocol == "mcp":
            return self.site.door.listed(self.token)
        return Octopus(self.site, self.token).names()


class Office:
    """The running server and where it keeps the tenants' files."""

    def __init__(self, site: House, root: Path) -> None:
        self.site, self.root = site, root
        self._numbers = count(1)

    def worker(self, protocol: Protocol, tenant: str | None = None) -> Worker:
        """An agent of that tenant, or of a new one."""
        return Worker(self.site, self.root, tenant or f"{protocol}-{next(self._numbers)}", protocol)
