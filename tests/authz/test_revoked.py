"""A token that was taken back: refused where the verdict is made, and nothing remembers it."""

import asyncio

import msgspec
import pytest

from gatepost_authz.caller import TenantContext
from gatepost_authz.decisions import Decisions, key_of
from gatepost_authz.errors import RevokedToken
from tests.authz.clock import until
from tests.authz.keyset import NOW, RESOURCE
from tests.authz.office import Office
from tests.authz.test_decisions import CALLER, Versions

pytestmark = pytest.mark.requirement("CO1")


def refuse(caller: TenantContext) -> None:
    raise RevokedToken


def shut(office: Office) -> None:
    """From now on nobody passes."""
    office.verifier.policy = msgspec.structs.replace(office.verifier.policy, admit=refuse)


def test_verdicts_are_forgotten_by_whose_they_are() -> None:
    """The others need not be made again."""
    decisions, keys = Decisions(), Versions()
    kept = msgspec.structs.replace(CALLER, subject="bob")
    for caller in (CALLER, kept):
        key = key_of(caller.subject, RESOURCE, 1)
        decisions.put(key, caller, keys=keys, version=1, now=NOW)

    decisions.forget(lambda caller: caller.subject == "alice")

    assert decisions.get(key_of("alice", RESOURCE, 1), now=NOW) is None
    assert decisions.get(key_of("bob", RESOURCE, 1), now=NOW) is kept
    assert len(decisions) == 1


async def test_a_remembered_answer_is_forgotten(office: Office) -> None:
    """The issuer still says that the token is active; that is not the last word here."""
    assert await office.verify() is not None
    shut(office)
    office.verifier.forget(lambda caller: True)

    assert await office.refused(RevokedToken) == "revoked"


async def test_undone_it_is_good_at_once(office: Office) -> None:
    """A refusal is remembered for a while, unless somebody changes the cut-offs."""
    policy = office.verifier.policy
    shut(office)
    assert await office.refused(RevokedToken) == "revoked"
    office.verifier.policy = policy
    office.verifier.forget(lambda caller: False)

    assert await office.verify() is not None


async def test_an_answer_that_comes_too_late_opens_nothing(office: Office) -> None:
    """Asked before and answered after: the verdict is made with what is known then."""
    office.desk.open.clear()
    asking = asyncio.create_task(office.refused(RevokedToken))
    await until(lambda: office.desk.asked)
    shut(office)
    office.desk.open.set()

    assert await asking == "revoked"
