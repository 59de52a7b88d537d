"""Replicas that restart one after the other behind a proxy lose no request."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.deploy.conftest import PROXIES, WITHIN_S, Deployment
from tests.support.commands import READY, pid_of
from tests.support.measuring import eventually

pytestmark = pytest.mark.slow

RESTARTS = {"haproxy": [10] * 5, "nginx": [2], "caddy": [2], "envoy": [2], "traefik": [2]}
"""How many for each pair of replicas, behind a proxy of its own; each gets every second one."""
CLIENTS = 3
LASTING_S = 900
"""How long a client's token is good: as long as a test may take."""


class RestartTraffic(threading.Thread):
    """A client that calls a tool again and again, and writes down what went wrong."""

    def __init__(self, deployment: Deployment, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._client = deployment.client(port)
        # A signature for each call would be a good part of a call's work, and loses none of them.
        self._token = deployment.tokens.token(exp=int(time.time()) + LASTING_S)
        self._ended = stop
        self.served_by: Counter[int] = Counter()
        """How many calls each process has answered."""
        self.lost: list[str] = []

    def run(self) -> None:
        # A call is a TLS handshake, and each of them has a dozen while a replica restarts.
        while not self._ended.wait(0.2):
            try:
                answer = self._client.call(self._token, "pid")
                self.served_by[pid_of(answer)] += 1
            except (OSError, AssertionError) as error:
                self.lost.append(repr(error))


@pytest.mark.timeout(LASTING_S)
@pytest.mark.parametrize("name", sorted(PROXIES))
def test_rolling_restarts_lose_no_request(
    two_replicas: Callable[[], AbstractContextManager[Deployment]], name: str
) -> None:
    """Each replica says first that it leaves, and the proxy sends requests to the other one."""

    def lost_of(deployment: Deployment, restarts: int) -> list[str]:
        with deployment.behind(name, deployment.folder) as port:
            return lost(deployment, port, restarts)

    with ExitStack() as stack:
        pairs = [stack.enter_context(two_replicas()) for _ in RESTARTS[name]]
        # Most of a restart is the time in which the proxy notices it: the pairs take it at once.
        with ThreadPoolExecutor(len(pairs)) as pool:
            found = [*pool.map(lost_of, pairs, RESTARTS[name])]

    assert found == [[]] * len(pairs)


def lost(deployment: Deployment, port: int, restarts: int) -> list[str]:
    """What clients lose while the replicas restart so often, each of which serves them."""
    stop = threading.Event()
    clients = [RestartTraffic(deployment, port, stop) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        for number in range(restarts):
            restart(deployment, number % 2, clients)
    finally:
        stop.set()
        for client in clients:
            client.join(WITHIN_S)
    assert len({pid for client in clients for pid in client.served_by}) >= restarts
    return [lost for client in clients for lost in client.lost]


def restart(deployment: Deployment, number: int, clients: list[RestartTraffic]) -> None:
    """Stop a replica as an orchestrator does, start it again, and wait until it is ready."""
    server = deployment.servers[number]
    assert server.stop() == 0, server.output
    deployment.servers[number] = deployment.begin(number)
    deployment.servers[number].wait_for(READY)
    # Until the proxy has seen that it is back, the other one serves alone and must not stop.
    new = deployment.servers[number].process.pid
    eventually(lambda: any(client.served_by[new] for client in clients), within=WITHIN_S)
