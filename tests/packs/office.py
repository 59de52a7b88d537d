"""Agents who call the same tools by either protocol, and read the answers as a model would."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from gatepost.packs import BUILT_IN
from tests.rest.octopus import Octopus
from tests.support.door import result
from tests.support.idp import Idp
from tests.tenancy.house import House, house, issuer

Protocol = Literal["mcp", "rest"]

KINDS = {
    422: "validation",
    404: "not_found",
    403: "denied",
    409: "conflict",
    429: "rate_limit",
    500: "internal",
    503: "upstream_unavailable",
    504: "timeout",
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

    def __init__(
        self, site: House, root: Path, tenant: str, protocol: Protocol, scopes: str
    ) -> None:
        self.site, self.tenant, self.protocol = site, tenant, protocol
        self.folder = root / tenant
        self.token = site.token(org_id=tenant, scope=scopes)

    def call(self, tool: str, **arguments: Any) -> Heard:
        if self.protocol == "mcp":
            heard = self.site.door.call(self.token, tool, arguments)
            if "error" in (document := json.loads(heard.body)):
                return Heard(failure=document["error"]["message"])  # a rate limit
            answer = result(heard)
            text = "\n\n".join(block["text"] for block in answer["content"])
            if answer["isError"]:
                return Heard(failure=text)
            return Heard(answer.get("structuredContent", text), text)
        told = Octopus(self.site, self.token).call(tool, arguments)
        if told.status != 200:
            return Heard(failure=told.json["message"], kind=KINDS[told.status])
        value = told.json.get("result", told.json)
        return Heard(value, value if isinstance(value, str) else json.dumps(value))

    def listed(self) -> list[str]:
        """The names of the tools it is shown."""
        if self.protocol == "mcp":
            return self.site.door.listed(self.token)
        return Octopus(self.site, self.token).names()


class Office:
    """The running server, its packs, and where it keeps the tenants' files."""

    def __init__(self, site: House, root: Path, packs: list[str]) -> None:
        self.site, self.root, self.packs = site, root, packs
        self._numbers = count(1)
        self._scopes = " ".join(scopes_of(packs))

    def worker(
        self, protocol: Protocol, tenant: str | None = None, scopes: str | None = None
    ) -> Worker:
        """An agent of that tenant, or of a new one; it may do everything unless told."""
        scopes = self._scopes if scopes is None else scopes
        tenant = tenant or f"{protocol}-{next(self._numbers)}"
        return Worker(self.site, self.root, tenant, protocol, scopes)


def scopes_of(packs: list[str]) -> list[str]:
    """All that the offers of these packs need."""
    found = [import_module(BUILT_IN[name].place).pack for name in packs]
    return sorted({scope for pack in found for offer in pack.offers for scope in offer.scopes})


@contextmanager
def open_office(folder: Path, packs: list[str], /, **settings: Any) -> Iterator[Office]:
    """A server with these packs, whose tenants are made by use; *settings* as in `house`."""
    root = folder / "workspaces"
    usual: dict[str, Any] = {
        "tools": {"packs": packs},
        "tenancy": {"create_on_first_use": True},
        "workspace": {"root": str(root)},
    }
    with Idp() as idp, house(idp, [issuer(idp)], **(usual | settings)) as site:
        yield Office(site, Path(settings.get("workspace", {}).get("root", root)), packs)
