"""The official TypeScript clients, 1.x and 2.x, against `gatepost dev`."""

import pytest

from tests.clients.sdk_clients import CSV, expect_all
from tests.support import node
from tests.support.browser import BrowserUser
from tests.support.commands import Gatepost


@pytest.mark.parametrize(
    ("script", "mode", "protocol"),
    [
        ("client_v1.mjs", "legacy", "2025-11-25"),
        ("client_v2.mjs", "legacy", "2025-11-25"),
        ("client_v2.mjs", "auto", "2026-07-28"),
        ("client_v2.mjs", "2026-07-28", "2026-07-28"),
    ],
)
def test_the_typescript_clients_go_all_the_way(
    dev: Gatepost, script: str, mode: str, protocol: str
) -> None:
    """Discovery, registration, sign-in, tools, step-up and refresh work in both eras."""
    person = BrowserUser("bob")

    report = node.walk_typescript(script, person, url=dev.url, mode=mode, csv=CSV)

    assert report["protocol"] == protocol
    # The metadata name every scope of the tools, and this client asks for all that it reads there.
    expect_all(report, person, dev.url, tenant="globex", steps_up=False)
