"""One issuer's keys over time: rotation, outage, made-up key ids, and requests that go away."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from gatepost_authz.errors import IssuerUnavailable
from gatepost_authz.jwk import VerificationKey, import_set
from tests.authz.conftest import ALLOWED_ALGORITHMS, KeySetBench, key, settled
from tests.support.issuers import ec_key, jwk


@pytest.fixture
async def bench() -> AsyncIterator[KeySetBench]:
    bench = KeySetBench()
    yield bench
    await bench.keys.aclose()


async def unavailable(lookup: "asyncio.Task[tuple[VerificationKey, ...]]") -> str:
    with pytest.raises(IssuerUnavailable) as refusal:
        await asyncio.wait_for(lookup, 20)
    assert refusal.value.retry_after == 5
    return refusal.value.reason


@pytest.mark.requirement("N11")
async def test_a_rotated_key_is_found_by_the_first_request_that_needs_it(
    bench: KeySetBench,
) -> None:
    """If the last fetch is more than five seconds ago, the caller waits for one fetch only."""
    await bench.known()
    await bench.clock.advance(5)
    bench.publisher.keys = (key("new", "other"),)

    assert len(await asyncio.wait_for(bench.ask(), 5)) == 1

    assert bench.publisher.begun == [1000, 1005]


@pytest.mark.requirement("N11")
async def test_a_key_that_rotates_right_after_a_fetch_is_found_within_five_seconds(
    bench: KeySetBench,
) -> None:
    """The request waits for the next fetch instead of failing."""
    await bench.known()
    bench.publisher.keys = (key("new", "other"),)

    lookup = bench.ask()
    await bench.clock.advance(4.9)
    assert not lookup.done()
    await bench.clock.advance(0.1)

    assert lookup.result()
    assert bench.publisher.begun == [1000, 1005]


@pytest.mark.requirement("N11")
async def test_a_fetch_that_began_earlier_does_not_prove_a_key_unknown(bench: KeySetBench) -> None:
    """The answer may be older than the key, so the request waits for the next fetch."""
    bench.publisher.open.clear()
    first = bench.ask("main")
    await settled()
    bench.publisher.keys = (key("new", "other"),)
    lookup = bench.ask()
    await settled()
    bench.publisher.open.set()

    assert await asyncio.wait_for(first, 20)
    await bench.clock.advance(5)

    assert lookup.result()


@pytest.mark.requirement("H05")
async def test_unknown_key_ids_do_not_cause_many_fetches(bench: KeySetBench) -> None:
    """Ten thousand ids in a minute cause a fetch every five seconds; 64 requests wait."""
    await bench.known()
    refused = 0
    for second in range(60):
        lookups = [bench.ask(f"kid-{second}-{n}") for n in range(170)]
        await bench.clock.advance(1)
        refused += sum(task.done() and task.exception() is not None for task in lookups)
        assert sum(not task.done() for task in lookups) <= 64
        assert bench.keys.find("main", "RS256")
    await bench.clock.advance(5)

    assert refused > 9000
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(bench.publisher.begun))
    assert len(asyncio.all_tasks()) < 20


@pytest.mark.requirement("H05")
async def test_the_sixty_fifth_waiting_request_gets_503_with_retry_after(
    bench: KeySetBench,
) -> None:
    """The server does not know yet whether the key exists."""
    await bench.known()
    waiting = [bench.ask(f"kid-{n}") for n in range(64)]
    await settled()

    assert await unavailable(bench.ask("one-more")) == "keys_too_many_waiters"

    await bench.clock.advance(5)
    assert [task.result() for task in waiting] == [()] * 64


@pytest.mark.requirement("H06", "N03")
async def test_known_keys_stay_valid_while_the_issuer_fails(bench: KeySetBench) -> None:
    """A token with an unknown key id gets 503 and never 401."""
    await bench.known()
    bench.publisher.fault = "status"

    lookup = bench.ask()
    await bench.clock.advance(5)

    assert await unavailable(lookup) == "keys_status"
    assert bench.keys.find("main", "RS256")


@pytest.mark.requirement("N03")
async def test_an_unexpected_error_of_a_fetch_leads_to_503(bench: KeySetBench) -> None:
    """Clients keep their token, and the next fetch follows after the usual interval."""
    bench.publisher.fault = "unforeseen"

    with pytest.raises(IssuerUnavailable, match="keys_failed"):
        await bench.ask()

    bench.publisher.fault = ""
    await bench.clock.advance(5.0)
    assert await bench.ask("main")


async def test_known_keys_end_an_hour_after_the_last_successful_fetch(bench: KeySetBench) -> None:
    """An attacker who blocks the issuer must not keep a withdrawn key valid."""
    await bench.known()
    version = bench.keys.version
    bench.publisher.fault = "connect"

    await bench.clock.advance(3599)
    assert bench.keys.find("main", "RS256")
    assert bench.keys.version == version
    await bench.clock.advance(1)

    assert not bench.keys.find("main", "RS256")
    assert bench.keys.version > version


LIFETIMES = [(None, 240), (0.0, 48), (600.0, 480), (1e9, 0.8 * 86_400)]


@pytest.mark.parametrize(("max_age", "refreshed"), LIFETIMES)
async def test_keys_are_refreshed_at_four_fifths_of_their_life(
    bench: KeySetBench, max_age: float | None, refreshed: float
) -> None:
    """A background task refreshes them; a lifetime is between a minute and a day."""
    bench.publisher.max_age = max_age
    await bench.known()

    await bench.clock.advance(refreshed - 1)
    assert len(bench.publisher.begun) == 1
    await bench.clock.advance(1)

    assert bench.publisher.begun == [1000, 1000 + refreshed]


@pytest.mark.requirement("N02")
async def test_without_keys_a_request_fails_at_once_and_schedules_a_fetch(
    bench: KeySetBench,
) -> None:
    """No caller waits for the end of the interval after a failed fetch."""
    bench.publisher.fault = "status"
    assert await unavailable(bench.ask()) == "keys_status"

    assert await unavailable(bench.ask()) == "keys_status"
    bench.publisher.fault = ""
    await bench.clock.advance(5)

    assert bench.publisher.begun == [1000, 1005]
    assert bench.keys.find("main", "RS256")


@pytest.mark.requirement("N02")
async def test_fetches_are_retried_until_the_issuer_recovers(bench: KeySetBench) -> None:
    """The intervals grow to a minute."""
    bench.publisher.fault = "connect"
    bench.keys.warm()
    await bench.clock.advance(300)
    gaps = [later - earlier for earlier, later in itertools.pairwise(bench.publisher.begun)]
    assert gaps == [5, 10, 20, 40, 60, 60, 60]

    bench.publisher.fault = ""
    await bench.clock.advance(60)

    assert bench.keys.find("main", "RS256")


@pytest.mark.requirement("N12")
async def test_removing_a_key_ends_the_verdicts_made_with_it(bench: KeySetBench) -> None:
    """The version of the set increases."""
    bench.publisher.keys = (key(), key("second", "other"))
    await bench.known()
    version = bench.keys.version
    bench.publisher.keys = (key(),)

    await bench.clock.advance(240)

    assert not bench.keys.find("second", "RS256")
    assert bench.keys.find("main", "RS256")
    assert bench.keys.version > version


async def test_adding_a_key_keeps_existing_verdicts(bench: KeySetBench) -> None:
    """A rotation begins with a second key, and existing verdicts stay correct."""
    await bench.known()
    version = bench.keys.version
    bench.publisher.keys = (key(), key("second", "other"))

    await bench.clock.advance(240)

    assert bench.keys.find("second", "RS256")
    assert bench.keys.version == version


@pytest.mark.requirement("N13")
async def test_a_key_replaced_under_its_own_id_is_fetched_after_a_bad_signature(
    bench: KeySetBench,
) -> None:
    """One fetch is made in each interval, and verdicts of the old key end."""
    await bench.known()
    version = bench.keys.version
    bench.publisher.keys = (key("main", "other"),)

    assert not await bench.keys.after_bad_signature()  # five seconds are not over
    await bench.clock.advance(5)

    assert bench.keys.find("main", "RS256") == (key("main", "other"),)
    assert bench.keys.version > version
    await bench.clock.advance(5)
    assert not await bench.keys.after_bad_signature()  # fetched, and nothing had changed
    assert bench.publisher.begun == [1000, 1005, 1010]


@pytest.mark.requirement("N13")
async def test_requests_with_forged_signatures_are_refused_at_once(bench: KeySetBench) -> None:
    """A thousand forged tokens cause one fetch."""
    await bench.known()

    for _ in range(1000):
        assert not await asyncio.wait_for(bench.keys.after_bad_signature(), 1)
    await bench.clock.advance(5)

    assert bench.publisher.begun == [1000, 1005]


async def test_a_known_key_id_with_another_algorithm_does_not_wait_for_a_fetch(
    bench: KeySetBench,
) -> None:
    """The key of this id does not support the token's algorithm."""
    await bench.known()

    assert await asyncio.wait_for(bench.keys.wait_for("main", "ES256"), 1) == ()


