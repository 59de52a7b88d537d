"""The protected resource: the URL that clients call, its metadata, and the paths beside it."""

import re
from urllib.parse import urlsplit

import msgspec

from gatepost_authz.config import TENANT_ID, UNSAFE

TENANT = "{tenant}"
WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Target(msgspec.Struct, frozen=True):
    """The protected resource that one request addresses."""

    url: str
    """The canonical resource URL, from configuration; also the audience tokens must name."""
    metadata_url: str
    """Absolute address of its metadata document, as every challenge names it."""
    tenant: str | None = None
    """The tenant in the resource's path, when the resource is a template."""


class Resource:
    """
    The URL clients call, which is the OAuth resource identifier too (RFC 8707, RFC 9728).

    It comes only from the configuration. It may contain ``{tenant}`` as one whole path segment;
    then each tenant has its own resource, metadata document and issuer list. ``path`` and
    ``metadata_paths`` (routes of the metadata document) keep the ``{tenant}``. ValueError for an
    address that could end the quotes of a challenge.
    """

    def __init__(self, url: str) -> None:
        if UNSAFE.search(url):
            raise ValueError(f"{url!r} cannot be a resource")
        parts = urlsplit(url)
        self.url = url
        self.scheme = parts.scheme
        self.host = parts.hostname or ""
        self.authority = parts.netloc
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.path = parts.path
        self.templated = TENANT in url
        # The variant under the resource comes first, because challenges name it. For an origin both
        # are the same. RFC 9728 section 3.1 removes only a slash right after the host.
        inserted = WELL_KNOWN + ("" if parts.path == "/" else parts.path)
        appended = parts.path.rstrip("/") + WELL_KNOWN
        self.metadata_paths = tuple(dict.fromkeys((appended, inserted)))
        self._metadata_url = self.origin + appended
        before, _, after = parts.path.partition(TENANT)
        self._pattern = re.compile(
            f"{re.escape(before)}({TENANT_ID.pattern}){re.escape(after)}", re.ASCII
        )
        self.only = None if self.templated else Target(url, self._metadata_url)
        """The resource of every path; None if the path names a tenant."""

    def of_tenant(self, tenant: str) -> Target:
        """Return the resource of one tenant (or the only resource without a template)."""
        return self.only or Target(
            self.url.replace(TENANT, tenant), self._metadata_url.replace(TENANT, tenant), tenant
        )

    def locate(self, path: str) -> Target | None:
        """
        Return the resource of a request path, or None.

        An untemplated resource answers for every path of the server.
        """
        if self.only is not None:
            return self.only
        match = self._pattern.fullmatch(path)
        return self.of_tenant(match[1]) if match else None


class SiblingPaths:
    """
    The paths below ``base`` that the server serves for the same tokens, beside the endpoint.

    These paths are in the folder of the endpoint, as relative references resolve (RFC 3986 section
    5.2.3): ``/t/{tenant}/tools`` is beside ``/t/{tenant}/mcp``. If the tenant is the last segment,
    the base is the endpoint itself, because all tenants would share the folder. Tokens name the
    resource, never such a path.
    """

    def __init__(self, resource: Resource) -> None:
        folder = resource.path.rpartition("/")[0]
        if resource.templated and TENANT not in folder:
            folder = resource.path.rstrip("/")
        self.base = folder
        self.only = resource.only
        """The resource of every path; None if the path names a tenant."""
        self._resource = resource
        before, _, after = folder.partition(TENANT)
        self._pattern = re.compile(
            f"{re.escape(before)}({TENANT_ID.pattern}){re.escape(after)}/[^/].*", re.ASCII
        )

    def locate(self, path: str) -> Target | None:
        """Return the resource of a request path below ``base``, or None."""
        if not self._resource.templated:
            return self._resource.locate(path)
        match = self._pattern.fullmatch(path)
        return self._resource.of_tenant(match[1]) if match else None
