"""Look up and check addresses for programs that connect by themselves."""

from collections.abc import Sequence
from ipaddress import ip_address

from gatepost.tools.api import ToolFailure
from gatepost_authz.address_policy import ToolAddressPolicy
from gatepost_authz.addresses import BAD_PORTS, authority_problem, literal, parted
from gatepost_authz.pinning import Resolver, alternated

USUAL = {"https": (443,), "http": (80,), "ssh": (22,), "smtp": (587, 465, 25)}


async def checked(
    reach: ToolAddressPolicy, resolver: Resolver, scheme: str, host: str, port: int
) -> Sequence[str]:
    """
    Return a few addresses of *host* that a program may connect to (`Outbound.addresses`).

    If one of several addresses is not allowed, all are refused: that is how an attacker's name
    looks.
    """
    allowed = reach.allows(host, port)
    try:
        problem = authority_problem(parted(f"https://{host}/"))
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ToolFailure("denied", f"{host} is not connected to: {problem}.")
    if scheme == "http" and not reach.allows_http(host, port):
        raise ToolFailure(
            "denied", f"http://{host} is unencrypted and is not connected to: use https."
        )
    if port not in USUAL[scheme] and not allowed and (port < 1024 or port in BAD_PORTS):
        raise ToolFailure("denied", f"Port {port} of {host} belongs to another service.")
    spelt = literal(host)
    try:
        found = [str(spelt)] if spelt is not None else await resolver(host, port)
    except OSError:
        found = []
    if not found:
        raise ToolFailure(
            "upstream_unavailable", f"{host} has no address: the name may be wrong.", retry_after=10
        )
    if not all(reach.reachable(host, port, ip_address(one)) for one in found):
        raise ToolFailure(
            "denied",
            f"{host} is at an address that is not on the internet, so tools may not reach it. The "
            "operator can allow it by [network] allow_hosts.",
        )
    return alternated(found)
