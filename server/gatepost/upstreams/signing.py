"""Which credential signs in at which server."""

from collections.abc import Callable

from gatepost.credentials.credential import NoCredential, OutboundCredential
from gatepost.credentials.registry import CredentialRegistry
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost.upstreams.server import UpstreamServer


class UpstreamCredentials:
    """
    The credentials of upstreams: of a table, of the references in it, or sealed ones of the API.

    *configured* returns the upstreams of the configuration in force.
    """

    def __init__(
        self, registry: CredentialRegistry, configured: Callable[[], ConfiguredUpstreams]
    ) -> None:
        self._registry, self._configured = registry, configured

    def of(self, server: UpstreamServer, *, listing: bool = False) -> OutboundCredential:
        """
        Return the credential for calls of a server, or for *listing* what it offers.

        A program gets its secrets in its environment, so it has none.
        """
        if server.transport == "stdio":
            return NoCredential()
        tenant, url = server.tenant, server.url
        if server.source == "api":
            return self._registry.registered(
                tenant,
                server.id,
                server.revision,
                key=server.api_key_set,
                names=server.header_names,
            )
        name = (server.list_credential if listing else "") or server.credential
        table = self._configured().setting(server)
        headers = table.headers if table is not None else {}
        if name:
            return self._registry.named(tenant, name, url, headers=headers)
        api_key = table.api_key if table is not None else ""
        return self._registry.referred(tenant, url, api_key, headers)
