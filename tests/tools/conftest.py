"""Offers of tenants that a test puts there, as if upstreams had them."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from gatepost import CallContext, Pack
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.api import Effects, Offer, Origin, Outcome, Tool
from gatepost.tools.offers import Prompt, Template
from gatepost.tools.tenant_offers import Agent, TenantOffers
from gatepost_authz.caller import TenantContext

CHANGES = Effects(read_only=False, destructive=True, idempotent=False, open_world=True)
"""What a tool counts as whose upstream is not trusted."""
ANY: Mapping[str, Any] = {"type": "object"}


class MemorySource:
    """Has what `put` gave it; loads a tenant's offers once, and fails while it is `down`."""

    def __init__(self) -> None:
        self._stored: dict[str, TenantOffers] = {}
        self._at_hand: dict[str, TenantOffers] = {}
        self.loads: list[str] = []
        self.down = False

    def put(
        self,
        tenant: str,
        *offers: Offer,
        agents: Mapping[str, Agent] | None = None,
        ttl_ms: int | None = None,
    ) -> TenantOffers:
        """Replace what the tenant has."""
        beside = self._stored[tenant] = TenantOffers(offers, agents=agents, ttl_ms=ttl_ms)
        if tenant in self._at_hand:
            self._at_hand[tenant] = beside
        return beside

    def drop(self) -> None:
        """Have nothing at hand any more, as after a restart."""
        self._at_hand.clear()

    def at_hand(self, caller: TenantContext) -> TenantOffers | None:
        """See `OfferSource`."""
        return self._at_hand.get(caller.tenant_id)

    async def load(self, caller: TenantContext) -> TenantOffers:
        """See `OfferSource`."""
        if self.down:
            raise StoreUnavailable("the store is down")
        tenant = caller.tenant_id
        self.loads.append(tenant)
        self._at_hand[tenant] = self._stored.get(tenant, TenantOffers())
        return self._at_hand[tenant]


class ToolUpstream:
    """One server of one tenant; each of its tools answers its *word*."""

    def __init__(self, name: str = "crm", *, server_id: str = "id-1", word: str = "") -> None:
        self.name, self.server_id, self.word = name, server_id, word or name
        self.calls: list[tuple[str, Any]] = []
        self.pack = Pack(f"mcp_{name}")

    @property
    def capability(self) -> str:
        return f"mcp:{self.server_id}"

    def tool(
        self,
        name: str,
        description: str = "Do something.",
        *,
        schema: Mapping[str, Any] = ANY,
        invoke: Callable[[CallContext, Any], Any] | None = None,
        **changes: Any,
    ) -> Tool:
        """A tool that notes its calls, and changes things unless told otherwise."""

        async def answer(ctx: CallContext, arguments: Any) -> Outcome:
            self.calls.append((ctx.caller.tenant_id, arguments))
            return Outcome(({"type": "text", "text": f"{self.word} {name}"},))

        served = f"mcp_{self.name}__{name}"
        made = Pack(self.pack.name).add(
            served, description=description, input_schema=schema, invoke=invoke or answer
        )
        return replace(
            made, **({"effects": CHANGES, "origin": self.origin(name, description)} | changes)
        )

    def origin(self, key: str, definition: str) -> Origin:
        digest = hashlib.sha256(definition.encode()).hexdigest()
        return Origin(server_id=self.server_id, server=self.name, key=key, digest=digest)

    def others(self) -> tuple[Offer, ...]:
        """What was added to its pack beside tools; completers and listers stay as they are."""
        kept = (self.pack.documents, self.pack.templates, self.pack.prompts)
        return tuple(self._own(one) for kind in kept for one in kind.values())

    def _own(self, offer: Offer) -> Offer:
        own = replace(offer, origin=self.origin(offer.key, offer.description))
        assert not isinstance(own, Prompt | Template) or own.origin is not None
        return own
