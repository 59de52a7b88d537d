"""What the server lends to calls beside their own: settings, durable entries, HTTP, secrets."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from gatepost.outbound.client import Client
from gatepost.packs.settings import Packs
from gatepost.stores.api import Entries, Records
from gatepost.tools.api import Call, CallContext, Outcome
from gatepost.tools.surroundings import Outbound

T = TypeVar("T")


class Lending:
    """See `Kit`; one for each configuration in force."""

    def __init__(
        self,
        packs: Packs,
        *,
        records: Records,
        outbound: Client,
        run: Callable[[Call], Awaitable[Outcome]],
    ) -> None:
        self._settings: Mapping[type[Any], Any] = packs.by_type()
        self._records = records
        self._outbound = outbound
        self._run = run

    def http(self, ctx: CallContext) -> Outbound:
        """See `Kit`."""
        return self._outbound.of(ctx.caller.tenant_id, ctx.correlation)

    def entries(self, ctx: CallContext, subject: str) -> Entries:
        """See `Kit`."""
        return self._records.of(ctx.caller.tenant_id).entries(subject)

    def settings(self, kind: type[T]) -> T:
        """See `Kit`."""
        found: T = self._settings[kind]
        return found

    async def secret(self, ctx: CallContext, name: str) -> str:
        """See `Kit`."""
        raise NotImplementedError

    async def call(self, ctx: CallContext, name: str, arguments: Mapping[str, Any]) -> Outcome:
        """See `Kit`."""
        inner = Call(
            caller=ctx.caller,
            name=name,
            arguments=msgspec.json.encode(arguments),
            request_id=ctx.request_id,
            client=ctx.client,
            correlation=ctx.correlation,
        )
        return await self._run(inner)
