"""HTTP requests as clients send them, and bounded answers."""

import asyncio
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
import msgspec

from gatepost_authz.fetch import certificate_problem

LIMIT_BYTES = 1_000_000
TIMEOUT_S = 10.0
CERTIFICATES = {
    "certificate": "no known CA issued its certificate",
    "certificate_expired": "its certificate has expired",
    "certificate_name": "its certificate is for another host",
}
ADVICE = {
    "certificate": "use a certificate of a public CA; for a private CA, give the doctor its "
    "certificate with --ca-bundle, and Gatepost with network.ca_bundle",
    "certificate_name": "use the host that the certificate names, or get one for this host",
}
FIRST_EVENT = re.compile(rb"^data:[^\r\n]*\S.*?(?:\r\n\r\n|\n\n|\r\r)", re.MULTILINE | re.DOTALL)


class ServerUnreachable(Exception):
    """There was no HTTP answer; the text has the reason, and ``advice`` what to do, if known."""

    def __init__(self, reason: str, *, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


class HttpAnswer(msgspec.Struct, frozen=True):
    """An HTTP answer: status, headers (names in lower case) and body."""

    url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def fields(self, name: str) -> tuple[str, ...]:
        """Return every header with this name, in order."""
        return tuple(value for field, value in self.headers if field == name)

    def header(self, name: str) -> str:
        """Return the first header with this name, else the empty string."""
        return next(iter(self.fields(name)), "")

    @property
    def kind(self) -> str:
        """Return the media type, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    def json_object(self) -> dict[str, object] | None:
        """Return the body as a JSON object, or None."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def message(self) -> dict[str, object] | None:
        """Return the JSON-RPC message of the body, or of the first server-sent event."""
        if self.kind != "text/event-stream":
            return self.json_object()
        lines = self.body.decode(errors="replace").splitlines()
        data = [line[5:].strip() for line in lines if line.startswith("data:")]
        for text in filter(None, data):
            try:
                return msgspec.json.decode(text, type=dict[str, object])
            except (msgspec.DecodeError, RecursionError):
                continue
        return None

    @property
    def described(self) -> str:
        """Describe the answer: `404 with an HTML page`."""
        kinds = {"text/html": "an HTML page", "": "no content type", "application/json": "JSON"}
        return f"{self.status} with {kinds.get(self.kind, self.kind)}"


class HttpProbe:
    """Send requests without following redirects, as clients do, and read bounded answers."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HttpAnswer:
        """Send one request, limited to ten seconds and one megabyte; raises ServerUnreachable."""
        try:
            # One limit for the whole exchange: a slow server can outlast the client's limit.
            async with (
                asyncio.timeout(TIMEOUT_S),
                self.client.stream(
                    method,
                    url,
                    headers=dict(headers or {}),
                    content=body,
                    timeout=TIMEOUT_S,
                    follow_redirects=False,
                ) as response,
            ):
                return HttpAnswer(
                    url,
                    response.status_code,
                    tuple((n.lower(), v) for n, v in response.headers.multi_items()),
                    await _body_of(response),
                )
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise _unreachable(error) from error

    async def get(self, url: str, *, origin: str = "") -> HttpAnswer:
        """Get a JSON document, as a web page of *origin* would."""
        headers = {"Accept": "application/json"}
        return await self.send("GET", url, headers=headers | ({"Origin": origin} if origin else {}))


async def _body_of(response: httpx2.Response) -> bytes:
    body = b""
    stream = response.headers.get("content-type", "").startswith("text/event-stream")
    async for chunk in response.aiter_bytes():
        body += chunk
        # An event stream may stay open. Its first event has the answer.
        if len(body) > LIMIT_BYTES or (stream and FIRST_EVENT.search(body)):
            break
    return body[:LIMIT_BYTES]


def _unreachable(error: Exception) -> ServerUnreachable:
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return ServerUnreachable(f"no answer within {TIMEOUT_S:g} seconds")
    problem = certificate_problem(error)
    if problem:
        return ServerUnreachable(CERTIFICATES[problem], advice=ADVICE.get(problem, "renew it"))
    return ServerUnreachable(str(error) or type(error).__name__)


def is_loopback(url: str) -> bool:
    """Return whether the URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem_of_address(url: str) -> str:
    """Return why a client cannot use this URL; empty if it can."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "is not an absolute http or https URL"
    if parts.username or parts.fragment:
        return "contains user information or a fragment"
    if parts.scheme == "http" and not is_loopback(url):
        return "is plain http, which does not protect tokens"
    return ""


def normal(url: str) -> str:
    """Return the normalised URL: host in lower case, no default port, at least the path /."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in {None, default} else f":{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{port}{parts.path or '/'}{query}"
