"""The settings of the gate, as frozen values."""

import re
from typing import Literal

import msgspec

from gatepost_authz.token_rules import TokenRules

TENANT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
"""The grammar of a tenant id: it names directories, metric labels and cache keys."""

UNSAFE = re.compile(r"[^\x21\x23\x24\x26-\x5b\x5d-\x7e]")
"""Characters that are unsafe in a quoted header or ambiguous in a comparison of addresses."""


class Problem(msgspec.Struct, frozen=True):
    """A problem of a configuration: a stable id, a sentence and a hint."""

    id: str
    message: str
    hint: str = ""
    level: Literal["error", "warning"] = "error"
    setting: str = ""
    """The setting's full name, for example ``issuers[0].algorithms``."""


class TenantRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an issuer's tokens name their tenant: exactly one of the three."""

    claim: str = ""
    """The claim (a dotted path reaches into objects) that holds the organisation."""
    value: str = ""
    """Every token of this issuer belongs to this tenant."""
    only_entry: bool = False
    """
    Whether the claim may be a list with one value, or an object with one member, whose name counts.
    The claim of the preset always may be.
    """
    issuer: bool = False
    """The issuer itself is the tenant, or the part of a templated issuer that varies."""


class RoleRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The holders of a role: callers whose claim equals the value, or contains it as a list."""

    claim: str
    """The claim (a dotted path reaches into objects)."""
    value: str
    """The exact value that grants the role."""


ClientMethod = Literal["client_secret_basic", "client_secret_post", "private_key_jwt"]


class Introspection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this issuer is asked about tokens (RFC 7662)."""

    client_id: str
    """This server's own client id at the issuer."""
    client_secret: str = ""
    """Its secret, as a reference (`env:NAME`, `file:PATH`)."""
    endpoint: str = ""
    """Introspection endpoint; default: discovered."""
    method: ClientMethod = "client_secret_basic"
    """How the client authenticates."""
    encoding: Literal["form", "raw"] = "form"
    """
    How `client_secret_basic` writes id and secret: form-encoded (RFC 6749 section 2.3.1), or `raw`
    for issuers that do not decode them.
    """
    private_key: str = ""
    """With `private_key_jwt`: the private key (PEM), as a reference (`env:NAME`, `file:PATH`)."""
    key_id: str = ""
    """With `private_key_jwt`: the `kid` of the key; default: none."""
    assertion_audience: str = ""
    """With `private_key_jwt`: the `aud` of the assertion; default: the issuer."""
    when: Literal["opaque", "always"] = "opaque"
    """
    `always` also asks about signed tokens, for revocation and for claims that they lack. Both must
    agree. If the preset's provider issues only signed access tokens, opaque tokens are then
    refused. Where a provider's signed tokens lack such claims (`canaille`), its preset always asks.
    """
    audience: Literal["token", "client"] = "token"
    """
    `client` accepts answers about opaque tokens that name no audience. It states that the issuer
    answers this client only about tokens for this resource.
    """
    token_prefix: str = ""
    """The text with which all opaque tokens of this issuer begin; no other issuer gets them."""
    ask_in_turn: bool = False
    """
    Whether this issuer may see opaque tokens of the other issuers that have this setting. They are
    asked in the order of their tables until one knows the token.
    """


class ClientRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The tenant and scopes of a machine whose tokens do not state them. They never apply to a person,
    and never replace the token's own.
    """

    tenant: str = ""
    """Its tenant, if its tokens have no claim with a tenant."""
    scopes: tuple[str, ...] = ()
    """Its scopes, if its tokens have no claim with scopes."""


class DashboardClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The client that signs people in to the dashboard at this issuer (OpenID Connect)."""

    client_id: str
    """The client's id at the issuer; register the dashboard's address and `/callback` with it."""
    client_secret: str
    """Its secret, as a reference (`env:NAME`, `file:PATH`)."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """
    The scopes that a sign-in requests, together with `scopes.baseline` and `openid`. If the
    provider finds the resource by a scope (Entra), add that scope here.
    """
    authorization_endpoint: str = ""
    """The authorization endpoint; default: discovered, on the issuer's own host."""
    token_endpoint: str = ""
    """The token endpoint; default: discovered, on the issuer's own host."""
    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the client authenticates."""
    sign_out: bool = True
    """
    Whether people who sign out of the dashboard sign out at the issuer too, if its metadata name an
    `end_session_endpoint`. Register the dashboard's address and `/signed-out` with the client.
    """
    prompt: Literal["", "select_account", "login", "consent"] = ""
    """
    The `prompt` of a sign-in that follows a sign-out or a refused sign-in, so that a person can use
    another account; default: `select_account` or `login`, if the issuer's metadata name it.
    """
    encoding: Literal["form", "raw"] = "form"
    """
    How `client_secret_basic` writes id and secret: form-encoded (RFC 6749 section 2.3.1), or `raw`
    for issuers that do not decode them.
    """


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An identity provider whose tokens are accepted."""

    issuer: str
    """Byte-equal to the issuer's own metadata; one `{...}` segment makes it a template."""
    enabled: bool = True
    """Off: its tokens are refused, and the tenants that its settings name stay reserved."""
    preset: str = "generic"
    """The preset with the provider's differences: see the provider pages."""
    tokens: TokenRules = TokenRules()
    audiences: tuple[str, ...] = ()
    """Audiences accepted beside the preset's rule; default: the resource."""
    algorithms: tuple[str, ...] = ()
    """Signature algorithms accepted; default: the preset's."""
    jwks_uri: str = ""
    """The URL of the keys; default: discovered."""
    allow_private: tuple[str, ...] = ()
    """Private networks (CIDR) that this issuer may live in."""
    tenant: TenantRule = TenantRule()
    """How tokens name their tenant."""
    tenants: dict[str, str] = {}
    """Claim value (or issuer) = tenant id; with it, no other value is accepted."""
    clients: dict[str, ClientRule] = {}
    """Client id = tenant and scopes of a machine whose tokens have none."""
    roles: dict[str, RoleRule] = {}
    """Role = rule, for `approver`, `admin`, and `operator`, who sees all tenants."""
    introspection: Introspection | None = None
    """Set for issuers of opaque tokens."""
    dashboard: DashboardClient | None = None
    """Set where people sign in to the dashboard at this issuer."""
    leeway_s: int = 30
    """Clock difference tolerated, in seconds; at most 300."""
    max_lifetime_s: int = 86_400
    """The longest `exp - iat` accepted, in seconds."""


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this server reaches other servers."""

    ca_bundle: str = ""
    """A file with the company's CA certificates (PEM), used beside the system's."""
    proxy: str = ""
    """An HTTP proxy for outgoing requests."""
    allow_hosts: tuple[str, ...] = ()
    """
    Hosts that tools may reach although their addresses are private, as `host` (https) or
    `host:port` (http too): `gitlab.corp.example`, `10.0.0.7:8080`.
    """
