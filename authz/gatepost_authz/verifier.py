"""From a token to a caller: the protocol, the verifier of signed tokens, and asking several."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from gatepost_authz import signature
from gatepost_authz.caller import TenantContext
from gatepost_authz.claims import check_claims
from gatepost_authz.config import Target
from gatepost_authz.decisions import DecisionKey, Decisions, Versioned, key_of
from gatepost_authz.errors import ExpiredToken, InvalidToken
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey
from gatepost_authz.tenant import Policy, caller_from

MAX_CANDIDATES = 4
"""Keys tried for one token: issuers reuse a key id across types, but not more often than this."""
DEVELOPMENT_KID = "dev-"


Recall = Callable[[], TenantContext | None]
"""The caller that a certain token speaks for, as long as the verdict on it is good; else None."""


class TokenVerifier(Protocol):
    """Whoever can say who presented a token."""

    async def verify(self, token: str, target: Target) -> TenantContext | None:
        """
        Say who presented *token* to *target*.

        None: this verifier does not handle such tokens; the next one may.
        AuthError: it does, and the token is refused; nobody else is asked.
        """

    def recall(self, token: str, target: Target) -> Recall | None:
        """
        How to ask for the verdict on that token again, should it come again; None: by `verify`.

        For a token that `verify` has accepted, and without keeping the token.
        """


class IssuerKeys(Versioned, Protocol):
    """The keys of one issuer, as a verifier uses them."""

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """The keys at hand that may check such a token; empty when none is known."""

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """The same after asking the issuer; empty: it has no such key. May be unavailable."""

    async def after_bad_signature(self) -> bool:
        """Ask the issuer whether it replaced a key under the same id; True when keys changed."""


class KeySource(Protocol):
    """The keys of all issuers."""

    def of(self, issuer: str, trusted: TrustedIssuer) -> IssuerKeys:
        """The keys of this concrete issuer, never shared with another."""


class Verifiers:
    """Several verifiers in turn; the first that handles a token decides."""

    def __init__(self, verifiers: Sequence[TokenVerifier]) -> None:
        self.verifiers = tuple(verifiers)

    async def verify(self, token: str, target: Target) -> TenantContext:
        """The caller; InvalidToken("unknown_kind") when nobody handles such tokens."""
        for verifier in self.verifiers:
            caller = await verifier.verify(token, target)
            if caller is not None:
                return caller
        raise InvalidToken("unknown_kind")

    def recall(self, token: str, target: Target) -> Recall | None:
        """See `TokenVerifier`; of the first that has one."""
        recalls = (verifier.recall(token, target) for verifier in self.verifiers)
        return next((recall for recall in recalls if recall is not None), None)


class JwtVerifier:
    """
    Checks signed access tokens (RFC 9068), cheap and local rules first.

    The network is touched only for a token that names a trusted issuer, is of the right type and
    algorithm, and has not expired: a stranger's garbage never makes us call anybody. *registry*
    answers the snapshot in force.
    """

    def __init__(
        self,
        registry: Callable[[], IssuerRegistry],
        keys: KeySource,
        decisions: Decisions,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.keys = keys
        self.decisions = decisions
        self.policy = policy or Policy()
        self.clock = clock

    async def verify(self, token: str, target: Target) -> TenantContext | None:
        """The caller, None for tokens of another shape, or AuthError with its reason."""
        if not signature.looks_like_one(token):
            return None
        registry = self.registry()
        now = self.clock()
        key = key_of(token, target.url, registry.generation)
        known = self.decisions.get(key, now=now)
        if known is not None:
            return known
        parts = signature.split(token)
        issuer = parts.unverified.get("iss")
        found = registry.find(issuer) if isinstance(issuer, str) else None
        if found is None:
            raise InvalidToken("unknown_issuer")
        trusted, captured = found
        self.refuse_early(parts, trusted, captured, now=now)
        keys = self.keys.of(str(issuer), trusted)
        claims, version = await proved(parts, keys)
        now = self.clock()
        accepted = check_claims(claims, trusted.expects(str(issuer), target), now=now)
        caller = caller_from(
            claims,
            accepted,
            trusted.rules,
            captured=captured,
            target=target,
            policy=self.policy,
        )
        self.decisions.put(key, caller, keys=keys, version=version, now=now)
        return caller

    def recall(self, token: str, target: Target) -> Recall | None:
        """See `TokenVerifier`."""
        if not signature.looks_like_one(token):
            return None
        key = key_of(token, target.url, self.registry().generation)
        return partial(self._recalled, key)

    def _recalled(self, key: DecisionKey) -> TenantContext | None:
        if key[2] != self.registry().generation:
            return None
        return self.decisions.get(key, now=self.clock())

    def refuse_early(
        self, parts: signature.Parts, trusted: TrustedIssuer, captured: str | None, *, now: float
    ) -> None:
        """What needs no key to be refused, so that nobody's server is asked for one."""
        header, claims = parts.header, parts.unverified
        if header.type not in trusted.preset.types:
            raise InvalidToken("wrong_type")
        if header.algorithm not in trusted.algorithms:
            raise InvalidToken("algorithm_not_allowed")
        tenants = trusted.settings.tenants
        if captured is not None and tenants and captured not in tenants:
            # Strangers invent issuers of a template faster than their keys could be asked for.
            raise InvalidToken("unknown_tenant")
        if not self.policy.development and (
            trusted.loopback
            or claims.get("dev") is True
            or (header.kid or "").startswith(DEVELOPMENT_KID)
        ):
            # Anybody with a laptop can run the development issuer.
            raise InvalidToken("development_token")
        expires, past = claims.get("exp"), now - trusted.settings.leeway_s
        if isinstance(expires, int | float) and 0 < expires <= past:
            raise ExpiredToken


async def proved(parts: signature.Parts, keys: IssuerKeys) -> tuple[dict[str, object], int]:
    """
    The claims of *parts*, proved by one of *keys*, and the version of the keys it was.

    InvalidToken: the issuer has no such key, or none of them signed this.
    """
    kid, algorithm = parts.header.kid, parts.header.algorithm
    version, candidates = keys.version, keys.find(kid, algorithm)
    if not candidates:
        await keys.wait_for(kid, algorithm)
        # Looked up again, together with the version: what the wait answered may be gone by the
        # time this runs, and would be filed under a version that no longer has it.
        version, candidates = keys.version, keys.find(kid, algorithm)
        if not candidates:
            raise InvalidToken("unknown_key")
    claims = try_each(parts, candidates)
    if claims is None and await keys.after_bad_signature():
        # The issuer put another key under the same id (RFC 7517 section 4.5 asks it not to).
        version, candidates = keys.version, keys.find(kid, algorithm)
        claims = try_each(parts, candidates)
    if claims is None:
        raise InvalidToken("bad_signature")
    return claims, version


def try_each(
    parts: signature.Parts, candidates: Sequence[VerificationKey]
) -> dict[str, object] | None:
    for key in candidates[:MAX_CANDIDATES]:
        claims = signature.verify(parts, key)
        if claims is not None:
            return claims
    return None
