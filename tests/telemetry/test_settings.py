"""What `gatepost check` says of where numbers are told."""

from typing import Any

import pytest

from gatepost.telemetry.address import Address, read_address
from tests.support.idp import Idp
from tests.tenancy.house import issuer, judged

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
@pytest.mark.parametrize("case", ADDRESSES)
def test_where_numbers_are_told_is_judged(idp: Idp, case: str) -> None:
    """What is no address is an error; one that others reach must be written, and is pointed at."""
    listen, wanted = ADDRESSES[case]
    found = judged([issuer(idp)], listen=listen)

    assert [one.id for one in found if one.setting == "listen.metrics"] == wanted


def test_production_tells_numbers_to_its_own_machine(idp: Idp) -> None:
    """Nobody has to remember to switch it on, and nobody else can read it."""
    found = judged([issuer(idp)], mode="production")

    assert not [one for one in found if one.setting == "listen.metrics"]


def test_an_address_is_read_as_it_is_written() -> None:
    """Brackets are IPv6's."""
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


@pytest.mark.parametrize("case", COLLECTORS)
def test_the_way_to_the_collector_is_judged(idp: Idp, case: str) -> None:
    """Whatever could not be reached, or would be read on the way, is said before it is used."""
    telemetry, wanted = COLLECTORS[case]
    found = judged([issuer(idp)], telemetry=telemetry)

    told = [one for one in found if (one.setting or "").startswith("telemetry.")]
    assert [one.id for one in told] == wanted
    assert "s3cret" not in str(told)
