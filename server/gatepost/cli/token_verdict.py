"""Check a token against a configuration on this machine, for `gatepost doctor --config`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import msgspec

from gatepost.cli.configuration import visible
from gatepost.cli.output import moment
from gatepost.config.references import UnresolvedReference, resolved_setting
from gatepost.config.settings import Config
from gatepost.policy.revocation.watch import Revocations
from gatepost.runtime.token_verifiers import introspection_secrets, verifiers_of
from gatepost.storage.backends import MEMORY, open_records
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.leases import number_holders
from gatepost.storage.sqlite_file import SCHEME, exists
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError, InvalidToken
from gatepost_authz.fetch import Fetcher
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.middleware import bearer_token
from gatepost_authz.protected_resource import Resource, Target
from gatepost_authz.reasons import RULES, UNKNOWN_REASON
from gatepost_authz.signature import split
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import Verifiers

REVOCATIONS_UNREAD = "Revocations and suspensions made on the command line were not checked: {why}."

COUNTED_SEPARATELY = (
    "Several server processes use this database, and each counts limits for itself. Unless one of "
    'them is stopping, set storage.shared = "redis://…" (Valkey or Redis), or stop all but one.'
)

SHOWN_CLAIMS = frozenset({"iss", "aud"})
"""The claims whose values are compared with the configuration and say nothing of a person."""
SHOWN_CHARACTERS = 300
NO_SCOPE = (
    "The token has no scope that a tool needs, so its caller can use only tools without scopes. "
    "Configure the client to request one of: {scopes}."
)


class Judgement(msgspec.Struct, frozen=True):
    """The result for a token, as lines to print."""

    accepted: bool
    lines: tuple[str, ...]


async def judge(
    config: Config, token: str, url: str, needed: frozenset[str] = frozenset()
) -> Judgement:
    """Return how the gate of *config* judges *token* at *url*; tools need the scopes *needed*."""
    notes: list[str] = []
    try:
        caller, suspended = await _verified(config, token, url or config.resource, notes)
    except AuthError as refusal:
        return Judgement(False, (*notes, *refused(refusal, token)))
    except UnresolvedReference as missing:
        return Judgement(False, (f"The introspection endpoint cannot be used: {missing}.",))
    if suspended:
        notes.append("The tenant is suspended, so its calls are refused.")
    if needed and not needed & caller.scopes:
        notes.append(NO_SCOPE.format(scopes=visible(" ".join(sorted(needed)))))
    return Judgement(not suspended, (*accepted(caller), *notes))


async def _verified(
    config: Config, token: str, url: str, notes: list[str]
) -> tuple[TenantContext, bool]:
    """Return the caller and whether its tenant is suspended; raises AuthError."""
    async with AsyncExitStack() as closing:
        revocations = await closing.enter_async_context(_revocations(config, notes))
        fetcher = Fetcher(development=config.development, network=config.network)
        closing.push_async_callback(fetcher.aclose)
        keys = IssuerKeySets(fetcher)
        closing.push_async_callback(keys.aclose)

        def introspectors() -> Introspectors:
            secrets = introspection_secrets(config)
            introspectors = Introspectors(fetcher, keys.discovery, secret_of=secrets.__getitem__)
            closing.push_async_callback(introspectors.aclose)
            return introspectors

        admit: Callable[[TenantContext], None] = (
            _no_revocations if revocations is None else revocations.admit
        )
        signed, opaque = verifiers_of(
            config,
            IssuerRegistry(config.issuers),
            keys,
            VerdictCache(),
            admit=admit,
            introspectors=introspectors,
        )
        bearer = bearer_token([(b"authorization", b"Bearer " + token.encode())])
        target: Target | None = Resource(config.resource).locate(urlsplit(url).path)
        if target is None:
            raise InvalidToken("no_resource_in_path")
        verifier = Verifiers([signed] if opaque is None else [signed, opaque])
        caller = await verifier.verify(bearer, target)
        try:
            caller.require(frozenset(config.scopes.baseline))
        except AuthError as refusal:
            refusal.with_details(issuer=caller.issuer, tenant=caller.tenant_id)
            raise
        suspended = caller.tenant_id in config.tenancy.suspended
        return caller, suspended or (revocations is not None and revocations.is_suspended(caller))


@asynccontextmanager
async def _revocations(config: Config, notes: list[str]) -> AsyncIterator[Revocations | None]:
    """Yield the revocations that running servers know; None if they cannot be read here."""
    database = resolved_setting(config.storage.database)
    if not _exists(database):
        notes.append(REVOCATIONS_UNREAD.format(why="the database is not on this machine"))
        yield None
        return
    async with AsyncExitStack() as closing:
        revocations = None
        try:
            records = await open_records(database)
            closing.push_async_callback(records.aclose)
            revocations = Revocations(records, on_revoked=lambda new: None)
            revocations.configure(config.tenancy.suspended)
            await revocations.read_changes()
            if not config.storage.shared and len(await number_holders(records)) > 1:
                notes.append(COUNTED_SEPARATELY)
        except (StoreRefused, StoreUnavailable) as outage:
            notes.append(REVOCATIONS_UNREAD.format(why=visible(str(outage))))
            revocations = None
        yield revocations


def _exists(database: str) -> bool:
    """Return whether the database exists; the check must not create a file."""
    return exists(database) if database.startswith(SCHEME) else database != MEMORY


def _no_revocations(caller: TenantContext) -> None:
    """Do nothing: without revocations, no caller is revoked."""


def refused(refusal: AuthError, token: str) -> list[str]:
    """Return the reason, claim, rule and advice; of the token only its issuer or audience."""
    rule = RULES.get(refusal.reason, UNKNOWN_REASON)
    claim = refusal.claim or rule.claim
    rows = {
        "reason": refusal.reason,
        "claim": claim,
        "value": _value(claim, token) if claim in SHOWN_CLAIMS else "",
        "rule": rule.rule,
        "setting": rule.setting,
        "issuer": refusal.issuer,
        "tenant": refusal.tenant,
        "do": rule.advice,
    }
    lines = [f"{name + ':':<9}{visible(value)}" for name, value in rows.items() if value]
    error_code = refusal.code or "no code"
    return [f"The token is refused. The caller gets {refusal.status} {error_code}.", *lines]


def _value(claim: str, token: str) -> str:
    """Return the beginning of a claim's value, empty if the token has none that can be read."""
    try:
        value = split(token).unverified.get(claim)
    except InvalidToken:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "" if value is None else text[:SHOWN_CHARACTERS]


def accepted(caller: TenantContext) -> list[str]:
    """Return the caller that the token proves."""
    rows = {
        "tenant": caller.tenant_id,
        "issuer": caller.issuer,
        "subject": f"{caller.subject} ({caller.subject_kind})",
        "client": caller.client_id or "",
        "scopes": " ".join(sorted(caller.scopes)),
        "roles": " ".join(sorted(caller.roles)),
        "until": moment(caller.expires_at),
    }
    lines = [f"{name + ':':<9}{visible(value)}" for name, value in rows.items() if value]
    return ["The token is accepted.", *lines]
