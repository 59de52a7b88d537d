"""The settings of the development issuer at its start; nothing else configures it."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gatepost_keys.generate import GenerationRefused
from gatepost_keys.imitation import DEVELOPMENT, Imitation
from gatepost_keys.imitation.facts import org_of
from gatepost_keys.mint import MAX_LIFETIME_S
from gatepost_keys.subject import TokenSubject

MOUNT = "/dev-as"
"""The path of every development issuer: it marks the issuer as one for development."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MAX_REFRESH_S = 8 * 3600
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)

DEFAULT_USERS = (
    TokenSubject(
        username="alice",
        name="Alice Archer",
        tenant="acme",
        email="alice@acme.example",
        roles=("approver", "admin", "operator"),
    ),
    TokenSubject(
        username="dave",
        name="Dave Dunn",
        tenant="acme",
        email="dave@acme.example",
        roles=("approver",),
    ),
    TokenSubject(username="bob", name="Bob Bright", tenant="globex", email="bob@globex.example"),
)

DESCRIPTIONS: Mapping[str, str] = {
    "files:read": "Read the files of your workspace",
    "files:write": "Create and change files of your workspace",
    "gatepost:admin": "Manage MCP servers and agents of your organisation",
}

ACR_VALUES = ("urn:gatepost:dev:basic", "urn:gatepost:dev:strong")
"""How a person may sign in here (RFC 9470): the first unless a client asks for the second."""


