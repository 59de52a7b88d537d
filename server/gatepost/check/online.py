"""Ask each issuer for the facts that the configuration expects, for `gatepost check --online`."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Literal

import msgspec

from gatepost.config.references import resolve
from gatepost.config.settings import Config
from gatepost_authz.client_authentication import credentials
from gatepost_authz.config import UNSAFE, DashboardClient, Problem
from gatepost_authz.discovery import Discovery, IssuerMetadata, find_document, named_issuer
from gatepost_authz.errors import AuthError, InvalidToken
from gatepost_authz.fetch import Fetcher, FetchError
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import KeyLocation, is_introspected, location_of
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.protected_resource import TENANT, Resource, SiblingPaths
from gatepost_authz.reasons import FETCH_ADVICE, RULES

OF_OPENID = frozenset(
    {"openid", "profile", "email", "address", "phone", "offline_access", "groups", "roles"}
)
"""Scopes for claims about people, which belong to no resource."""


class OnlineResult(msgspec.Struct, frozen=True):
    """
    The answers of the issuers: a line for each one that works as configured, and the problems.
    """

    lines: tuple[str, ...]
    problems: tuple[Problem, ...]


async def check_issuers(config: Config, scopes: Iterable[str]) -> OnlineResult:
    """
    Ask every enabled issuer for its metadata and its keys, and whether it knows our clients.

    *scopes* are those that callers request. Nothing is changed at an issuer: to introspection the
    check sends a token that does not exist, and to the token endpoint such a code.
    """
    lines: list[str] = []
    problems: list[Problem] = []
    async with AsyncExitStack() as closing:
        fetcher = Fetcher(development=config.development, network=config.network)
        closing.push_async_callback(fetcher.aclose)
        discovery = Discovery(fetcher)
        closing.push_async_callback(discovery.aclose)
        introspectors = Introspectors(fetcher, discovery, secret_of=resolve)
        closing.push_async_callback(introspectors.aclose)
        numbers = {issuer.issuer: number for number, issuer in enumerate(config.issuers)}
        for trusted in IssuerRegistry(config.issuers).issuers:
            setting = f"issuers[{numbers[trusted.settings.issuer]}]"
            check = IssuerCheck(trusted, setting, fetcher, discovery, introspectors)
            line = await check.run(frozenset(scopes), callback_of(config.resource))
            problems += check.problems
            if line:
                lines.append(line)
    return OnlineResult(tuple(lines), tuple(problems))


class IssuerCheck:
    """The check of one issuer; ``problems`` are those found so far."""

    def __init__(
        self,
        trusted: TrustedIssuer,
        setting: str,
        fetcher: Fetcher,
        discovery: Discovery,
        introspectors: Introspectors,
    ) -> None:
        self.problems: list[Problem] = []
        self._trusted = trusted
        self._issuer = trusted.settings.issuer
        self._setting = setting
        self._fetcher = fetcher
        self._discovery = discovery
        self._introspectors = introspectors

    async def run(self, scopes: frozenset[str], callback: str) -> str:
        """
        Ask the issuer; return the line for one without errors, else an empty string.

        *callback* is a redirect URI of the dashboard.
        """
        if self._trusted.template is not None:
            return f"{self._issuer}: not asked, because tokens fill in the issuer"
        facts: list[str] = []
        document = await self._metadata()
        if document is not None:
            facts += self._judge(document[1], scopes)
        if document is not None or self._trusted.settings.jwks_uri:
            facts.append(await self._key_set())
        facts.append(await self._introspection())
        if document is not None:
            facts.append(await self._sign_in(document[0], callback))
        if any(problem.level == "error" for problem in self.problems):
            return ""
        return f"{self._issuer}: {', '.join(fact for fact in facts if fact)}"

    def _add(self, id: str, message: str, hint: str, setting: str) -> None:
        level: Literal["error", "warning"] = "error" if ".E" in id else "warning"
        full_setting = f"{self._setting}.{setting}"
        self.problems.append(Problem(id, f"{self._issuer}: {message}", hint, level, full_setting))

    async def _metadata(self) -> tuple[IssuerMetadata, Mapping[str, object]] | None:
        try:
            return await find_document(self._fetcher, location_of(self._issuer, self._trusted))
        except FetchError as error:
            if self._trusted.settings.jwks_uri and error.reason in {"metadata", "status"}:
                return None  # the keys have a URL of their own, and need no metadata
            issuer = await self._named_issuer() if error.reason == "issuer" else ""
            hint = hint_on(error, "correct the address, or allow connections to it")
            if issuer:
                hint = f'write issuer = "{issuer}", exactly as the metadata spell it'
            self._add("config.E130", str(error), hint, "issuer")
            return None

    async def _named_issuer(self) -> str:
        """Return the issuer that the documents at this address name, or an empty string."""
        location = location_of(self._issuer, self._trusted)
        with suppress(FetchError):
            issuer = await named_issuer(self._fetcher, location)
            return "" if UNSAFE.search(issuer) else issuer
        return ""

    def _judge(self, document: Mapping[str, object], scopes: frozenset[str]) -> Iterator[str]:
        """Yield what clients find in the metadata, and add what stops them."""
        yield "metadata found"
        methods = document.get("code_challenge_methods_supported")
        if not isinstance(methods, list) or "S256" not in methods:
            self._add(
                "config.W130",
                "its metadata do not list S256 in code_challenge_methods_supported",
                "MCP clients refuse to sign in without it; enable PKCE at the issuer",
                "issuer",
            )
        offered = document.get("scopes_supported")
        offered = offered if isinstance(offered, list) else []
        missing = sorted(scopes.difference(offered)) if offered else []
        if missing and OF_OPENID.issuperset(map(str, offered)):
            # Glewlwyd and Canaille list only these, whatever scopes their clients may have.
            yield "its metadata list no scopes of tools"
        elif missing:
            self._add(
                "config.W131",
                f"its metadata do not list the scopes {', '.join(missing)}",
                "create them at the issuer, or its tokens will not carry them",
                "issuer",
            )
        by_url = document.get("client_id_metadata_document_supported") is True
        if isinstance(document.get("registration_endpoint"), str):
            yield "clients register themselves"
        else:
            yield "clients name a metadata document" if by_url else "clients are registered by hand"

    async def _key_set(self) -> str:
        opaque_only = is_introspected(self._trusted) and not self._trusted.introspects_signed
        if opaque_only and not self._trusted.settings.jwks_uri:
            return ""
        source = KeyLocation(self._issuer, self._trusted, self._fetcher, self._discovery)
        try:
            keys = (await source.load()).keys
        except FetchError as error:
            hint = hint_on(error, "check the address of the keys, and the algorithms")
            self._add("config.E131", f"its keys cannot be used: {error}", hint, "jwks_uri")
            return ""
        names = sorted({name for key in keys for name in key.algorithms})
        return f"{len(keys)} usable key{'s' * (len(keys) != 1)} ({', '.join(names)})"

    async def _introspection(self) -> str:
        if not is_introspected(self._trusted):
            return ""
        try:
            await self._introspectors.introspector_for(self._trusted).ask(secrets.token_urlsafe(32))
        except InvalidToken as refusal:
            if refusal.reason == "inactive":
                return "introspection answers"
        except AuthError as error:
            rule = RULES[error.reason]
            self._add("config.E132", rule.rule, rule.advice, "introspection")
            return ""
        self._add(
            "config.E132",
            "its introspection endpoint calls a random text an active token",
            "correct the endpoint; this one accepts everything",
            "introspection.endpoint",
        )
        return ""

    async def _sign_in(self, metadata: IssuerMetadata, callback: str) -> str:
        client = self._trusted.settings.dashboard
        if client is None:
            return ""
        try:
            endpoint = client.token_endpoint or metadata.endpoint("token_endpoint")
            await self._probe_token_endpoint(endpoint, client, callback)
        except FetchError as error:
            code = error.error or ("invalid_grant" if error.status == 400 else "")
            if code and code not in {"invalid_client", "unauthorized_client"}:
                return "the dashboard's client is known"
            self._add(
                "config.E133",
                f"its token endpoint refuses the dashboard's client: {error}",
                "check client_id, client_secret and method of the issuer's `dashboard` table",
                "dashboard",
            )
            return ""
        return "the dashboard's client is known"

    async def _probe_token_endpoint(
        self, endpoint: str, client: DashboardClient, callback: str
    ) -> None:
        """
        Redeem a code that was never issued: a refusal of the code accepts the client.

        Glewlwyd says of a foreign redirect URI that the client is not authorized, so it is ours.
        """
        headers, form = credentials(client, resolve(client.client_secret))
        fields = {
            "grant_type": "authorization_code",
            "code": secrets.token_urlsafe(32),
            "redirect_uri": callback,
            "code_verifier": secrets.token_urlsafe(48),
            **form,
        }
        location = location_of(self._issuer, self._trusted)
        await self._fetcher.post_form_once(
            endpoint, fields, headers=headers, allow_private=location.allow_private
        )


def hint_on(error: FetchError, usual: str) -> str:
    """Return what to do about a failed fetch, and the setting that decides; else *usual*."""
    advice, setting = FETCH_ADVICE.get(error.reason, (usual, ""))
    return f"{advice} See {setting}." if setting else advice


def callback_of(resource: str) -> str:
    """Return the redirect URI of the dashboard; with one per tenant, that of a made-up tenant."""
    server = Resource(resource)
    return f"{server.origin}{SiblingPaths(server).base}/dashboard/callback".replace(
        TENANT, "tenant"
    )
