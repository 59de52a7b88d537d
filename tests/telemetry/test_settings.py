"""What `gatepost check` says about metrics and the collector."""

from typing import Any

import pytest

from gatepost.config.metrics_address import Address, read_address
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import check_problems, issuer_settings

ADDRESSES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "off": ({"metrics": ""}, []),
    "loopback": ({"metrics": "127.0.0.1:9464"}, []),
    "loopback by name": ({"metrics": "localhost:9464"}, []),
    "loopback of IPv6": ({"metrics": "[::1]:9464"}, []),
    "any free port": ({"metrics": "127.0.0.1:0"}, []),
    "every address, written out": ({"metrics": "0.0.0.0:9464"}, ["config.W097"]),
    "every address of IPv6": ({"metrics": "[::]:9464"}, ["config.W097"]),
    "another address": ({"metrics": "10.1.2.3:9464"}, ["config.W097"]),
    "another name": ({"metrics": "metrics.example.com:9464"}, ["config.W097"]),
    "no host": ({"metrics": ":9464"}, ["config.E097"]),
    "no port": ({"metrics": "127.0.0.1"}, ["config.E097"]),
    "a port that is none": ({"metrics": "127.0.0.1:99999"}, ["config.E097"]),
    "a URL": ({"metrics": "http://127.0.0.1:9464"}, ["config.E097"]),
    "IPv6 without brackets": ({"metrics": "::1:9464"}, ["config.E097"]),
    "the endpoint's own": ({"metrics": "127.0.0.1:8000", "port": 8000}, ["config.E097"]),
    "the endpoint's by name": ({"metrics": "localhost:8000", "port": 8000}, ["config.E097"]),
    "over the endpoint's": ({"metrics": "0.0.0.0:8000", "port": 8000}, ["config.E097"]),
    "beside the endpoint's": ({"metrics": "10.1.2.3:8000", "port": 8000}, ["config.W097"]),
}


@pytest.mark.requirement("P16")
@each("case", ADDRESSES)
def test_the_address_of_metrics_is_checked(idp: Idp, case: str) -> None:
    """An invalid address is an error, and one that other machines reach is a warning."""
    listen, expected = ADDRESSES[case]
    reported_problems = check_problems([issuer_settings(idp)], listen=listen)

    assert [
        problem.id for problem in reported_problems if problem.setting == "listen.metrics"
    ] == expected


def test_production_serves_metrics_on_loopback(idp: Idp) -> None:
    """The default in production is an address of loopback."""
    reported_problems = check_problems([issuer_settings(idp)], mode="production")

    assert not [problem for problem in reported_problems if problem.setting == "listen.metrics"]


def test_addresses_are_parsed() -> None:
    """An IPv6 address stands in brackets."""
    assert read_address("[::1]:9464") == Address("::1", 9464)
    assert read_address("localhost:1").is_loopback
    assert not read_address("example.com:1").is_loopback


COLLECTORS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "none": ({}, []),
    "over https": ({"otlp_endpoint": "https://otel.example.com:4318"}, []),
    "on this machine": (
        {"otlp_endpoint": "http://127.0.0.1:4318", "otlp_headers": {"X-Key": "env:PATH"}},
        [],
    ),
    "in the clear without a secret": ({"otlp_endpoint": "http://otel.internal:4318"}, []),
    "in the clear with one": (
        {"otlp_endpoint": "http://otel.internal:4318", "otlp_headers": {"X-Key": "env:PATH"}},
        ["config.E098"],
    ),
    "a secret written out": (
        {"otlp_endpoint": "https://otel.example.com", "otlp_headers": {"X-Key": "s3cret"}},
        ["config.E098"],
    ),
    "a secret that is not there": (
        {"otlp_endpoint": "https://otel.example.com", "otlp_headers": {"X-Key": "env:NO_SUCH"}},
        ["config.E098"],
    ),
    "a header that is none": (
        {"otlp_endpoint": "https://otel.example.com", "otlp_headers": {"X Key:": "env:PATH"}},
        ["config.E098"],
    ),
    "a password in the address": (
        {"otlp_endpoint": "https://me:s3cret@otel.example.com"},
        ["config.E098"],
    ),
    "no address": ({"otlp_endpoint": "otel.example.com:4318"}, ["config.E098"]),
    "more than everything": ({"sample_ratio": 1.5}, ["config.E099"]),
    "less than nothing": ({"sample_ratio": -0.1}, ["config.E099"]),
    "a friend": ({"propagate_to": ["https://api.example.com"]}, []),
    "a friend's path": ({"propagate_to": ["https://api.example.com/v1"]}, ["config.E099"]),
    "everybody": ({"propagate_to": ["*"]}, ["config.E099"]),
}


@each("case", COLLECTORS)
def test_the_collector_settings_are_checked(idp: Idp, case: str) -> None:
    """An unreachable collector, or one to which a secret would go in the clear, is an error."""
    telemetry, expected = COLLECTORS[case]
    reported_problems = check_problems([issuer_settings(idp)], telemetry=telemetry)

    problems = [
        problem for problem in reported_problems if (problem.setting or "").startswith("telemetry.")
    ]
    assert [problem.id for problem in problems] == expected
    assert "s3cret" not in str(problems)
