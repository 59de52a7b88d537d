"""The settings of the pack `openapi`."""

import re
from collections.abc import Iterator
from typing import Literal

from gatepost import CredentialUse, PackSettings, SettingFault, built_in_packs, is_reference

NAME = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
URL = re.compile(r"https?://[^\s?#@]+")
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")

RouteMethod = Literal["get", "put", "post", "delete", "options", "head", "patch", "trace"]


class Api(PackSettings, frozen=True, kw_only=True):
    """`[packs.openapi.apis.NAME]`: a description whose operations become tools."""

    document: str
    """The OpenAPI description: a file, or a URL that is fetched at the start."""
    base_url: str = ""
    """Base URL of the API; default: the server in its description."""
    auth: str = ""
    """The tenant's secret that calls are sent with, as `secret:NAME`; default: none."""
    auth_header: str = "Authorization"
    """The header that carries the secret."""
    auth_scheme: str = ""
    """The scheme before it in that header, for example `Bearer`."""
    credential: str = ""
    """
    Instead of `auth`: the `[credentials.NAME]` table that calls are signed in with. Its `hosts`
    must name the API's host.
    """
    tags: tuple[str, ...] = ()
    """Only operations with one of these tags; default: all."""
    paths: tuple[str, ...] = ()
    """Only paths that match one of these patterns (`/pets/*`); default: all."""
    methods: tuple[RouteMethod, ...] = ()
    """Only these methods; default: all."""
    prefix: str = ""
    """Prefix of the tools' names."""
    scopes: tuple[str, ...] = ()
    """Scopes that a caller needs for any of its tools, all of them."""
    timeout_s: float = 30.0
    """Seconds that the API may take to answer."""

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if not self.document:
            yield SettingFault("document", "no description is named", "name a file or a URL")
        if self.base_url and not URL.fullmatch(self.base_url):
            yield SettingFault(
                "base_url", "it is not an http or https URL without user, query and fragment"
            )
        if self.auth and not is_reference(self.auth):
            # The value is not shown: it may be the secret itself.
            hint = "write secret:NAME, and set it by `gatepost secrets set`"
            yield SettingFault("auth", "this is no reference to a secret", hint)
        if self.credential and self.auth:
            hint = "remove one of them"
            yield SettingFault("credential", "the API has both `auth` and `credential`", hint)
        if not HEADER.fullmatch(self.auth_header):
            yield SettingFault("auth_header", f"{self.auth_header!r} is not a header name")
        if self.prefix and not NAME.fullmatch(self.prefix):
            yield SettingFault("prefix", "a prefix is at most 32 of a-z, 0-9 and _")
        if not 0 < self.timeout_s <= 600:
            yield SettingFault("timeout_s", "it must be above 0 and at most 600")
        for scope in self.scopes:
            if not SCOPE.fullmatch(scope):
                yield SettingFault("scopes", f"{scope!r} is not a scope")


class OpenapiSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.openapi]`."""

    literals: bool = False
    """Whether `openapi_load` accepts literal credentials in addition to references to secrets."""
    apis_per_tenant: int = 50
    """Maximum number of APIs that a tenant can load."""
    document_bytes: int = 20_000_000
    """Bytes of the largest description that can be loaded."""
    apis: dict[str, Api] = {}
    """APIs whose operations become tools, one table each."""

    @property
    def makes_packs(self) -> bool:
        """Return whether a table makes packs, even while the pack itself is off."""
        return bool(self.apis)

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if self.apis_per_tenant < 1:
            yield SettingFault("apis_per_tenant", "at least one must be allowed")
        if not 1_000 <= self.document_bytes <= 20_000_000:
            yield SettingFault("document_bytes", "it must be between 1,000 and 20,000,000")
        for name, api in self.apis.items():
            yield from self.faults_of(name, api)

    def credential_uses(self) -> Iterator[CredentialUse]:
        """Yield the credentials of the APIs."""
        for name, api in self.apis.items():
            if api.credential:
                setting = f"apis.{name}.credential"
                yield CredentialUse(setting, api.credential, api.base_url)

    def faults_of(self, name: str, api: Api) -> Iterator[SettingFault]:
        """Yield problems with one API's table."""
        if not NAME.fullmatch(name):
            hint = "a name is at most 32 of a-z, 0-9 and _"
            yield SettingFault(f"apis.{name}", f"{name!r} cannot name an API", hint)
        elif name in built_in_packs():
            hint = "choose another name: agents and logs show pack names"
            yield SettingFault(f"apis.{name}", f"{name!r} is the name of a built-in pack", hint)
        for fault in api.faults():
            yield fault._replace(setting=f"apis.{name}.{fault.setting}")
