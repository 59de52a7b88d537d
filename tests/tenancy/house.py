"""A Gatepost of any configuration in front of issuers that tests control."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gatepost.check.pack_loading import load
from gatepost.check.problems import problems
from gatepost.config.settings import Config
from gatepost.runtime.server import bind
from gatepost.runtime.services import Services, keyring_of
from gatepost_authz.config import Problem
from tests.support import tokens as f
from tests.support import witness
from tests.support.calls import CALLS
from tests.support.client import Client
from tests.support.idp import Idp
from tests.support.inside import Inside
from tests.support.tokens import TokenFactory, rsa_key

WITNESS = str(Path(witness.__file__))
ACME = {"claim": "org_id"}
Tree = dict[str, Any]


class House:
    """A running server, the door to it, and who signs for it."""

    def __init__(self, idp: Idp, door: Client, inside: Inside) -> None:
        self.idp, self.door, self.inside = idp, door, inside

    def forge(self, issuer: str = "main", *, tenant: str = "") -> TokenFactory:
        """Tokens of one issuer for the resource, or for the resource of one tenant."""
        return TokenFactory(self.idp.issuer(issuer), self.door.resource.replace("{tenant}", tenant))

    def token(self, issuer: str = "main", *, tenant: str = "", **claims: Any) -> str:
        return self.forge(issuer, tenant=tenant).token(**claims)

    def tenant_of(self, token: str) -> str | None:
        """The tenant that the call of this token ran for; None: it was refused as invalid."""
        before = len(CALLS)
        answer = self.door.call(token)
        if answer.status == 401:
            assert len(CALLS) == before
            return None
        assert answer.status == 200, answer
        assert len(CALLS) == before + 1
        return CALLS[-1].tenant_id

    @contextmanager
    def nothing_runs(self) -> Iterator[None]:
        """No tool runs inside the block."""
        before = len(CALLS)
        yield
        assert len(CALLS) == before, "a tool ran"


def issuer(idp: Idp, name: str = "main", **settings: Any) -> Tree:
    """An `[[issuers]]` table for an issuer that signs with the main key; claims name tenants."""
    url = idp.issuer(name, [f.jwk(rsa_key())])
    return {"issuer": url, "tenant": ACME} | settings


def tree(port: int, issuers: list[Tree], path: str = "/mcp", **settings: Any) -> Tree:
    """A whole configuration for this machine."""
    usual = {
        "resource": f"http://127.0.0.1:{port}{path}",
        "mode": "development",
        "issuers": issuers,
        "tenancy": {"create_on_first_use": False},
        "tools": {"packs": ["demo"], "load": [WITNESS]},
        "storage": {"database": "memory:"},
        "limits": {"failures_per_second": 0, "requests_per_second": 0},
    }
    # Most tests are about what tools do, not about who lets them.
    approvals = {"destructive": "run"} | settings.get("approvals", {})
    return usual | settings | {"approvals": approvals}


def judged(issuers: list[Tree], path: str = "/mcp", **settings: Any) -> list[Problem]:
    """What `gatepost check` finds in that configuration."""
    config = msgspec.convert(tree(8000, issuers, path, **settings), Config)
    return list(problems(config, load(config.tools, config.packs, config.network)))


def errors(issuers: list[Tree], path: str = "/mcp", **settings: Any) -> list[str]:
    """The ids of what keeps that configuration from being served."""
    return [one.id for one in judged(issuers, path, **settings) if one.level == "error"]


@contextmanager
def house(
    idp: Idp,
    issuers: list[Tree],
    path: str = "/mcp",
    *,
    checked: bool = True,
    prepare: Callable[[Services], object] | None = None,
    **settings: Any,
) -> Iterator[House]:
    """Serve that configuration, in which `gatepost check` finds no error (unless told)."""
    sock: socket.socket = bind("127.0.0.1", 0)
    config = msgspec.convert(tree(sock.getsockname()[1], issuers, path, **settings), Config)
    toolbox = load(config.tools, config.packs, config.network)
    found = [one for one in problems(config, toolbox) if one.level == "error"]
    assert bool(found) is not checked, found
    ring = keyring_of(config)
    with Inside(config, toolbox, sock, keyring=ring, prepare=prepare).running() as inside:
        yield House(idp, Client(config.resource), inside)
