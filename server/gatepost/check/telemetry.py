"""Check `[telemetry]` and the metrics address."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit

from gatepost.config.metrics_address import Address
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config
from gatepost_authz.config import Problem

METRICS = "listen.metrics"
ENDPOINT, HEADERS = "telemetry.otlp_endpoint", "telemetry.otlp_headers"
RATIO, PROPAGATE_TO = "telemetry.sample_ratio", "telemetry.propagate_to"
FIELD = re.compile(r"[A-Za-z0-9-]{1,64}")
OTLP_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def problems(config: Config) -> Iterator[Problem]:
    """Yield problems that prevent metrics and traces, or expose them."""
    yield from _metrics(config)
    yield from _collector(config)
    telemetry = config.telemetry
    if not 0 <= telemetry.sample_ratio <= 1:
        yield Problem("config.E099", f"`{RATIO}` must be from 0 to 1", setting=RATIO)
    for at, origin in enumerate(telemetry.propagate_to):
        parts = _parts(origin)
        if parts is None or f"{parts.scheme}://{parts.netloc}" != origin or "@" in origin:
            yield Problem(
                "config.E099",
                f"{origin!r} is not an origin",
                "write https://api.example.com, without a path",
                setting=f"{PROPAGATE_TO}[{at}]",
            )


def _metrics(config: Config) -> Iterator[Problem]:
    listen = config.listen
    try:
        address = config.metrics_address
    except ValueError:
        yield Problem(
            "config.E097",
            f"{listen.metrics!r} is not an address",
            'write HOST:PORT, for example "127.0.0.1:9464"; "" turns `/metrics` off',
            setting=METRICS,
        )
        return
    if address is None:
        return
    if address.covers(listen.host, listen.port):
        yield Problem(
            "config.E097",
            f"clients use port {address.port}, and `/metrics` needs no token",
            "choose another port",
            setting=METRICS,
        )
    elif not address.is_loopback:
        yield Problem(
            "config.W097",
            f"`/metrics` on {address.host} port {address.port} shows tools and their usage "
            "without a token",
            "allow only the collector to connect, or listen on 127.0.0.1",
            "warning",
            METRICS,
        )


def _collector(config: Config) -> Iterator[Problem]:
    telemetry = config.telemetry
    if not telemetry.otlp_endpoint:
        return
    parts = _parts(telemetry.otlp_endpoint)
    if parts is None or parts.username or parts.query or parts.fragment:
        # The value is not shown, because it may contain a key.
        yield Problem(
            "config.E098",
            f"`{ENDPOINT}` is not the URL of a collector",
            "write https://collector.example.com:4318; put keys into otlp_headers",
            setting=ENDPOINT,
        )
    elif (
        parts.scheme == "http"
        and telemetry.otlp_headers
        and not Address(parts.hostname or "", 0).is_loopback
    ):
        yield Problem(
            "config.E098",
            "the collector's headers contain secrets, and plain http does not encrypt them",
            "use https",
            setting=ENDPOINT,
        )
    if not all(map(_is_installed, OTLP_MODULES)):
        yield Problem(
            "config.E099",
            "the OpenTelemetry exporter is not installed",
            "pip install 'gatepost[otel]'",
            setting=ENDPOINT,
        )
    yield from _headers(telemetry.otlp_headers)


def _headers(headers: dict[str, str]) -> Iterator[Problem]:
    for name, reference in headers.items():
        setting = f"{HEADERS}.{name}"
        if not FIELD.fullmatch(name):
            yield Problem("config.E098", "this is not a header name", setting=HEADERS)
        elif not REFERENCE.match(reference):
            yield Problem(
                "config.E098",
                f"`{setting}` holds a value instead of a reference",
                "write env:NAME or file:PATH",
                setting=setting,
            )
        else:
            try:
                resolve(reference)
            except UnresolvedReference as error:
                yield Problem(
                    "config.E098", str(error), "set it where the server runs", setting=setting
                )


def _parts(url: str) -> SplitResult | None:
    """Return the parts of an http(s) URL; None if it is not one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable and url.isprintable() and " " not in url else None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
