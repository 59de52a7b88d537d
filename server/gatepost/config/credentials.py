"""The settings of `[credentials.NAME]`."""

from typing import Literal

from gatepost.config.settings_table import SettingsTable


class CredentialSettings(SettingsTable, frozen=True, kw_only=True):
    """What Gatepost signs in with at other servers; one `[credentials.NAME]` table each."""

    type: Literal["static", "client"]
    """
    `static` sends an API key or headers. `client` gets access tokens by the client credentials
    grant.
    """
    tenants: tuple[str, ...] = ()
    """The tenants whose calls may use it; `["*"]` means every tenant. There is no default."""
    hosts: tuple[str, ...] = ()
    """
    The hosts (`api.example.com`, or with a port) that requests with this credential may go to.
    Tools and `[packs.openapi.apis]` may use it only for these; default: only upstreams may use it.
    """
    api_key: str = ""
    """
    `static`: a reference (`secret:NAME` of the tenant, `env:NAME` or `file:PATH`) to the key that
    is sent as `Authorization: Bearer`.
    """
    headers: dict[str, str] = {}
    """`static`: header = a reference to its value, as in `api_key`."""
    client_id: str = ""
    """`client`: the client id at the authorization server."""
    method: Literal["client_secret_basic", "client_secret_post", "private_key_jwt"] = (
        "client_secret_basic"
    )
    """`client`: how Gatepost authenticates at the token endpoint."""
    client_secret: str = ""
    """`client`: a reference to the client secret, as in `api_key`."""
    private_key: str = ""
    """
    `private_key_jwt`: `file:PATH` or `env:NAME` of a private key (PEM). Default: a key of the key
    ring, whose public half `gatepost upstream jwks` prints.
    """
    key_id: str = ""
    """`private_key_jwt`: the `kid` of `private_key`; keys of the key ring have their own."""
    issuer: str = ""
    """
    `client`: the authorization server (https), whose metadata name the token endpoint. Default: the
    first one that the upstream's resource metadata name (RFC 9728).
    """
    token_endpoint: str = ""
    """`client`: the token endpoint (https), if the authorization server has no metadata."""
    resource: str | None = None
    """
    `client`: the resource that tokens are for (RFC 8707); empty: requests name none. Default: the
    upstream's URL, or the identifier in its resource metadata.
    """
    audience: str = ""
    """`client`: sent as `audience`, for authorization servers that do not know `resource`."""
    scopes: tuple[str, ...] = ()
    """`client`: the scopes to request."""
