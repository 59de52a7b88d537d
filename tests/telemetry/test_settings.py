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
