"""Find an issuer's metadata document (RFC 8414, OpenID Connect Discovery 1.0)."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import inf
from urllib.parse import urlsplit

import msgspec

from gatepost_authz.addresses import Networks, url_problem
from gatepost_authz.fetch import Fetcher, FetchError

OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
FRESH_S = 3600.0


MetadataKey = tuple[str, bool]
"""An issuer, and whether its document of OpenID Connect is preferred."""
SIGN_IN = ("authorization_endpoint", "token_endpoint", "end_session_endpoint")
CACHED = 4096
"""The number of cached issuers; a template can have thousands."""


class IssuerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that a resource server uses; empty members are missing or unusable."""

    issuer: str
    location: str
    """The URL the document came from."""
    jwks_uri: str = ""
    introspection_endpoint: str = ""
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    end_session_endpoint: str = ""
    """Where people sign out (OpenID Connect RP-Initiated Logout 1.0)."""
    prompts: frozenset[str] = frozenset()
    """The values of `prompt` that it supports (OpenID Connect Prompt Create 1.0 section 4.2)."""
    names_itself: bool = False
    """Authorization responses carry `iss` (RFC 9207)."""
    elsewhere: frozenset[str] = frozenset()
    """The members that were left empty: not on the issuer's host, or not an https URL."""

    def endpoint(self, name: str) -> str:
        """
        Return the URL in member *name*; FetchError ``elsewhere`` or ``metadata`` when there is
        none.
        """
        url: str = getattr(self, name)
        if not url:
            raise FetchError("elsewhere" if name in self.elsewhere else "metadata")
        return url


class DiscoveryLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The location of an issuer's documents: its well-known URLs, in its own networks."""

    issuer: str
    """The concrete issuer, as its tokens spell it."""
    extra_paths: tuple[str, ...] = ()
    """Further paths under the issuer, for providers that need them (a preset's)."""
    allow_private: Networks = ()
    key_hosts: tuple[str, ...] = ()
    """Hosts beside the issuer's own that may serve its keys (a preset's)."""
    sign_in: bool = False
    """
    Whether to prefer the document of OpenID Connect: for many issuers only that document names the
    sign-out endpoint.
    """


