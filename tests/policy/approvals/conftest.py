"""Whoever waits looks often, as time moves by hand here."""

import pytest

from gatepost.policy.approvals import stage
from tests.tenancy.conftest import elsewhere, idp

__all__ = ["elsewhere", "idp"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up may be lost in every test; none has to wait a second for that."""
    monkeypatch.setattr(stage, "POLL_S", 0.02)