@pytest.mark.requirement("N14")
async def test_a_thousand_requests_without_keys_cause_one_fetch(bench: KeySetBench) -> None:
    """The fetch answers all of them after a restart."""
    bench.publisher.open.clear()
    lookups = [bench.ask("main") for _ in range(1000)]
    await settled()
    bench.publisher.open.set()

    answers = await asyncio.wait_for(asyncio.gather(*lookups), 10)

    assert all(answers)
    assert bench.publisher.begun == [1000]


@pytest.mark.requirement("N15")
async def test_a_cancelled_request_does_not_cancel_the_shared_fetch(bench: KeySetBench) -> None:
    """This also holds for the request that started the fetch."""
    bench.publisher.open.clear()
    first, second = bench.ask("main"), bench.ask("main")
    await settled()
    first.cancel()
    await settled()
    bench.publisher.open.set()

    assert await asyncio.wait_for(second, 20)
    assert bench.publisher.begun == [1000]


@pytest.mark.requirement("N01")
async def test_a_caller_waits_at_most_five_seconds(bench: KeySetBench) -> None:
    """A hanging fetch leads to 503, and known keys are not affected."""
    await bench.known()
    await bench.clock.advance(5)
    bench.publisher.open.clear()

    lookup = bench.ask()
    await bench.clock.advance(5)

    assert await unavailable(lookup) == "keys_slow"
    assert bench.keys.find("main", "RS256")


