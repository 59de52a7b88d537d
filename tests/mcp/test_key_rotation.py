"""What clients carry for us stays good while the key that sealed it is in the ring."""

from pathlib import Path

import pytest

from gatepost import CallContext, Pack
from gatepost.secrets.keyring import KeyRing, create, rotate
from tests.support.client_requests import (
    CONFIRMATION,
    ROUNDS,
    call_with_responses,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient

listed = Pack("listed")

for number in range(3):

    @listed.tool(name=f"tool_{number}")
    async def tool(ctx: CallContext) -> None:
        """Do nothing."""


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    create(tmp_path / "keyring.json")
    return tmp_path / "keyring.json"


def replica(ring: Path) -> EndpointClient:
    """Return a replica that has read the ring in its present state."""
    keyring = KeyRing.load(f"file:{ring}")
    return EndpointClient([*ROUNDS.tools.values(), *listed.offers], keyring=keyring, page_size=2)


@pytest.mark.requirement("M-13")
async def test_m_13_a_round_trip_continues_after_a_rotation(ring: Path) -> None:
    """A replica that has not yet read the new ring accepts the new state, too."""
    before = replica(ring)
    asked_before = await call_with_responses(before, "purge")
    rotate(ring, keep=1)
    after = replica(ring)
    asked_after = await call_with_responses(after, "purge")

    assert (
        result_text(await next_round(after, "purge", asked_before, CONFIRMATION))
        == "accept ok=True"
    )
    before.keyring.reread()
    assert (
        result_text(await next_round(before, "purge", asked_after, CONFIRMATION))
        == "accept ok=True"
    )


@pytest.mark.requirement("M-06", "C-09")
async def test_m_06_a_state_or_cursor_of_a_removed_key_is_refused(ring: Path) -> None:
    """The error is that of a state without a seal."""
    before = replica(ring)
    request = await call_with_responses(before, "purge")
    cursor = (await before.ask("tools/list")).json["result"]["nextCursor"]
    rotate(ring, keep=1)
    rotated = replica(ring)
    second = await rotated.ask("tools/list", {"cursor": cursor})
    rotate(ring, keep=0)
    gone = replica(ring)

    assert second.json["result"]["tools"]
    assert (await gone.ask("tools/list", {"cursor": cursor})).error == (400, -32602)
    assert (await next_round(gone, "purge", request, CONFIRMATION)).error == (400, -32602)
