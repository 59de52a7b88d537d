"""Judges what the server tells about itself, and to whom."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit

from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.settings import Config
from gatepost.telemetry.address import Address
from gatepost_authz.config import Problem

METRICS = "listen.metrics"
ENDPOINT, HEADERS = "telemetry.otlp_endpoint", "telemetry.otlp_headers"
RATIO, FRIENDS = "telemetry.sample_ratio", "telemetry.propagate_to"
FIELD = re.compile(r"[A-Za-z0-9-]{1,64}")
NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.common")


def problems(config: Config) -> Iterator[Problem]:
    """What keeps numbers and traces from being told, and who could read them."""
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
                f"{origin!r} is not the origin of a server",
                "write https://api.example.com, without a path",
                setting=f"{FRIENDS}[{at}]",
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
            f"port {address.port} is the one that clients call; `/metrics` has no gate",
            "choose another port",
            setting=METRICS,
        )
    elif not address.is_loopback:
        yield Problem(
            "config.W097",
            f"whoever reaches {address.host} on port {address.port} reads which tools there are "
            "and how they are used, without a token",
            "let only the collector reach it, or listen on 127.0.0.1",
            "warning",
            METRICS,
        )


def _collector(config: Config) -> Iterator[Problem]:
    telemetry = config.telemetry
    if not telemetry.otlp_endpoint:
        return
    parts = _parts(telemetry.otlp_endpoint)
    if parts is None or parts.username or parts.query or parts.fragment:
        # Not shown: somebody may have put a key into it.
        yield Problem(
            "config.E098",
            f"`{ENDPOINT}` is not the address of a collector",
            "write https://collector.example.com:4318; keys belong into otlp_headers",
            setting=ENDPOINT,
        )
    elif (
        parts.scheme == "http"
        and telemetry.otlp_headers
        and not Address(parts.hostname or "", 0).is_loopback
    ):
        yield Problem(
            "config.E098",
            "the headers for the collector hold secrets, and everybody on the way reads plain http",
            "use https",
            setting=ENDPOINT,
        )
    if not all(map(_is_installed, NEEDED)):
        yield Problem(
            "config.E099",
            "what speaks to an OpenTelemetry collector is not installed",
            "pip install 'gatepost[otel]'",
            setting=ENDPOINT,
        )
    yield from _headers(telemetry.otlp_headers)


def _headers(headers: dict[str, str]) -> Iterator[Problem]:
    for name, reference in headers.items():
        setting = f"{HEADERS}.{name}"
        if not FIELD.fullmatch(name):
            yield Problem("config.E098", "that is no name of a header", setting=HEADERS)
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
    """The parts of an http(s) address; None for what is none."""
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
