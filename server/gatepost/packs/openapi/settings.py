"""What the pack `openapi` can be told."""

import re
from collections.abc import Iterator
from typing import Literal

from gatepost.packs import BUILT_IN
from gatepost.packs.table import Fault, PackSettings, is_reference

NAME = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
URL = re.compile(r"https?://[^\s?#@]+")
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")

Method = Literal["get", "put", "post", "delete", "options", "head", "patch", "trace"]


class Api(PackSettings, frozen=True, kw_only=True):
    """`[packs.openapi.apis.NAME]`: a description whose operations become tools."""

    document: str
    """Its OpenAPI description: a file, or a URL that is fetched at the start."""
    base_url: str = ""
    """Where the API is; default: what its description says."""
    auth: str = ""
    """The tenant's secret that calls carry, as `secret:NAME`; default: none."""
    auth_header: str = "Authorization"
    """The header that carries it."""
    auth_scheme: str = ""
    """What stands before it in that header, for example `Bearer`."""
    tags: tuple[str, ...] = ()
    """Only operations with one of these tags; default: all."""
    paths: tuple[str, ...] = ()
    """Only paths that fit one of these patterns (`/pets/*`); default: all."""
    methods: tuple[Method, ...] = ()
    """Only these methods; default: all."""
    prefix: str = ""
    """What the names of its tools begin with."""
    scopes: tuple[str, ...] = ()
    """All that a caller needs for any of its tools."""
    timeout_s: float = 30.0
    """Seconds that the API may take to answer."""

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        if not self.document:
            yield Fault("document", "no description is named", "name a file or a URL")
        if self.base_url and not URL.fullmatch(self.base_url):
            yield Fault("base_url", "this is no http or https URL without user, query and fragment")
        if self.auth and not is_reference(self.auth):
            # The value is not shown: somebody may have put the secret itself here.
            hint = "write secret:NAME, and set it by `gatepost secrets set`"
            yield Fault("auth", "this is no reference to a secret", hint)
        if not HEADER.fullmatch(self.auth_header):
            yield Fault("auth_header", f"{self.auth_header!r} is no header's name")
        if self.prefix and not NAME.fullmatch(self.prefix):
            yield Fault("prefix", "a prefix is at most 32 of a-z, 0-9 and _")
        if not 0 < self.timeout_s <= 600:
            yield Fault("timeout_s", "this must be above 0 and at most 600")
        for scope in self.scopes:
            if not SCOPE.fullmatch(scope):
                yield Fault("scopes", f"{scope!r} is no scope")


class OpenapiSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.openapi]`."""

    literals: bool = True
    """Whether `openapi_load` takes credentials themselves, beside references to secrets."""
    apis_per_tenant: int = 50
    """How many APIs a tenant may have loaded."""
    document_bytes: int = 20_000_000
    """The largest description that is loaded."""
    apis: dict[str, Api] = {}
    """APIs whose operations become tools of their own, one table each."""

    @property
    def makes_packs(self) -> bool:
        """See `PackSettings`."""
        return bool(self.apis)

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        if self.apis_per_tenant < 1:
            yield Fault("apis_per_tenant", "at least one must be allowed")
        if not 1_000 <= self.document_bytes <= 20_000_000:
            yield Fault("document_bytes", "this must be between 1,000 and 20,000,000")
        for name, api in self.apis.items():
            yield from self.faults_of(name, api)

    def faults_of(self, name: str, api: Api) -> Iterator[Fault]:
        """What is wrong with one API's table."""
        if not NAME.fullmatch(name):
            hint = "a name is at most 32 of a-z, 0-9 and _"
            yield Fault(f"apis.{name}", f"{name!r} cannot name an API", hint)
        elif name in BUILT_IN:
            hint = "agents and logs name packs: choose a name of its own"
            yield Fault(f"apis.{name}", f"{name!r} is the name of a built-in pack", hint)
        for fault in api.faults():
            yield fault._replace(setting=f"apis.{name}.{fault.setting}")
