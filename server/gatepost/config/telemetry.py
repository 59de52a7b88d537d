"""Judges what the server tells about itself, and to whom."""

from collections.abc import Iterator

from gatepost.settings import Config
from gatepost_authz.config import Problem

METRICS = "listen.metrics"


def problems(config: Config) -> Iterator[Problem]:
    """What keeps `/metrics` from being served, and who could read it."""
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
