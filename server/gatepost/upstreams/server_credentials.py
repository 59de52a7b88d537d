"""Find the credential that signs in to a server."""

from collections.abc import Callable, Mapping
from functools import partial

from gatepost.credentials.credential import (
    CredentialUnavailable,
    NoCredential,
    OutboundCredential,
)
from gatepost.credentials.static import bearer
from gatepost.credentials.tenant_credentials import CredentialRegistry
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.errors import StoreUnavailable
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost.upstreams.sealed_headers import SealedHeaders
from gatepost.upstreams.upstream_server import UpstreamServer


class UpstreamCredentials:
    """
    The credentials of upstreams: of a table, of the references in it, or encrypted ones of the API.

    *configured* returns the upstreams of the configuration in force.
    """

    def __init__(
        self,
        registry: CredentialRegistry,
        sealed: SealedHeaders,
        configured: Callable[[], ConfiguredUpstreams],
    ) -> None:
        self._registry, self._sealed, self._configured = registry, sealed, configured

    def for_server(self, server: UpstreamServer) -> OutboundCredential:
        """
        Return the credential for requests to a server, as its `credential` says.

        A program gets its secrets in its environment, so it has none.
        """
        if server.transport == "stdio":
            return NoCredential()
        tenant, url = server.tenant, server.url
        if server.source == "api":
            if not server.api_key_set and not server.header_names:
                return NoCredential()
            key = (server.id, server.revision)
            return self._registry.sealed(tenant, key, partial(opened, self._sealed, server))
        table = self._configured().setting(server)
        headers = table.headers if table is not None else {}
        if server.credential:
            return self._registry.named(tenant, server.credential, url, headers=headers)
        api_key = table.api_key if table is not None else ""
        return self._registry.referred(tenant, url, api_key, headers)


async def opened(sealed: SealedHeaders, server: UpstreamServer) -> dict[str, str]:
    """Return the headers of a server that the API registered; raises CredentialUnavailable."""
    try:
        secrets = await sealed.secrets_for(server)
    except SecretUnreadable:
        raise CredentialUnavailable(
            f"The API key or a header of {server.name!r} cannot be decrypted. Set it again."
        ) from None
    except StoreUnavailable:
        raise CredentialUnavailable("The database does not answer.") from None
    headers = dict(secrets.headers) if isinstance(secrets.headers, Mapping) else {}
    missing = server.api_key_set and not isinstance(secrets.api_key, str)
    if missing or len(headers) < len(server.header_names):
        # A request without the credential would not be the one that the administrator meant.
        raise CredentialUnavailable(f"The API key or a header of {server.name!r} is gone.")
    return headers | (bearer(secrets.api_key) if isinstance(secrets.api_key, str) else {})
