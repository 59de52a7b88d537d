"""What must not be in any answer, as whoever keeps secrets tells it."""

from collections.abc import Mapping
from typing import Protocol


class Known(Protocol):
    """What must not be in any answer to a tenant."""

    @property
    def version(self) -> int:
        """Another one for other values."""

    @property
    def values(self) -> Mapping[str, str]:
        """Each secret by the name that is shown in its place."""


class Secrets(Protocol):
    """What this process knows of tenants' secrets; one is known before any tool has it."""

    def known(self, tenant: str | None) -> Known:
        """What is known now; None is no tenant."""

    def loaded(self, tenant: str) -> Known | None:
        """The same where that is recent; None: it must be loaded."""

    async def load(self, tenant: str) -> Known:
        """Find out; StoreUnavailable."""


class Nothing:
    """What there is to know where nobody keeps secrets."""

    version = 0
    values: Mapping[str, str] = {}

    def known(self, tenant: str | None) -> Known:
        """Nothing."""
        return self

    def loaded(self, tenant: str) -> Known | None:
        """Nothing."""
        return self

    async def load(self, tenant: str) -> Known:
        """Nothing."""
        return self
