"""Find the token endpoint for a server: RFC 9728, then RFC 8414."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from gatepost.credentials.credential import CredentialUnavailable
from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import Sender
from gatepost_authz.discovery import DiscoveryLocation, locations, metadata_of
from gatepost_authz.fetch import FetchError
from gatepost_authz.protected_resource import WELL_KNOWN
from gatepost_authz.strict_json import StrictJsonError, loads_object

MAX_BYTES = 262_144
TIMEOUT_S = 10.0


class TokenEndpoint(msgspec.Struct, frozen=True):
    """The token endpoint, and where it was found."""

    url: str
    issuer: str = ""
    """The authorization server; empty if only its endpoint is configured."""
    resource: str = ""
    """The resource that the upstream's metadata name; empty if they were not read."""


async def discovered(sender: Sender, url: str) -> tuple[str, str]:
    """
    Return the first authorization server of the resource at *url*, and the resource's identifier.

    The identifier must be the URL or its beginning (RFC 9728 section 3.3): otherwise another
    server's metadata could send our secret elsewhere. Raises CredentialUnavailable.
    """
    parts = urlsplit(url)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    for location in dict.fromkeys((f"{origin}{WELL_KNOWN}{path}", f"{origin}{WELL_KNOWN}")):
        document = await fetched(sender, location)
        if document is None:
            continue
        resource, servers = document.get("resource"), document.get("authorization_servers")
        if not isinstance(resource, str) or not covers(resource, url):
            raise CredentialUnavailable(
                f"The metadata at {location} are about another resource than {url}."
            )
        if isinstance(servers, list) and servers and isinstance(servers[0], str):
            return servers[0], resource
    raise CredentialUnavailable(
        f"{url} publishes no metadata that name an authorization server. Set `issuer` or "
        "`token_endpoint` of the credential."
    )


def covers(resource: str, url: str) -> bool:
    """Return whether a resource identifier is *url*, or a folder above it on the same origin."""
    if resource == url:
        return True
    inner, outer = urlsplit(url), urlsplit(resource)
    if (inner.scheme, inner.netloc.lower()) != (outer.scheme, outer.netloc.lower()):
        return False
    return f"{inner.path}/".startswith(f"{outer.path.rstrip('/')}/")


async def endpoint_of(sender: Sender, issuer: str) -> str:
    """Return the token endpoint of an authorization server; raises CredentialUnavailable."""
    discovery_location = DiscoveryLocation(issuer=issuer)
    reason = "it publishes no metadata"
    for location in locations(issuer):
        document = await fetched(sender, location)
        if document is None:
            continue
        try:
            return metadata_of(discovery_location, location, document).endpoint("token_endpoint")
        except FetchError as error:
            reason = str(error)
    raise CredentialUnavailable(
        f"The authorization server {issuer} cannot be used: {reason}. Set `token_endpoint` of the "
        "credential if it is right."
    )


async def fetched(sender: Sender, url: str) -> Mapping[str, object] | None:
    """Return the JSON object at *url*, None if there is none; raises CredentialUnavailable."""
    try:
        reply = await sender.send(
            "GET",
            url,
            headers={"accept": "application/json"},
            timeout_s=TIMEOUT_S,
            max_bytes=MAX_BYTES,
        )
    except ToolFailure as failure:
        raise CredentialUnavailable(failure.failure.message) from None
    if reply.status != 200 or reply.truncated:
        return None
    try:
        return loads_object(reply.body, max_bytes=MAX_BYTES)
    except StrictJsonError:
        return None
