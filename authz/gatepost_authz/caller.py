"""Who is calling: the one value that everything after the gate reads."""

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

from gatepost_authz.errors import InsufficientAuthentication, InsufficientScope

SubjectKind = Literal["user", "client"]


# The issuer wrote the time of the sign-in by its own clock; as much difference as tokens get.
CLOCK_DIFFERENCE_S = 30


class TenantContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    Who is calling and for which tenant, as far as a checked token says.

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
    """When the token was issued (``iat``); None: it does not say."""
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
    """The token names other audiences too, so other servers may hold it: worth an audit line."""

    @property
    def principal_key(self) -> tuple[str, str, str, str]:
        """
        Whose state this is: tenant, issuer, kind and subject.

        A machine client whose id equals a person's id is somebody else, so the kind is part of it.
        """
        return (self.tenant_id, self.issuer, self.subject_kind, self.subject)

    @property
    def name(self) -> str:
        """What people call them, where the token says it, else empty; nothing is decided by it."""
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
        # The generated one would stumble over the mapping of display claims.
        return hash((self.principal_key, self.token_id, self.expires_at, self.scopes))

    def __repr__(self) -> str:
        # Subjects are personal data; a repr ends up in logs and tracebacks.
        digest = hashlib.sha256("\0".join(self.principal_key).encode()).hexdigest()[:12]
        return f"<TenantContext tenant={self.tenant_id} principal={digest}>"
