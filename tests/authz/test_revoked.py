"""A token that was taken back: refused where the verdict is made, and nothing remembers it."""

import asyncio

import msgspec
import pytest

from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import RevokedToken
from gatepost_authz.verdict_cache import VerdictCache, verdict_on
from gatepost_authz.verifier import key_of
from tests.authz.conftest import NOW, RESOURCE, OpaqueTokenGate, until
from tests.authz.test_verdict_cache import CALLER, Versions

pytestmark = pytest.mark.requirement("CO1")


def refuse(caller: TenantContext) -> None:
    raise RevokedToken


def refuse_all(opaque_gate: OpaqueTokenGate) -> None:
    """Refuse every token from now on."""
    opaque_gate.verifier.policy = msgspec.structs.replace(opaque_gate.verifier.policy, admit=refuse)


def test_verdicts_of_a_revoked_caller_are_removed_from_the_cache() -> None:
    """Verdicts of other callers stay in the cache."""
    verdicts, keys = VerdictCache(), Versions()
    other_caller = msgspec.structs.replace(CALLER, subject="bob")
    for caller in (CALLER, other_caller):
        key = key_of(caller.subject, RESOURCE, 1)
        verdicts.put(key, verdict_on(caller, keys=keys, version=1, now=NOW))

    verdicts.forget(lambda caller: caller.subject == "alice")

    assert verdicts.get(key_of("alice", RESOURCE, 1), now=NOW) is None
    assert verdicts.get(key_of("bob", RESOURCE, 1), now=NOW) is other_caller
    assert len(verdicts) == 1


async def test_a_revocation_removes_a_cached_introspection_response(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The issuer still says that the token is active, and it is refused."""
    assert await opaque_gate.verify() is not None
    refuse_all(opaque_gate)
    opaque_gate.verifier.forget(lambda caller: True)

    assert await opaque_gate.refused(RevokedToken) == "revoked"


async def test_undoing_a_revocation_takes_effect_at_once(opaque_gate: OpaqueTokenGate) -> None:
    """The cached refusal is removed when the revocations change."""
    policy = opaque_gate.verifier.policy
    refuse_all(opaque_gate)
    assert await opaque_gate.refused(RevokedToken) == "revoked"
    opaque_gate.verifier.policy = policy
    opaque_gate.verifier.forget(lambda caller: False)

    assert await opaque_gate.verify() is not None


async def test_a_revocation_during_an_introspection_applies_to_its_response(
    opaque_gate: OpaqueTokenGate,
) -> None:
    """The verdict uses the revocations at the time of the response."""
    opaque_gate.endpoint.open.clear()
    waiting = asyncio.create_task(opaque_gate.refused(RevokedToken))
    await until(lambda: opaque_gate.endpoint.asked)
    refuse_all(opaque_gate)
    opaque_gate.endpoint.open.set()

    assert await waiting == "revoked"
