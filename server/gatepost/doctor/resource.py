"""Check the protected resource metadata (RFC 9728) at every location that clients use."""

from urllib.parse import urlsplit

from gatepost.doctor.http import (
    HttpAnswer,
    HttpProbe,
    ServerUnreachable,
    normal,
    problem_of_address,
)
from gatepost.doctor.report import SERVER, Findings

NAME = "resource metadata"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
INSPECTOR = "http://localhost:6274"


def inserted(url: str) -> str:
    """Return the location of RFC 9728 section 3.1: between host and path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"


def appended(url: str) -> str:
    """Return the suffix location, which some servers also use."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{WELL_KNOWN}"


class ResourceDocuments:
    """The metadata documents of the server, by location."""

    def __init__(self, wire: HttpProbe, url: str, findings: Findings) -> None:
        self.wire = wire
        self.url = url
        self.findings = findings
        self._documents: dict[str, tuple[dict[str, object] | None, str]] = {}

    async def find(self, advertised: str) -> dict[str, object]:
        """Check the document and its locations; return the one that clients use, or {}."""
        document = await self._advertised(advertised) if advertised else None
        guessed = await self._guessed(document, is_advertised=bool(advertised))
        chosen = document if document is not None else guessed
        if chosen is None:
            return {}
        self._judge(chosen)
        return chosen

    async def _fetch(self, url: str) -> tuple[dict[str, object] | None, str]:
        if url not in self._documents:
            self._documents[url] = await self._get(url)
        return self._documents[url]

    async def _get(self, url: str) -> tuple[dict[str, object] | None, str]:
        try:
            answer = await self.wire.get(url, origin=INSPECTOR)
        except ServerUnreachable as unreachable:
            return None, str(unreachable)
        document = answer.json_object() if answer.status == 200 else None
        if document is None:
            return None, answer.described
        self._judge_cors(answer)
        return document, ""

    async def _advertised(self, url: str) -> dict[str, object] | None:
        if problem_of_address(url):
            return None
        document, problem = await self._fetch(url)
        if document is None:
            self.findings.fail(
                NAME,
                f"the resource_metadata URL of the challenge, {url}, gives no document ({problem})",
                where=SERVER,
                fix="serve the JSON document there without authentication, or correct the URL",
            )
        else:
            self.findings.ok(NAME, f"{url} answers")
        return document

    async def _guessed(
        self, document: dict[str, object] | None, *, is_advertised: bool
    ) -> dict[str, object] | None:
        first, problem = await self._fetch(inserted(self.url))
        if first is None:
            report = self.findings.warn if is_advertised else self.findings.fail
            report(
                NAME,
                f"{inserted(self.url)} gives no metadata document ({problem}), and "
                "clients without the challenge look there",
                where=SERVER,
                fix="serve the document at the location required by RFC 9728 section 3.1",
            )
        second, problem = await self._fetch(appended(self.url))
        if second is None:
            self.findings.note(NAME, f"{appended(self.url)} does not answer ({problem})")
        urls = [url for url in (document, first, second) if url is not None]
        if any(url != urls[0] for url in urls):
            self.findings.fail(
                NAME,
                "the metadata documents at the different locations differ",
                where=SERVER,
                fix="serve the same document at each location",
            )
        elif len(urls) > 1:
            self.findings.ok(NAME, "the locations agree")
        return first if first is not None else second

    def _judge(self, document: dict[str, object]) -> None:
        resource = document.get("resource")
        if not isinstance(resource, str) or normal(resource) != normal(self.url):
            self.findings.fail(
                "resource",
                f"the metadata names the resource {resource!r}, not {self.url}, and clients "
                "compare the two",
                where=SERVER,
                fix="set `resource` to the URL that clients call, or give clients the URL it names",
            )
        else:
            self.findings.ok("resource", resource)
        methods = document.get("bearer_methods_supported", ["header"])
        if not isinstance(methods, list) or "header" not in methods:
            self.findings.fail(
                "resource",
                "the metadata lacks `header` in bearer_methods_supported, which MCP clients use",
                where=SERVER,
                fix='add "header" to it',
            )

    def _judge_cors(self, answer: HttpAnswer) -> None:
        if not answer.header("access-control-allow-origin"):
            self.findings.note(
                "browsers", f"{answer.url} has no CORS header, so web pages cannot read it"
            )


def issuers_of(document: dict[str, object], findings: Findings) -> list[str]:
    """Return the authorization servers that the document names."""
    servers = document.get("authorization_servers")
    issuers = (
        [server for server in servers if isinstance(server, str)]
        if isinstance(servers, list)
        else []
    )
    if not issuers:
        findings.fail(
            "authorization servers",
            "the metadata document names no authorization server, so clients cannot sign in",
            where=SERVER,
            fix="list the issuer's identifier in `authorization_servers`",
        )
    elif len(issuers) > 1:
        findings.warn(
            "authorization servers",
            f"the metadata names {len(issuers)} authorization servers, and some clients use "
            f"only the first, {issuers[0]}",
            where=SERVER,
            fix="give each issuer its own resource, or list the issuer for all clients first",
        )
    else:
        findings.ok("authorization servers", issuers[0])
    return issuers
