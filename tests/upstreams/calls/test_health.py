"""The circuit breaker of an upstream, with times given by hand."""

from gatepost.upstreams.calls.health import FAILURES, OPEN_S, CircuitBreaker

SENTENCE = "crm cannot be reached."


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(FAILURES):
        breaker.failed("unreachable", SENTENCE, now)
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_since_when() -> None:
    breaker = opened()

    assert breaker.circuit(1.0) == "open"
    assert breaker.admit(1.0) == OPEN_S - 1.0
    assert breaker.sentence("crm", 600.0) == f"crm has not answered for 10 minutes. {SENTENCE}"
    assert breaker.numbers(1.0).refused == 1


def test_one_answer_between_them_begins_the_count_anew() -> None:
    breaker = CircuitBreaker()
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.failed("unreachable", SENTENCE, 0.0)
        breaker.succeeded(1.0)

    assert breaker.circuit(1.0) == "closed"
    assert breaker.numbers(1.0).last_success == 1.0
    assert breaker.numbers(1.0).failure == ""


def test_half_open_lets_one_probe_through() -> None:
    breaker = opened()

    assert breaker.circuit(OPEN_S) == "half-open"
    assert breaker.admit(OPEN_S) is None
    assert breaker.admit(OPEN_S) is not None
    breaker.succeeded(OPEN_S + 1)
    assert breaker.circuit(OPEN_S + 1) == "closed"


def test_a_probe_that_fails_opens_it_for_longer() -> None:
    breaker = opened()
    breaker.admit(OPEN_S)
    breaker.failed("unreachable", SENTENCE, OPEN_S)

    assert breaker.admit(OPEN_S + OPEN_S + 1) is not None
    assert breaker.admit(OPEN_S + 2 * OPEN_S) is None


def test_a_probe_that_is_cancelled_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.admit(OPEN_S)
    breaker.released()

    assert breaker.admit(OPEN_S) is None


def test_no_single_caller_opens_it_with_arguments() -> None:
    """A call that takes too long, or that breaks the server, may do so because of what it asks."""
    breaker = CircuitBreaker()
    for _ in range(100):
        breaker.failed("timeout", "crm said nothing.", 0.0, ("alice", "search"))
        breaker.failed("denied", "The credential is refused.", 0.0, ("bob", "search"))
        breaker.failed("unauthorized", "The credential is refused.", 0.0, ("bob", "search"))
    assert breaker.circuit(0.0) == "closed"

    for name in ("bob", "carol", "dave", "erin"):
        breaker.failed("timeout", "crm said nothing.", 0.0, (name, "search"))
    assert breaker.circuit(0.0) == "open"