class StaticClient(msgspec.Struct, frozen=True, kw_only=True):
    """A confidential client known from the start: a machine, or a resource that introspects."""

    client_id: str
    secret: str
    name: str = ""
    tenant: str = ""
    """The tenant its own tokens (client_credentials) belong to; empty: it gets none."""
    introspects: bool = False
    """May ask about every token, as a resource server does (RFC 7662)."""
    redirect_uris: tuple[str, ...] = ()
    """The redirect addresses for sign-ins; empty if no user signs in for it."""
    public: bool = False
    """Has no secret and proves itself by PKCE alone."""
    refreshes: bool = False
    """May use refresh tokens."""


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The development issuer's settings.

    Creating them raises GenerationRefused unless issuer and resources are on a loopback host and
    lifetimes are short: two of the locks that keep it out of production.
    """

    issuer: str = "http://127.0.0.1:8000/dev-as"
    """
    Where it is. Without an imitation, byte-equal to what its metadata, its tokens and the protected
    resource say; an imitation adds the provider's own path (`identifier`).
    """
    resources: tuple[str, ...] = ("http://127.0.0.1:8000/mcp",)
    """The resources it issues tokens for; `{tenant}` may stand for one path segment."""
    scopes: tuple[str, ...] = ("files:read", "files:write")
    """The scopes that exist; others are left out of what is granted (RFC 6749 section 3.3)."""
    scope_prefixes: tuple[str, ...] = ()
    """Each scope that begins so exists too, such as `mcp:` for servers that are added later."""
    default_scopes: tuple[str, ...] = ()
    """Granted to a client that asks for none and registered none."""
    descriptions: Mapping[str, str] = msgspec.field(default_factory=lambda: DESCRIPTIONS)
    """A sentence per scope for the consent page."""
    users: tuple[TokenSubject, ...] = DEFAULT_USERS
    auto_approve: bool = False
    """Answer authorization requests at once, without pages: for tests."""
    auto_user: str = ""
    """The user that `auto_approve` signs in without a `login_hint`; default: the first user."""
    cli_secret: str = ""
    """The secret of the client `gatepost-cli`, which mints and rotates; empty: no such client."""
    token_client: str = ""
    """The client that tokens of `gatepost token` name; default: `gatepost-cli`."""
    clients: tuple[StaticClient, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    """Web origins beside loopback ones whose scripts may register and get tokens."""
    private_redirects: tuple[str, ...] = ("cursor://anysphere.cursor-mcp/oauth/callback",)
    """Redirect addresses with a private scheme, each exactly as a client registers it."""
    access_token_format: Literal["jwt", "opaque"] = "jwt"  # noqa: S105 - a format, not a secret
    algorithm: str = "RS256"
    imitation: Imitation = DEVELOPMENT
    """The identity provider that it imitates."""
    rotate_keys_every_s: int = 0
    """A new signing key after so many seconds; 0: only when `gatepost-cli` asks for one."""
    token_lifetime_s: int = MAX_LIFETIME_S
    refresh_lifetime_s: int = MAX_REFRESH_S
    """From the sign-in on, however often it was refreshed."""
    code_lifetime_s: int = 60
    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""

    def __post_init__(self) -> None:
        for name, url in [("issuer", self.issuer), *(("resource", r) for r in self.resources)]:
            if not on_loopback(url):
                raise GenerationRefused(
                    f"the development issuer refuses the {name} {url}: "
                    "it works on http://127.0.0.1 or http://localhost only"
                )
        if urlsplit(self.issuer).path != MOUNT or "?" in self.issuer or "#" in self.issuer:
            raise GenerationRefused(
                f"the development issuer's URL ends in {MOUNT}, not {self.issuer}"
            )
        if not 0 < self.token_lifetime_s <= MAX_LIFETIME_S:
            raise GenerationRefused(f"token_lifetime_s is 1 to {MAX_LIFETIME_S}")
        if not 0 < self.refresh_lifetime_s <= MAX_REFRESH_S:
            raise GenerationRefused(f"refresh_lifetime_s is 1 to {MAX_REFRESH_S}")

    @property
    def origin(self) -> str:
        return self.issuer.removesuffix(MOUNT)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Return the tenants of its users; one, if the imitated tokens cannot name any."""
        tenants = tuple(dict.fromkeys(person.tenant for person in self.users))
        return tenants if self.imitation.has_tenants else tenants[:1]

    @property
    def people(self) -> tuple[TokenSubject, ...]:
        """Return the users of those tenants, who can sign in."""
        return tuple(person for person in self.users if person.tenant in self.tenants)

    def identifier(self, tenant: str) -> str:
        """Return the issuer that metadata and tokens of *tenant* name."""
        return self.issuer + self.imitation.issuer.replace("{org}", org_of(self.imitation, tenant))

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Return every issuer that its metadata and tokens name."""
        return tuple(dict.fromkeys(self.identifier(tenant) for tenant in self.tenants))

    def path(self, endpoint: str) -> str | None:
        """Return the path of the endpoint of that name, or None if the provider has none."""
        path = self.imitation.endpoints.get(endpoint)
        return None if path is None else MOUNT + path

    @property
    def offered(self) -> tuple[str, ...]:
        """Return the scopes that exist, as clients ask for them."""
        form, api_scopes = self.imitation.scope_form, self.imitation.api_scopes
        resource = self.resources[0] if self.resources else ""
        return tuple(
            form.format(resource=resource, scope=name) for name in api_scopes or self.scopes
        )

    def unknown(self, scopes: Iterable[str]) -> list[str]:
        """Return those of *scopes*, as tools name them, that do not exist."""
        return sorted(
            name
            for name in set(scopes)
            if name not in self.scopes and not name.startswith(self.scope_prefixes)
        )

    def user(self, hint: str) -> TokenSubject | None:
        """Return the user that *hint* names: `alice`, `alice@acme` or the e-mail address."""
        for person in self.people:
            if hint in {person.username, f"{person.username}@{person.tenant}", person.email}:
                return person
        return None


def on_loopback(url: str) -> bool:
    """
    Return whether *url* is plain http(s) on this machine, with nothing that hides another host.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    host_only = "@" not in parts.netloc and "\\" not in url
    return (
        parts.scheme in {"http", "https"}
        and host_only
        and parts.hostname in LOOPBACK
        and (port is None or port > 0)
    )
