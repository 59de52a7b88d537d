"""Somebody who decides, and nobody who waits for long."""

import asyncio

import pytest

from gatepost.mcp import client as mcp_client
from tests.policy.waiting.decision_stage import DecisionStage, Paid


@pytest.fixture(autouse=True)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients hear soon that they wait, and nothing was paid yet."""
    monkeypatch.setattr(mcp_client, "SIGN_EVERY_S", 0.02)
    monkeypatch.setattr(mcp_client, "AGAIN_S", 0.01)
    monkeypatch.setattr(Paid, "amounts", [])
    monkeypatch.setattr(Paid, "begun", asyncio.Event())
    monkeypatch.setattr(Paid, "go_on", asyncio.Event())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that its client has to make again waits for a moment only."""
    monkeypatch.setattr(mcp_client, "HOLD_S", 0.002)


@pytest.fixture
def decisions() -> DecisionStage:
    return DecisionStage()
