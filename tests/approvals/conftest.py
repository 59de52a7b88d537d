"""Whoever waits looks often, as time moves by hand here."""

import pytest

from gatepost.approvals import standing
from tests.tenancy.conftest import elsewhere, idp

__all__ = ["elsewhere", "idp"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up may be lost in every test; none has to wait a second for that."""
    monkeypatch.setattr(standing, "POLL_S", 0.02)
