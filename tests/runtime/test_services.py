"""The services of a server: what a stop does although one of them fails."""

import traceback
from collections.abc import Awaitable, Callable

import pytest

from gatepost.check.pack_loading import load
from gatepost.config.settings import Config, StorageSettings
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing

CONFIG = Config(
    resource="http://127.0.0.1:1/mcp",
    mode="development",
    storage=StorageSettings(database="memory:"),
)
CALLS = ("withdrawn_approvals", "task_runner", "runs", "upstreams")
"""What uses all the rest, and is closed before it."""
CLIENTS = ("keys", "fetcher", "outbound", "exporter")


@pytest.mark.parametrize("failing", [*CALLS, *CLIENTS])
async def test_a_service_that_fails_to_close_leaves_no_other_open(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last audit records are written, and the last lines of the access log."""
    closed: list[str] = []

    def noted(name: str, close: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def closing() -> None:
            closed.append(name)
            await close()
            if name == failing:
                raise OSError("unexpected")

        return closing

    async def stop() -> None:
        loaded_packs = load(CONFIG.tools, CONFIG.packs, CONFIG.network)
        async with opened(CONFIG, loaded_packs, KeyRing.ephemeral()) as services:
            for name in (*CALLS, "audit_writer", *CLIENTS, "log"):
                part = getattr(services, name)
                monkeypatch.setattr(part, "aclose", noted(name, part.aclose), raising=False)

    with pytest.raises(OSError, match="unexpected"):
        await stop()

    first = [*dict.fromkeys(closed)]
    assert first == [*CALLS, "audit_writer", *CLIENTS, "log"]


async def test_the_errors_of_all_services_that_fail_to_close_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is probably the cause of the others."""

    def failing(text: str) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            raise OSError(text)

        return close

    async def stop() -> None:
        loaded_packs = load(CONFIG.tools, CONFIG.packs, CONFIG.network)
        async with opened(CONFIG, loaded_packs, KeyRing.ephemeral()) as services:
            monkeypatch.setattr(services.upstreams, "aclose", failing("the cause"))
            monkeypatch.setattr(services.keys, "aclose", failing("a consequence"))

    with pytest.raises(OSError, match="a consequence") as raised:
        await stop()

    assert "the cause" in "".join(traceback.format_exception(raised.value))
