"""Whoever waits looks often, as time moves by hand here."""

from pathlib import Path

import pytest

from gatepost.policy.approvals import stage


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up may be lost in every test; none has to wait a second for that."""
    monkeypatch.setattr(stage, "POLL_S", 0.02)


@pytest.fixture(autouse=True, scope="module")
def in_working_directory(working_directory: Path) -> None:
    """Servers keep their state where they are started."""
