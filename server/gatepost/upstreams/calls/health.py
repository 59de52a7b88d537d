"""The health of an upstream, and the circuit breaker that spares a dead one further requests."""

from collections.abc import Callable
from typing import Literal

import msgspec

from gatepost.upstreams.connection import FailureReason

Circuit = Literal["closed", "open", "half-open"]

FAILURES = 5
"""Failures in a row after which the circuit opens."""
OPEN_S, LONGEST_OPEN_S = 10.0, 300.0
"""How long the circuit stays open: at first, and after many failed probes."""
PROBE_S = 120.0
"""A probe that has not ended in this time counts as lost, and its caller may send another one."""
PROBES = 5
"""
The number of callers that probe at once, so that a slow probe of one does not delay the others.
"""

SERVER_FAILURES: frozenset[FailureReason] = frozenset({"unreachable", "session_lost"})
"""Failures that no argument of a caller can cause."""
POSSIBLE_FAILURES: frozenset[FailureReason] = frozenset({"timeout", "invalid", "outcome_unknown"})
"""
Failures that a caller can cause, with arguments or with a tool that takes too long. A series of
them counts once for each caller, so that no caller opens the circuit for all others.
"""


class HealthNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one upstream, for the dashboard and the metrics."""

    circuit: Circuit
    calls: int
    failures: int
    refused: int
    """Calls that were answered at once because the circuit was open."""
    failing_since: float | None
    failure: str
    """The reason of the last failure, as a sentence; empty if the last call succeeded."""


class CircuitBreaker:
    """
    Counts the failures of one upstream in a row; times are given by the caller.

    Errors that the upstream answers, such as those of a tool, prove that it is alive.
    """

    def __init__(self) -> None:
        self._unanswered: set[object] = set()
        self._sure = 0
        self._open_until: float | None = None
        self._open_s = OPEN_S
        self._probes: dict[object, float] = {}
        """The callers that probe, or whose probe failed, and until when they may not probe."""
        self._calls = self._failures = self._refused = 0
        self._failing_since: float | None = None
        self._failure = ""

    def circuit(self, now: float) -> Circuit:
        """Return the state of the circuit."""
        if self._open_until is None:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def admit(self, now: float, caller: object = None) -> float | None:
        """Return None if *caller* may make a call, else the seconds after which to try again."""
        if self._open_until is None:
            return None
        if now < self._open_until:
            self._refused += 1
            return self._open_until - now
        self._probes = {probe: until for probe, until in self._probes.items() if now < until}
        if caller in self._probes or len(self._probes) >= PROBES:
            self._refused += 1
            return OPEN_S
        self._probes[caller] = now + PROBE_S
        return None

    def succeeded(self) -> None:
        """Note that the upstream has answered, with a result or an error."""
        self._calls += 1
        self._failing_since, self._failure = None, ""
        self._unanswered.clear()
        self._probes.clear()
        self._sure = 0
        self._open_until = None
        self._open_s = OPEN_S

    def failed(self, reason: str, message: str, now: float, caller: object = None) -> None:
        """
        Note that a call of *caller* got no answer.

        A *reason* that says nothing of the upstream, such as a refused credential, does not count.
        """
        self._calls += 1
        if reason not in SERVER_FAILURES | POSSIBLE_FAILURES:
            self.released(caller)
            return
        self._failures += 1
        self._failure = message
        if self._failing_since is None:
            self._failing_since = now
        if reason in SERVER_FAILURES:
            self._sure += 1
        elif len(self._unanswered) < FAILURES:
            self._unanswered.add(caller)
        if self._open_until is None:
            if self._sure + len(self._unanswered) >= FAILURES:
                self._open(now)
        elif caller in self._probes:
            self._probe_failed(reason, now, caller)

    def released(self, caller: object = None) -> None:
        """
        Note that a call ended without a statement about the upstream, such as a cancelled one.
        """
        self._probes.pop(caller, None)

    def _open(self, now: float) -> None:
        self._open_until = now + self._open_s
        self._probes.clear()
        self._unanswered.clear()

    def _probe_failed(self, reason: str, now: float, caller: object) -> None:
        if reason in SERVER_FAILURES or len(self._unanswered) >= FAILURES:
            self._open_s = min(self._open_s * 2, LONGEST_OPEN_S)
            self._open(now)
        else:
            # Only this caller waits, because its own probe may be slow.
            self._probes[caller] = now + OPEN_S

    def sentence(self, name: str, now: float) -> str:
        """Return the problem and its time, for the answer of a call that is not made."""
        since = 0.0 if self._failing_since is None else max(now - self._failing_since, 0.0)
        return f"{name} has not answered for {_duration(since)}. {self._failure}".rstrip()

    def numbers(self, now: float) -> HealthNumbers:
        """Return the health at this time."""
        return HealthNumbers(
            circuit=self.circuit(now),
            calls=self._calls,
            failures=self._failures,
            refused=self._refused,
            failing_since=self._failing_since,
            failure=self._failure,
        )


class UpstreamHealth:
    """The circuit breakers of all upstreams in this process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._breakers: dict[tuple[str, str], CircuitBreaker] = {}

    def breaker_for(self, tenant: str, server_id: str) -> CircuitBreaker:
        """Return the circuit breaker of a tenant's upstream."""
        return self._breakers.setdefault((tenant, server_id), CircuitBreaker())

    def numbers(self, tenant: str, server_id: str) -> HealthNumbers:
        """Return the health of a tenant's upstream."""
        breaker = self._breakers.get((tenant, server_id), CircuitBreaker())
        return breaker.numbers(self.clock())

    def all(self) -> dict[tuple[str, str], HealthNumbers]:
        """Return the health of all upstreams that were called, by tenant and id."""
        now = self.clock()
        return {key: breaker.numbers(now) for key, breaker in self._breakers.items()}

    def forget(self, server_id: str) -> None:
        """Forget an upstream that was changed or removed."""
        for key in [breaker_key for breaker_key in self._breakers if breaker_key[1] == server_id]:
            del self._breakers[key]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7_200 else f"{seconds / 3_600:.0f} hours"