class Discovery:
    """
    Finds metadata and caches it for an hour, and longer while the issuer is unreachable.

    All requests for one issuer at the same time wait for the same fetch. The caller decides when to
    ask again after a failure.
    """

    def __init__(
        self, fetcher: Fetcher, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetcher = fetcher
        self._monotonic = monotonic
        self._metadata: OrderedDict[MetadataKey, tuple[IssuerMetadata, float]] = OrderedDict()
        self._running: dict[MetadataKey, asyncio.Task[IssuerMetadata]] = {}

    async def find(self, location: DiscoveryLocation) -> IssuerMetadata:
        """
        Return the metadata of *location*; raise FetchError if it was never found.

        With ``issuer`` as reason: the documents that were found belong to other issuers.
        """
        key = (location.issuer, location.sign_in)
        cached = self._metadata.get(key)
        if cached is not None and self._monotonic() < cached[1]:
            return cached[0]
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._search(location))
            self._running[key] = task
            task.add_done_callback(lambda task: self._finish(key, task))
        try:
            # A request that gives up must not cancel the fetch for the others.
            return await asyncio.shield(task)
        except FetchError:
            if cached is not None:
                return cached[0]
            raise

    def cached_metadata(self, issuer: str) -> IssuerMetadata | None:
        """Return the cached metadata of an issuer, or None."""
        cached = self._metadata.get((issuer, False))
        return None if cached is None else cached[0]

    def invalidate(self, issuer: str) -> None:
        """Have the metadata of an issuer fetched again, because it did not work."""
        for key in {(issuer, False), (issuer, True)} & self._metadata.keys():
            self._metadata[key] = (self._metadata[key][0], -inf)

    async def aclose(self) -> None:
        """Cancel all searches."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finish(self, key: MetadataKey, task: asyncio.Task[IssuerMetadata]) -> None:
        self._running.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._metadata[key] = (task.result(), self._monotonic() + FRESH_S)
        self._metadata.move_to_end(key)
        if len(self._metadata) > CACHED:
            self._metadata.popitem(last=False)

    async def _search(self, location: DiscoveryLocation) -> IssuerMetadata:
        return (await find_document(self._fetcher, location))[0]


async def find_document(
    fetcher: Fetcher, location: DiscoveryLocation
) -> tuple[IssuerMetadata, Mapping[str, object]]:
    """
    Return the metadata of *location*, and the whole document; raise FetchError if there is none.
    """
    failure = FetchError("metadata")
    document_urls = locations(location.issuer, location.extra_paths)
    if location.sign_in:
        document_urls.sort(key=lambda document_url: OPENID not in document_url)
    for document_url in document_urls:
        try:
            document = await fetcher.get_json(document_url, allow_private=location.allow_private)
            return metadata_of(location, document_url, document.data), document.data
        except FetchError as error:
            # A mismatch tells the operator more than the 404 of the next location.
            failure = failure if failure.reason == "issuer" else error
            if not (error.answered or error.reason in {"issuer", "metadata"}):
                break  # the server is down, and the next location is on the same host
    raise failure


async def named_issuer(fetcher: Fetcher, location: DiscoveryLocation) -> str:
    """
    Return the issuer that the documents at *location* name, whichever it is, for an operator to
    read.

    FetchError: there is no document with an issuer.
    """
    failure = FetchError("metadata")
    for document_url in locations(location.issuer, location.extra_paths):
        try:
            document = await fetcher.get_json(document_url, allow_private=location.allow_private)
        except FetchError as error:
            failure = error
            if not error.answered:
                break
            continue
        issuer_name = document.data.get("issuer")
        if isinstance(issuer_name, str):
            return issuer_name
    raise failure


def locations(issuer: str, extra_paths: tuple[str, ...] = ()) -> list[str]:
    """
    Return the URLs of an issuer's metadata, in the order to try them.

    RFC 8414 section 3.1 puts the well-known part between host and path, OpenID Connect Discovery
    1.0 section 4.1 at the end; MCP clients try the same order.
    """
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [f"{origin}{OAUTH}{path}", f"{origin}{OPENID}{path}", f"{origin}{path}{OPENID}"]
    urls += [f"{origin}{path}{extra}" for extra in extra_paths]
    return list(dict.fromkeys(urls))


def metadata_of(
    location: DiscoveryLocation, document_url: str, document: Mapping[str, object]
) -> IssuerMetadata:
    """
    Parse *document*; raise FetchError ``issuer`` or ``metadata`` if it does not belong to
    *location*.

    ``issuer`` must be equal as a string (RFC 8414 section 3.3): a host of many issuers could
    otherwise answer for the neighbour. Endpoints count only on the issuer's own host, keys also on
    those of the preset: who can plant a document below the issuer's host (an upload folder, a
    tenant's page) must not bring keys, or a place to send our secret to, from elsewhere.
    """
    if document.get("issuer") != location.issuer:
        raise FetchError("issuer")
    own_hosts = frozenset({authority(location.issuer)})
    # Browsers are sent to some of them, with an ID token, so that no fetch checks these URLs.
    loopback = location.issuer.startswith("http://")
    allowed = {"jwks_uri": own_hosts.union(location.key_hosts), "introspection_endpoint": own_hosts}
    allowed |= dict.fromkeys(SIGN_IN, own_hosts)
    endpoints: dict[str, str] = {}
    foreign_members = set()
    for name, hosts in allowed.items():
        url = document.get(name, "")
        if not isinstance(url, str):
            if name in SIGN_IN:
                continue  # no user can sign in there; issuers for machines often say so
            raise FetchError("metadata")
        if url and (authority(url) not in hosts or url_problem(url, loopback)):
            foreign_members.add(name)
            url = ""
        endpoints[name] = url
    prompts = document.get("prompt_values_supported")
    return IssuerMetadata(
        issuer=location.issuer,
        location=document_url,
        prompts=frozenset(
            prompt
            for prompt in (prompts if isinstance(prompts, list) else ())
            if isinstance(prompt, str)
        ),
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
        elsewhere=frozenset(foreign_members),
        **endpoints,
    )


def authority(url: str) -> str:
    """
    Return host and port of *url* in lower case, without https's own port; empty if unreadable.
    """
    try:
        return urlsplit(url).netloc.lower().removesuffix(":443")
    except ValueError:
        return ""
