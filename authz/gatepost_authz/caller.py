"""The caller, as its token identifies it."""

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

from gatepost_authz.errors import InsufficientAuthentication, InsufficientScope

SubjectKind = Literal["user", "client"]


# The issuer's clock wrote the time of the sign-in, so it may differ as much as a token's times.
CLOCK_DIFFERENCE_S = 30


class TenantContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    The caller and its tenant, from a verified token.

    Made once per verdict from verified claims only; holds no token. ``subject`` is the preset's
    stable id (Entra ``oid``, Okta ``uid``, else ``sub``); ``scopes`` already include what granted
    scopes imply; times are seconds since the epoch.
    """

    tenant_id: str
    issuer: str
    subject: str
    subject_kind: SubjectKind
    resource: str
    expires_at: int
    issued_at: int | None = None
    """The ``iat`` of the token, or None."""
    tenant_claim: str | None = None
    """
    The tenant's value in the token before mapping; None if the configuration names the tenant.
    """
    client_id: str | None = None
    actor: str | None = None
    scopes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    acr: str | None = None
    auth_time: int | None = None
    token_id: str | None = None
    session_id: str | None = None
    claims: Mapping[str, str] = {}
    """Display claims a preset allows through (``name``, ``email``, ``preferred_username``)."""
    shared_audience: bool = False
    """Whether the token also names other audiences, so that other servers may have it."""

    @property
    def principal_key(self) -> tuple[str, str, str, str]:
        """
        Return the key of the principal's state: tenant, issuer, kind and subject.

        A machine whose id equals a person's id is another principal, so the kind is part of it.
        """
        return (self.tenant_id, self.issuer, self.subject_kind, self.subject)

    @property
    def principal_digest(self) -> bytes:
        """Return the digest that stores use as the principal's id."""
        # As JSON, so that no choice of ids makes two principals the same.
        return hashlib.sha256(msgspec.json.encode(self.principal_key)).digest()

    @property
    def identity_key(self) -> tuple[str | None, ...]:
        """
        Return the key of the caller's identity: the principal, its client and its actor (``act``).

        Only the same identity can continue its sessions, tasks and retried calls. Limits and quotas
        count by ``principal_key``: a second client does not have limits of its own. The actor is
        left out where there is none, so its place must be known from what stands behind.
        """
        acting = () if self.actor is None else (self.actor,)
        return (*self.principal_key, self.client_id, *acting)

    @property
    def name(self) -> str:
        """
        Return the display name from the token, or an empty string; it has no effect on decisions.
        """
        claims = self.claims
        return claims.get("name") or claims.get("preferred_username") or claims.get("email") or ""

    def require(self, scopes: frozenset[str]) -> None:
        """Raise InsufficientScope, naming all of *scopes*, when one of them is missing."""
        if not scopes <= self.scopes:
            # All of them at once: a client that steps up scope by scope would send its user
            # through the consent screen several times.
            raise InsufficientScope(tuple(sorted(scopes)))

    def require_authentication(
        self, acr_values: tuple[str, ...], max_age: int | None, *, now: float
    ) -> None:
        """Raise InsufficientAuthentication when the sign-in is too weak or too old (seconds)."""
        too_weak = bool(acr_values) and self.acr not in acr_values
        too_old = max_age is not None and (
            self.auth_time is None or now - self.auth_time > max_age + CLOCK_DIFFERENCE_S
        )
        if too_weak or too_old:
            raise InsufficientAuthentication(acr_values, max_age)

    def __hash__(self) -> int:
        # The generated method cannot hash the mapping of display claims.
        return hash((self.principal_key, self.token_id, self.expires_at, self.scopes))

    def __repr__(self) -> str:
        # Subjects are personal data; a repr ends up in logs and tracebacks.
        digest = hashlib.sha256("\0".join(self.principal_key).encode()).hexdigest()[:12]
        return f"<TenantContext tenant={self.tenant_id} principal={digest}>"
