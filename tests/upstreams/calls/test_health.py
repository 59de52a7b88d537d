"""The circuit breaker of an upstream, with times given by hand."""

from gatepost.upstreams.calls.health import FAILURES, OPEN_S, PROBES, CircuitBreaker

SENTENCE = "crm cannot be reached."


def open_breaker(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(FAILURES):
        breaker.failed("unreachable", SENTENCE, now)
    return breaker


def test_the_circuit_opens_after_consecutive_failures() -> None:
    breaker = open_breaker()

    assert breaker.circuit(1.0) == "open"
    assert breaker.admit(1.0) == OPEN_S - 1.0
    assert breaker.sentence("crm", 600.0) == f"crm has not answered for 10 minutes. {SENTENCE}"
    assert breaker.numbers(1.0).refused == 1


def test_a_success_resets_the_failure_count() -> None:
    breaker = CircuitBreaker()
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.failed("unreachable", SENTENCE, 0.0)
        breaker.succeeded()

    assert breaker.circuit(1.0) == "closed"
    assert breaker.numbers(1.0).failure == ""


def test_half_open_lets_one_probe_through() -> None:
    breaker = open_breaker()

    assert breaker.circuit(OPEN_S) == "half-open"
    assert breaker.admit(OPEN_S) is None
    assert breaker.admit(OPEN_S) is not None
    breaker.succeeded()
    assert breaker.circuit(OPEN_S + 1) == "closed"


def test_a_probe_that_fails_opens_it_for_longer() -> None:
    breaker = open_breaker()
    breaker.admit(OPEN_S)
    breaker.failed("unreachable", SENTENCE, OPEN_S)

    assert breaker.admit(OPEN_S + OPEN_S + 1) is not None
    assert breaker.admit(OPEN_S + 2 * OPEN_S) is None


def test_a_cancelled_probe_allows_the_next_one() -> None:
    breaker = open_breaker()
    breaker.admit(OPEN_S)
    breaker.released()

    assert breaker.admit(OPEN_S) is None


def test_a_slow_probe_keeps_no_other_caller_waiting() -> None:
    """Only its own caller waits; the next answer closes the circuit."""
    breaker = open_breaker()
    assert breaker.admit(OPEN_S, "alice") is None
    assert breaker.admit(OPEN_S, "alice") == OPEN_S
    breaker.failed("timeout", "crm said nothing.", OPEN_S + 60, "alice")
    assert breaker.admit(OPEN_S + 61, "alice") == OPEN_S
    assert breaker.admit(OPEN_S + 61, "bob") is None
    breaker.succeeded()
    assert breaker.circuit(OPEN_S + 62) == "closed"


def test_the_number_of_concurrent_probes_is_bounded() -> None:
    breaker = open_breaker()
    admitted = [breaker.admit(OPEN_S, number) for number in range(20)]
    assert admitted.count(None) == PROBES


def test_failed_probes_of_several_callers_open_the_circuit_again() -> None:
    breaker = open_breaker()
    for number in range(FAILURES):
        assert breaker.admit(OPEN_S, number) is None
    for number in range(FAILURES):
        breaker.failed("timeout", "crm said nothing.", OPEN_S, number)
    assert breaker.circuit(OPEN_S + 2 * OPEN_S - 1) == "open"


def test_a_single_caller_does_not_open_the_circuit() -> None:
    """Timeouts and crashes may be due to that caller's arguments."""
    breaker = CircuitBreaker()
    for _ in range(100):
        for reason in ("timeout", "invalid", "outcome_unknown"):
            breaker.failed(reason, "crm said nothing.", 0.0, "alice")
        breaker.failed("denied", "The credential is refused.", 0.0, "bob")
        breaker.failed("unauthorized", "The credential is refused.", 0.0, "bob")
    assert breaker.circuit(0.0) == "closed"

    for name in ("bob", "carol", "dave", "erin"):
        breaker.failed("timeout", "crm said nothing.", 0.0, name)
    assert breaker.circuit(0.0) == "open"
