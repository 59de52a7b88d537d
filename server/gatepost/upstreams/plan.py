"""Decide when the catalogue of a server is fetched again."""

import random
from collections.abc import Iterable, Mapping

from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.catalogue_store import catalogue_key
from gatepost.upstreams.upstream_server import UpstreamServer

Principal = tuple[str, ...]

MIN_S = 60.0
"""Minimum time between two fetches, whatever the server says about its lists."""
MAX_S = 86_400.0
ANNOUNCED_S = 5.0
"""Minimum time between two fetches of a server that announces changes."""
POLLED_S = 300.0
"""How often a server is polled that announces changes, but whose stream cannot be followed."""
BUSY_CALLS = 20
"""The number of calls since the last fetch from which a server counts as busy."""
FIRST_RETRY_S = 15.0
LAST_RETRY_S = 900.0
RANDOM = random.SystemRandom()


class PlannedCatalogue:
    """One catalogue that this process looks after."""

    __slots__ = (
        "_ttl_s",
        "attempts",
        "calls",
        "due_at",
        "fetched_at",
        "is_announced",
        "is_polled",
        "principal",
        "server",
    )

    def __init__(self, server: UpstreamServer, principal: Principal | None) -> None:
        self.server, self.principal = server, principal
        self.due_at = 0.0
        self.attempts = 0
        self.calls = 0
        """The calls of this process since the last fetch."""
        self.is_polled = False
        """Whether the server's changes cannot be followed."""
        self.is_announced = False
        """Whether the server said that a list changed, since the last fetch began."""
        self.fetched_at = 0.0
        self._ttl_s = MAX_S

    def take(self, catalogue: Catalogue) -> None:
        """Take up the stored catalogue, or one that was just fetched."""
        if catalogue.fetched_at > self.fetched_at:
            self.calls = 0
        self.fetched_at = catalogue.fetched_at
        self._ttl_s = min(MAX_S, max(MIN_S, catalogue.ttl_ms / 1_000))
        if catalogue.failure:
            return  # each process tries again in its own time
        self.attempts = 0
        is_changed = self.server.updated_at > catalogue.fetched_at
        # Catalogues that were fetched together must not all become stale together.
        stale_at = catalogue.fetched_at + self._ttl_s * RANDOM.uniform(0.9, 1.0)
        self.due_at = 0.0 if is_changed else stale_at

    def is_due(self, now: float) -> bool:
        """Return whether the catalogue is to be fetched."""
        age = now - self.fetched_at
        is_early = self.calls >= BUSY_CALLS and age >= max(MIN_S, self._ttl_s / 2)
        is_polled = self.is_polled and age >= min(POLLED_S, self._ttl_s)
        # A server that announces changes all the time is not polled all the time.
        is_stale = self.is_announced and age >= ANNOUNCED_S
        return self.due_at <= now or (self.attempts == 0 and (is_early or is_polled or is_stale))


def retry_in(attempts: int) -> float:
    """Return the seconds before a failed fetch is tried again."""
    pause = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 10))
    return pause * RANDOM.uniform(0.8, 1.2)


def planned_servers(
    servers: Iterable[UpstreamServer],
    catalogues: Mapping[str, Catalogue | None],
    before: Mapping[str, PlannedCatalogue],
) -> dict[str, PlannedCatalogue]:
    """Return the plan of a tenant, with the state of its previous plan."""
    by_id = {server.id: server for server in servers}
    plan = {
        key: planned
        for key, planned in before.items()
        if planned.principal is not None and by_id.get(planned.server.id) == planned.server
    }
    for server in by_id.values():
        if server.catalogue != "shared":
            continue
        shared = before.get(catalogue_key(server.id, None))
        is_kept = shared is not None and shared.server == server
        planned = shared if shared is not None and is_kept else PlannedCatalogue(server, None)
        catalogue = catalogues.get(server.id)
        if catalogue is not None and catalogue.fetched_at > planned.fetched_at:
            planned.take(catalogue)
        plan[server.id] = planned
    return plan


def is_followed(catalogue: Catalogue) -> bool:
    """Return whether a server declares that it announces changes."""
    for name in ("tools", "resources", "prompts"):
        declared = catalogue.capabilities.get(name)
        if isinstance(declared, Mapping) and (
            declared.get("listChanged") is True or declared.get("subscribe") is True
        ):
            return True
    return False
