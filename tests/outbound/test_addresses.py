"""Addresses for programs that connect by themselves pass the same judgement as every request."""

from collections.abc import Sequence

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import checked_addresses
from gatepost_authz.address_policy import ToolAddressPolicy
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("X2")

NAMES = {
    "public.example": ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"),
    "inside.example": ("10.0.0.7",),
    "mixed.example": ("93.184.215.14", "127.0.0.1"),
    "metadata.example": ("169.254.169.254",),
    "mapped.example": ("::ffff:127.0.0.1",),
    "empty.example": (),
}
ADDRESS_POLICY = ToolAddressPolicy(
    ["git.corp.example:8443", "ssh.corp.example:2222", "plain.corp.example:80"]
)


async def resolve(host: str, port: int) -> Sequence[str]:
    if host.endswith(".corp.example"):
        return ("10.0.0.9",)
    if host not in NAMES:
        raise OSError("no such name")
    return NAMES[host]


@pytest.mark.parametrize(
    ("scheme", "host", "port", "first"),
    [
        ("https", "public.example", 443, "93.184.215.14"),
        ("https", "public.example", 8443, "93.184.215.14"),
        ("ssh", "public.example", 22, "93.184.215.14"),
        ("https", "93.184.215.14", 443, "93.184.215.14"),
        ("https", "git.corp.example", 8443, "10.0.0.9"),
        ("ssh", "ssh.corp.example", 2222, "10.0.0.9"),
        ("http", "plain.corp.example", 80, "10.0.0.9"),
    ],
)
async def test_public_and_allowed_hosts_are_resolved(
    scheme: str, host: str, port: int, first: str
) -> None:
    """The best one first."""
    assert (await checked_addresses(ADDRESS_POLICY, resolve, scheme, host, port))[0] == first


@each(
    ("scheme", "host", "port", "kind"),
    [
        *[
            ("https", host, 443, "denied")
            for host in ("127.0.0.1", "127.1", "2130706433", "0x7f.1")
        ],
        *[("ssh", host, 22, "denied") for host in ("10.0.0.7", "169.254.169.254", "localhost")],
        *[
            ("https", f"{name}.example", 443, "denied")
            for name in ("inside", "mixed", "metadata", "mapped")
        ],
        ("https", "git.corp.example", 443, "denied"),
        ("ssh", "git.corp.example", 22, "denied"),
        ("http", "public.example", 80, "denied"),
        ("https", "public.example", 25, "denied"),
        ("ssh", "public.example", 80, "denied"),
        ("ssh", "public.example", 6000, "denied"),
        ("https", "nowhere.example", 443, "upstream_unavailable"),
        ("https", "empty.example", 443, "upstream_unavailable"),
    ],
)
async def test_any_other_host_is_refused(scheme: str, host: str, port: int, kind: str) -> None:
    """The spelling of a host, its port, or one of its addresses is a reason to refuse it."""

    async def system(name: str, at: int) -> Sequence[str]:
        return ("127.0.0.1", "::1") if name == "localhost" else await resolve(name, at)

    with pytest.raises(ToolFailure) as refused:
        await checked_addresses(ADDRESS_POLICY, system, scheme, host, port)

    assert refused.value.failure.kind == kind
