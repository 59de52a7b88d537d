"""What the server lends to a call, by the CallContext that asks for it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gatepost.stores.api import Entries
from gatepost.tools.surroundings import Outbound, Sealed

if TYPE_CHECKING:
    from gatepost.tools.api import CallContext, Outcome

Settings = TypeVar("Settings")


class Kit(Protocol):
    """What the server lends to every call; one for all of them, so that a call costs nothing."""

    def http(self, ctx: "CallContext") -> Outbound:
        """HTTP to others on behalf of this call."""

    def entries(self, ctx: "CallContext", subject: str) -> Entries:
        """What the call's tenant keeps of a subject."""

    def settings(self, kind: type[Settings]) -> Settings:
        """A pack's own table of the configuration, by its type."""

    def sealed(self, ctx: "CallContext") -> Sealed:
        """What packs keep sealed for the call's tenant."""

    async def secret(
        self, ctx: "CallContext", name: str, field: str, *, to: str | None, fixed: bool
    ) -> str:
        """
        The value of a secret of the call's tenant, which the argument *field* names; ToolFailure
        when there is none, or when it may not be sent to the URL *to*.
        """

    async def call(self, ctx: "CallContext", name: str, arguments: Mapping[str, Any]) -> "Outcome":
        """Call another tool as this call's caller, through everything a call goes through."""
