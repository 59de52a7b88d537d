"""`/metrics` as a scraper reads it."""

import asyncio
import http.client
from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from gatepost.telemetry.exposition import Exposition, registry_of
from gatepost.telemetry.shared_memory import SharedMetrics


class Page:
    """One answer of `/metrics`, read by the parser of the Prometheus client library."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {one.name: one for one in text_string_to_metric_families(text)}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for found in self.families.values()
            for sample in found.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The sample of that name with exactly these labels; 0 where there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def labels(self, label: str) -> set[str]:
        """Every value of that label, in any family."""
        return {value for _, found in self.samples for name, value in found if name == label}

    def counters(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        """The samples that must never become less."""
        growing = ("_total", "_count", "_sum", "_bucket")
        return {key: value for key, value in self.samples.items() if key[0].endswith(growing)}


def page_of(metrics: SharedMetrics) -> Page:
    """Return the page of these metrics."""
    return Page(generate_latest(registry_of(metrics, version="1.2.3")).decode())


def gathered(metrics: SharedMetrics) -> Page:
    """Return the page as a scrape gets it, including everything that ended before the scrape."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
    asyncio.run(Exposition(registry_of(metrics, version="1.2.3"))(scope, receive, send))
    return Page(sent[1]["body"].decode())


def fetch(
    port: int, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, str, str]:
    """Return status, content type and text of one request to this port of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=fields)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type") or "", answer.read().decode()
    finally:
        connection.close()


def scrape(port: int) -> Page:
    """Scrape this port of this machine."""
    status, _, text = fetch(port)
    assert status == 200, text
    return Page(text)