async def test_a_token_without_key_id_needs_a_single_key(bench: KeySetBench) -> None:
    """With several keys, such a token would make the server try one after another."""
    elliptic = import_set({"keys": [jwk(ec_key(), "ec")]}, allowed=ALLOWED_ALGORITHMS)[0]
    bench.publisher.keys = (key(), key("second", "other"), elliptic)
    await bench.known()

    assert bench.keys.find(None, "RS256") == ()
    assert bench.keys.find(None, "ES256") == (elliptic,)
    assert await asyncio.wait_for(bench.keys.wait_for(None, "RS256"), 1) == ()


@pytest.mark.requirement("A18")
async def test_at_most_four_keys_with_the_same_id_are_tried(bench: KeySetBench) -> None:
    """Issuers reuse ids; each candidate costs a signature check per token."""
    bench.publisher.keys = tuple(key("main", f"twin-{n}") for n in range(3)) + (key(),) * 3
    await bench.known()

    assert bench.keys.find("main", "RS256") == bench.publisher.keys[:4]


@pytest.mark.requirement("N22")
async def test_changes_of_the_wall_clock_do_not_affect_intervals(
    bench: KeySetBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals and lifetimes use the monotonic clock."""
    await bench.known()
    for stepped in (0.0, 4e9):
        monkeypatch.setattr("time.time", lambda stepped=stepped: stepped)
        assert not await bench.keys.after_bad_signature()
        assert bench.keys.find("main", "RS256")

    assert bench.publisher.begun == [1000]


async def test_unused_keys_of_a_templated_issuer_are_dropped() -> None:
    """Any caller may have named the issuer, so unused keys are not refreshed."""
    bench = await KeySetBench(permanent=False).known()
    await bench.clock.advance(240)
    assert bench.publisher.begun == [1000, 1240]  # used since it was loaded

    await bench.clock.advance(400)

    assert bench.publisher.begun == [1000, 1240]
    assert not bench.keys.has_keys
    assert len(await asyncio.wait_for(bench.ask("main"), 5)) == 1
    await bench.keys.aclose()


async def test_a_closed_key_set_refuses_requests_with_503(bench: KeySetBench) -> None:
    """A waiting caller learns that the token cannot be checked now."""
    await bench.known()
    lookup = bench.ask()
    await settled()

    await bench.keys.aclose()

    assert await unavailable(lookup) == "keys_closed"
    assert await unavailable(bench.ask()) == "keys_closed"
    assert not bench.keys.find("main", "RS256")
