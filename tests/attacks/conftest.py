"""One server per HTTP parser in front of many issuers, for all attacks of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from gatepost.check.pack_loading import load
from gatepost.config.settings import Config
from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime.server import bind
from gatepost.secrets.keyring import KeyRing
from gatepost_authz import keyset
from tests.attacks import server
from tests.attacks.server import AttackedServer
from tests.support.issuers import Idp
from tests.support.server import SAMPLE_TOOLS

PARSERS = {"httptools": HttptoolsProtocol, "h11": StrictH11Protocol}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An issuer may be asked again in half a second instead of five (tests/authz/test_keyset.py).

    In which order tests meet an issuer decides which of them has to wait for that.
    """
    monkeypatch.setattr(keyset, "INTERVAL_S", 0.5)


@contextmanager
def serving(
    idp: Idp, parser: str, *, keyring: KeyRing | None = None, **settings: Any
) -> Iterator[AttackedServer]:
    """A running site whose configuration is the attacked one with *settings* changed."""
    sock = bind("127.0.0.1", 0)
    resource = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    tree = {
        "resource": resource,
        "mode": "development",
        "issuers": server.configure(idp),
        "tenancy": {"create_on_first_use": False},
        "tools": {"packs": [], "load": [SAMPLE_TOOLS]},
        "scopes": {"obtainable": ["files:read", "files:write"]},
        "storage": {"database": "memory:"},
        "limits": {"failures_per_second": 0, "requests_per_second": 0},
    } | settings
    config = msgspec.convert(tree, Config)
    toolbox = load(config.tools, config.packs, config.network)
    assert toolbox.problems == ()
    attacked = AttackedServer(
        config, toolbox, sock, parser=PARSERS[parser], keyring=keyring, idp=idp
    )
    with attacked.running():
        yield attacked


@pytest.fixture(scope="session", params=PARSERS)
def site(request: pytest.FixtureRequest) -> Iterator[AttackedServer]:
    """Gatepost on uvicorn with this HTTP parser."""
    with Idp() as idp, serving(idp, request.param) as site:
        yield site
