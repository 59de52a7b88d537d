"""Check the authorization server, as far as clients and the resource depend on it."""

from gatepost.doctor.http import HttpProbe, ServerUnreachable, problem_of_address
from gatepost.doctor.report import CLIENT, ISSUER, SERVER, Findings
from gatepost_authz.discovery import locations
from gatepost_authz.jwk import ALGORITHMS, UnusableKeySet, import_set

METADATA = "issuer metadata"
REGISTRATION = "registration"
KEYS = "key set"


class ExaminedIssuer:
    """One authorization server under examination."""

    def __init__(self, wire: HttpProbe, issuer: str, findings: Findings) -> None:
        self.wire = wire
        self.issuer = issuer
        self.findings = findings

    async def find(self) -> dict[str, object]:
        """Check metadata, PKCE, registration and keys; return the metadata, or {}."""
        if problem := problem_of_address(self.issuer):
            self.findings.fail(
                METADATA,
                f"the authorization server {self.issuer!r} {problem}",
                where=SERVER,
                fix="use the issuer's https URL in `authorization_servers`",
            )
            return {}
        document = await self._document()
        if not document:
            return {}
        self._judge_name(document)
        self._judge_endpoints(document)
        self._judge_pkce(document)
        self._judge_registration(document)
        await self._judge_keys(document)
        return document

    async def _document(self) -> dict[str, object]:
        tried = []
        for url in locations(self.issuer):
            try:
                answer = await self.wire.get(url)
            except ServerUnreachable as unreachable:
                self._unreachable(unreachable)
                return {}
            document = answer.json_object() if answer.status == 200 else None
            if document is not None:
                self.findings.ok(METADATA, f"{url} answers")
                return document
            tried.append(f"{url} ({answer.described})")
        self.findings.fail(
            METADATA,
            f"the authorization server {self.issuer} publishes no metadata: tried "
            + ", ".join(tried),
            where=ISSUER,
            fix="serve RFC 8414 or OpenID Connect metadata at one of these, or correct the issuer "
            "that the MCP server names",
        )
        return {}

    def _unreachable(self, reason: ServerUnreachable) -> None:
        self.findings.fail(
            METADATA,
            f"the authorization server {self.issuer} cannot be reached ({reason})",
            where=ISSUER,
            fix=reason.advice
            or "start it, allow connections to it, or correct the issuer in the server's metadata",
        )

    def _judge_name(self, document: dict[str, object]) -> None:
        issuer = document.get("issuer")
        if issuer == self.issuer:
            self.findings.ok(METADATA, f"issuer is {issuer}")
            return
        slash = isinstance(issuer, str) and issuer.rstrip("/") == self.issuer.rstrip("/")
        self.findings.fail(
            METADATA,
            f"the MCP server names the issuer {self.issuer!r}, but its metadata says {issuer!r}"
            + (" (a trailing slash counts)" if slash else ""),
            where=SERVER,
            fix="write the issuer exactly as in its own metadata",
        )

    def _judge_endpoints(self, document: dict[str, object]) -> None:
        for member in ("authorization_endpoint", "token_endpoint"):
            url = document.get(member)
            problem = problem_of_address(url) if isinstance(url, str) else "is missing"
            if problem:
                self.findings.fail(
                    METADATA,
                    f"the {member} in the metadata of {self.issuer} {problem}",
                    where=ISSUER,
                    fix=f"publish an absolute https URL as `{member}`",
                )

    def _judge_pkce(self, document: dict[str, object]) -> None:
        methods = document.get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" in methods:
            self.findings.ok("PKCE", "S256")
            return
        self.findings.fail(
            "PKCE",
            f"the metadata of {self.issuer} does not offer PKCE with S256, which MCP clients "
            "require",
            where=ISSUER,
            fix="support it and list S256 in `code_challenge_methods_supported`",
        )

    def _judge_registration(self, document: dict[str, object]) -> None:
        if document.get("client_id_metadata_document_supported") is True:
            self.findings.ok(REGISTRATION, "client ID metadata documents")
        elif not isinstance(document.get("registration_endpoint"), str):
            self.findings.warn(
                REGISTRATION,
                f"{self.issuer} does not support client registration, so each client needs a "
                "pre-registered client id",
                where=CLIENT,
                fix="register the client there with its redirect URI, and enter the client id",
            )
            return
        else:
            self.findings.ok(REGISTRATION, "dynamic client registration")
        methods = document.get("token_endpoint_auth_methods_supported")
        if isinstance(methods, list) and "none" not in methods:
            self.findings.warn(
                REGISTRATION,
                f"{self.issuer} does not offer public clients, which most MCP clients register as",
                where=ISSUER,
                fix="allow `none` in `token_endpoint_auth_methods_supported`",
            )

    async def _judge_keys(self, document: dict[str, object]) -> None:
        url = document.get("jwks_uri")
        if not isinstance(url, str):
            if isinstance(document.get("introspection_endpoint"), str):
                self.findings.note(KEYS, "none: the server has to introspect tokens")
            else:
                self._no_keys("publishes neither `jwks_uri` nor `introspection_endpoint`")
            return
        try:
            answer = await self.wire.get(url)
        except ServerUnreachable as unreachable:
            self._no_keys(f"has a key set that cannot be reached at {url} ({unreachable})")
            return
        keys = answer.json_object() if answer.status == 200 else None
        if keys is None:
            self._no_keys(f"has no key set at {url} ({answer.described})")
        else:
            self._judge_key_set(url, keys)

    def _judge_key_set(self, url: str, document: dict[str, object]) -> None:
        skipped: list[str] = []
        try:
            usable = import_set(
                document, allowed=ALGORITHMS, skipped=lambda _kid, reason: skipped.append(reason)
            )
        except UnusableKeySet as error:
            self._no_keys(f"publishes an unusable key set at {url} ({error})")
            return
        if not usable:
            self._no_keys(f"has no usable key at {url} ({', '.join(sorted(set(skipped)))})")
            return
        algorithms = sorted({name for key in usable for name in key.algorithms})
        self.findings.ok(KEYS, f"{len(usable)} usable: {', '.join(algorithms)}")

    def _no_keys(self, problem: str) -> None:
        self.findings.fail(
            KEYS,
            f"{self.issuer} {problem}, so its tokens cannot be checked",
            where=ISSUER,
            fix="publish a key set with an RSA, EC or Ed25519 public key for signatures",
        )
