"""`/readyz`: whether this process can serve callers of a configured issuer."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from gatepost.policy.revocation.watch import Revocations
from gatepost.runtime.stores import StoreState, Watch
from gatepost_authz.issuer_key_sets import USABLE, IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry

SERVING = "This process can answer a call with a token of a configured issuer."
MEANINGS = {
    "database": "The database does not answer, or accepts no audit records.",
    "revocations": "The revocations have not been read from the database yet.",
    "issuer_keys": "The keys of no configured issuer could be fetched; `issuers` says why.",
}
"""The meaning of each word of `missing`."""
STOPPING_RESPONSE = msgspec.json.encode(
    {
        "status": "stopping",
        "meaning": "This process got a signal to stop. It still serves; send requests elsewhere.",
    }
)


class ReadinessChecks(Protocol):
    """The parts of the server that readiness depends on."""

    watch: Watch
    revocations: Revocations
    keys: IssuerKeySets
    issuers: IssuerRegistry
    tenants_apart: bool
    leaving: bool

    def warm(self) -> None:
        """Begin to fetch the issuers' keys."""


def missing(
    stores: Mapping[str, StoreState], *, knows_revocations: bool, issuers: Collection[str]
) -> list[str]:
    """
    Return what prevents this process from serving any call; *issuers* are their states.

    The shared store is not needed: without it, each process counts limits separately. One failed
    issuer of several does not count either, because callers of the others are served.
    """
    lacks = []
    if stores["database"] != "ok":
        lacks.append("database")
    if not knows_revocations:
        lacks.append("revocations")
    if issuers and not USABLE.intersection(issuers):
        lacks.append("issuer_keys")
    return lacks


async def readiness(parts: ReadinessChecks, *, insecure_dev_auth: bool) -> tuple[int, bytes]:
    """Return the status and body of `/readyz`, without secrets or caller data."""
    if parts.leaving:
        return 503, STOPPING_RESPONSE
    stores = await parts.watch.states()
    issuers = parts.issuers.issuers
    states = [(issuer.settings.issuer, parts.keys.state_of(issuer)) for issuer in issuers]
    lacks = missing(
        stores,
        knows_revocations=parts.revocations.is_ready,
        issuers=[state for _, state in states],
    )
    if "issuer_keys" in lacks:
        # Without calls, only probes fetch the keys. Fetches are rate limited, however often probes
        # come.
        parts.warm()
    report: dict[str, object] = {
        "status": "unavailable" if lacks else "ok",
        "meaning": " ".join(MEANINGS[reason] for reason in lacks) or SERVING,
    }
    if lacks:
        report["missing"] = lacks
    report["stores"] = stores
    if insecure_dev_auth:
        report["insecure_dev_auth"] = True
    if parts.tenants_apart:
        # Issuers of a template contain tenant ids, which a probe must not list.
        report["issuers"] = Counter(state for _, state in states)
    else:
        report["issuers"] = [{"issuer": issuer, "keys": state} for issuer, state in states]
    return 503 if lacks else 200, msgspec.json.encode(report)
