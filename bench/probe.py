"""One request by hand: is the server there, does it answer right, how large is the answer."""

import http.client
import time
from dataclasses import dataclass
from typing import Protocol

from bench.workload import BenchEndpoint, Workload

TIMEOUT_S = 10
PAUSE_S = 0.004


class Startable(Protocol):
    """What a wait needs to know of a process."""

    @property
    def running(self) -> bool:
        """Return whether the process still runs."""

    @property
    def output(self) -> str:
        """Return what the process has printed."""


class NotAnswering(Exception):
    """The server ended, or never gave the expected answer; the message says what it said."""


@dataclass(frozen=True)
class ProbeResponse:
    """Status and body of one exchange."""

    status: int
    body: bytes


def ask(endpoint: BenchEndpoint, workload: Workload, token: str | None) -> ProbeResponse:
    """Send one request of a workload; raise OSError while no server listens."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=TIMEOUT_S)
    try:
        headers = workload.headers(endpoint)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection.request("POST", endpoint.path, workload.body, headers)
        response = connection.getresponse()
        return ProbeResponse(response.status, response.read())
    finally:
        connection.close()


def first_answer(
    process: Startable,
    endpoint: BenchEndpoint,
    workload: Workload,
    token: str | None,
    *,
    limit_s: float,
) -> float:
    """Return the time (monotonic) of the first right answer; NotAnswering after *limit_s*."""
    deadline = time.monotonic() + limit_s
    reason = "nothing listens"
    while time.monotonic() < deadline:
        if not process.running:
            raise NotAnswering(f"ended at once: {last_words(process)}")
        try:
            answer = ask(endpoint, workload, token)
        except OSError as error:
            reason = str(error)
        else:
            problem = workload.misread(answer.status, answer.body)
            if problem is None:
                return time.monotonic()
            reason = problem
        time.sleep(PAUSE_S)
    raise NotAnswering(reason)


def line_printed(process: Startable, text: str, *, limit_s: float) -> float:
    """Return the time (monotonic) at which a text was seen in the output."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if text in process.output:
            return time.monotonic()
        if not process.running:
            break
        time.sleep(PAUSE_S)
    raise NotAnswering(f"never printed {text!r}: {last_words(process)}")


def last_words(process: Startable) -> str:
    """Return the last line of the output, where a program says why it ended."""
    return (process.output.strip().splitlines() or ["(no output)"])[-1]
