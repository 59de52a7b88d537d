"""Read a provider's metadata, and a token if there is one, and propose its `[[issuers]]` table."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import msgspec

from gatepost.doctor.issuer_proposal import Evidence, Proposal
from gatepost.doctor.report import printable
from gatepost_authz import signature
from gatepost_authz.addresses import networks_of
from gatepost_authz.caller import TenantContext
from gatepost_authz.check import problems
from gatepost_authz.config import Issuer, Network
from gatepost_authz.discovery import (
    Discovery,
    DiscoveryLocation,
    authority,
    find_document,
    named_issuer,
)
from gatepost_authz.errors import AuthError, InvalidToken, IssuerUnavailable
from gatepost_authz.fetch import Fetcher, FetchError
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry, is_loopback
from gatepost_authz.protected_resource import Resource
from gatepost_authz.reasons import RULES, UNKNOWN_REASON
from gatepost_authz.signed_introspection import SignedTokenIntrospection
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier, looks_like_jwt

Verify = Callable[[Issuer], Awaitable[TenantContext | None]]

REPAIRS_AT_MOST = 20
REFERENCE = "env:GATEPOST_INTROSPECTION_SECRET"
METHODS = (
    {"method": "client_secret_basic"},
    {"method": "client_secret_post"},
    {"method": "client_secret_basic", "encoding": "raw"},
)
"""How a client may authenticate at introspection, in the order in which the probe tries it."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a probe: the issuer's URL, and the operator's data for it."""

    url: str
    resource: str = "https://mcp.example.com/mcp"
    token: str = ""
    client_id: str = ""
    """This server's client at the issuer, for introspection."""
    client_secret: str = ""
    ca_bundle: str = ""

    @property
    def development(self) -> bool:
        """Return whether the issuer is on this machine, where development issuers are."""
        return is_loopback(urlsplit(self.url).hostname or "")


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The proposed table, and notes for the operator about it."""

    table: str
    """TOML; empty if the issuer has no metadata."""
    findings: tuple[str, ...]
    works: bool
    """Whether the gate accepts the token with this table, or no token was given."""


class IssuerProbe:
    """The probe of one issuer."""

    def __init__(self, request: ProbeRequest, fetcher: Fetcher) -> None:
        self._request = request
        self._fetcher = fetcher
        self._private: tuple[str, ...] = ()
        self._target = Resource(request.resource).of_tenant("")
        self.findings: list[str] = []
        self.works = True

    async def run(self) -> ProbeResult:
        """Return the proposal; FetchError if the issuer has no metadata that can be read."""
        issuer, source, metadata = await self._metadata()
        proposal = Proposal(issuer, metadata, source)
        if self._private:
            reason = "The issuer's host has these private addresses."
            proposal.set("allow_private", list(self._private), reason)
        if self._request.token and looks_like_jwt(self._request.token):
            await self._fit_signed(proposal)
        elif self._request.token:
            await self._fit_opaque(proposal)
        else:
            proposal.complete()
            self.findings.append(
                "No token was given, so the table rests on the metadata alone. Add --token."
            )
        self._judge(proposal)
        return ProbeResult(table=proposal.text(), findings=tuple(self.findings), works=self.works)

    async def _metadata(self) -> tuple[str, str, Mapping[str, object]]:
        """Return the issuer as its metadata spell it, where they are, and the document."""
        url = re.sub(r"/\.well-known/[a-z-]+", "", self._request.url)
        try:
            issuer = await named_issuer(self._fetcher, self._location(url))
        except FetchError as error:
            if error.reason != "address":
                raise
            self._private = await private_addresses(url)
            issuer = await named_issuer(self._fetcher, self._location(url))
        if "{" in issuer:
            # Entra's document for all organisations names none; the token does.
            issuer = self._issuer_of_token() or url
        if issuer != url:
            self.findings.append(f"The metadata spell the issuer {issuer}; so do its tokens.")
        metadata, document = await find_document(self._fetcher, self._location(issuer))
        return issuer, metadata.location, document

    def _location(self, issuer: str) -> DiscoveryLocation:
        return DiscoveryLocation(issuer=issuer, allow_private=tuple(networks_of(self._private)))

    def _issuer_of_token(self) -> str:
        with suppress(InvalidToken):
            issuer = signature.split(self._request.token).unverified.get("iss")
            return issuer if isinstance(issuer, str) else ""
        return ""

    async def _fit_signed(self, proposal: Proposal) -> None:
        try:
            parts = signature.split(self._request.token)
        except InvalidToken as refusal:
            self._give_up(refusal)
            return
        claims = parts.unverified
        evidence = Evidence(
            claims=claims,
            resource=self._request.resource,
            type=parts.header.type,
            algorithm=parts.header.algorithm,
        )
        now, expires = time.time(), claims.get("exp")
        if isinstance(expires, int | float) and 0 < expires <= now:
            now = expires - 1
            self.findings.append("The token has expired. It was checked as of a second before.")
        async with AsyncExitStack() as closing:
            keys = IssuerKeySets(self._fetcher)
            closing.push_async_callback(keys.aclose)
            signed_introspection: SignedTokenIntrospection | None = None
            if proposal.preset.introspects_signed:
                introspectors = await closing.enter_async_context(self._introspectors())
                answer = await self._introspected(proposal, introspectors)
                if answer is None:
                    proposal.complete()
                    return
                signed_introspection = SignedTokenIntrospection(introspectors)
                evidence = msgspec.structs.replace(evidence, claims={**answer, **claims})

            async def verify(issuer: Issuer) -> TenantContext | None:
                verifier = JwtVerifier(
                    IssuerRegistry([issuer]),
                    keys,
                    VerdictCache(),
                    policy=self._policy(),
                    signed_introspection=signed_introspection,
                    clock=lambda: now,
                )
                return await verifier.verify(self._request.token, self._target)

            await self._fit(proposal, evidence, verify)

    async def _fit_opaque(self, proposal: Proposal) -> None:
        async with self._introspectors() as introspectors:
            answer = await self._introspected(proposal, introspectors)
            if answer is None:
                proposal.complete()
                return

            async def verify(issuer: Issuer) -> TenantContext | None:
                registry = IssuerRegistry([issuer])
                verifier = IntrospectionVerifier(registry, introspectors, policy=self._policy())
                return await verifier.verify(self._request.token, self._target)

            evidence = Evidence(claims=answer, resource=self._request.resource)
            await self._fit(proposal, evidence, verify)

    @asynccontextmanager
    async def _introspectors(self) -> AsyncIterator[Introspectors]:
        """Yield what asks the issuer about tokens, with the client that the operator named."""
        async with AsyncExitStack() as closing:
            discovery = Discovery(self._fetcher)
            closing.push_async_callback(discovery.aclose)
            introspectors = Introspectors(
                self._fetcher, discovery, secret_of=lambda reference: self._request.client_secret
            )
            closing.push_async_callback(introspectors.aclose)
            yield introspectors

    async def _introspected(
        self, proposal: Proposal, introspectors: Introspectors
    ) -> Mapping[str, object] | None:
        """Return the answer about the token, and add how the client authenticates; None: no."""
        signed = looks_like_jwt(self._request.token)
        lacks = "The token says too little by itself" if signed else "The token is opaque"
        if not self._request.client_id:
            self.works = False
            self.findings.append(
                f"{lacks}, so the issuer must be asked about it. "
                "Add --client-id and --client-secret of a client that may introspect."
            )
            return None
        if authority(proposal.settings.issuer) != authority(self._request.url):
            # An attacker who can plant a document on this host would get the token and the secret.
            self.works = False
            self.findings.append(
                "The metadata name an issuer on another host, so the token and the secret were "
                "not sent. If this is your issuer, probe its own URL."
            )
            return None
        refusal: AuthError | None = None
        for method in METHODS:
            settings = {"client_id": self._request.client_id, "client_secret": REFERENCE, **method}
            reason = f"{lacks}. The issuer accepted this client and this method."
            proposal.set("introspection", settings, reason)
            [trusted] = IssuerRegistry([proposal.settings]).issuers
            try:
                return await introspectors.introspector_for(trusted).ask(self._request.token)
            except IssuerUnavailable as error:
                refusal = refusal or error
            except AuthError as error:
                refusal = error
                break
        if refusal is not None:
            self._give_up(refusal)
        return None

    async def _fit(self, proposal: Proposal, evidence: Evidence, verify: Verify) -> None:
        """Change the table until the gate accepts the token, or no setting may help."""
        proposal.find_scopes(evidence)
        for _ in range(REPAIRS_AT_MOST):
            try:
                caller = await verify(proposal.settings)
            except AuthError as refusal:
                if proposal.fix(refusal.reason, refusal.claim or "", evidence):
                    continue
                self._give_up(refusal)
                proposal.forget_token()
                return
            if caller is not None and proposal.tells_id_tokens(evidence):
                self.findings.append(accepted(caller))
                return
            break
        proposal.forget_token()
        self.works = False
        self.findings.append(
            "Nothing tells this token from an ID token. Let the provider write `typ` at+jwt, a "
            "scope or a client_id into its access tokens."
        )

    def _policy(self) -> Policy:
        return Policy(
            tenancy=Tenancy(create_on_first_use=True), development=self._request.development
        )

    def _give_up(self, refusal: AuthError) -> None:
        self.works = False
        rule = RULES.get(refusal.reason, UNKNOWN_REASON)
        claim = f" ({refusal.claim})" if refusal.claim else ""
        self.findings.append(
            f"No setting makes Gatepost accept this token. {rule.rule}{claim} {rule.advice}"
        )

    def _judge(self, proposal: Proposal) -> None:
        """Add what `gatepost check` says about the table."""
        for problem in problems(
            resource=self._request.resource,
            issuers=[proposal.settings],
            development=self._request.development,
            create_on_first_use=True,
        ):
            if problem.setting.startswith("issuers"):
                self.works = self.works and problem.level != "error"
                hint = f" ({problem.hint})" if problem.hint else ""
                self.findings.append(f"{problem.level} {problem.id}: {problem.message}{hint}")


async def probe_issuer(request: ProbeRequest) -> ProbeResult:
    """Return the table for the issuer at a URL; FetchError if it has no readable metadata."""
    async with fetching(request) as fetcher:
        result = await IssuerProbe(request, fetcher).run()
    return msgspec.structs.replace(
        result, findings=tuple(printable(finding) for finding in result.findings)
    )


@asynccontextmanager
async def fetching(request: ProbeRequest) -> AsyncIterator[Fetcher]:
    """Yield a fetcher that accepts an issuer on this machine if the URL names one."""
    fetcher = Fetcher(development=request.development, network=Network(ca_bundle=request.ca_bundle))
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


async def private_addresses(url: str) -> tuple[str, ...]:
    """Return the addresses of the URL's host as networks; the operator named this host."""
    parts = urlsplit(url)
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise FetchError("connect") from error
    hosts = sorted({str(address[0]) for *_, address in addresses})
    return tuple(f"{host}/{128 if ':' in host else 32}" for host in hosts)


def accepted(caller: TenantContext) -> str:
    """Return the caller that the token proves, in one line."""
    scopes = " ".join(sorted(caller.scopes)) or "none"
    return (
        f"The token is accepted: tenant {caller.tenant_id}, {caller.subject_kind} "
        f"{caller.subject}, client {caller.client_id or 'none'}, scopes {scopes}."
    )
