"""
The errors of the gate.

Each class fixes what the caller is told: a status, an OAuth error code (RFC 6750 section 3.1, RFC
9470 section 3) and one sentence. The private ``reason`` is a short stable word for the log and the
metrics; it never leaves the server. `gatepost_authz.reasons` says what each of them means.

* AuthError
  x MissingToken                401  no code (a setting adds invalid_token)
  x MalformedCredentials        400  invalid_request
  x InvalidToken                401  invalid_token
    + ExpiredToken              401  invalid_token
    + NotYetValidToken          401  invalid_token
    + RevokedToken              401  invalid_token
    + WrongAudience             401  invalid_token
  x InsufficientScope           403  insufficient_scope, naming every scope the operation needs
  x InsufficientAuthentication  401  insufficient_user_authentication (RFC 9470)
  x IssuerUnavailable           503  keys or introspection cannot be had; not the caller's doing
"""

from typing import ClassVar, Self


class AuthError(Exception):
    """Raised when a request is refused before it is processed."""

    status: ClassVar[int] = 401
    code: ClassVar[str | None] = None
    description: ClassVar[str | None] = None

    claim: str | None = None
    """The claim that caused the error, if the reason does not name it; never its value."""
    issuer: str | None = None
    """The configured issuer, or an issuer whose key verified the token."""
    tenant: str | None = None
    """The tenant that a proved token names."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def with_details(
        self, *, claim: str | None = None, issuer: str | None = None, tenant: str | None = None
    ) -> Self:
        """Add details that the error does not have yet, and return it."""
        self.claim = self.claim or claim
        self.issuer = self.issuer or issuer
        self.tenant = self.tenant or tenant
        return self


class MissingToken(AuthError):
    """No credentials, or a scheme that this server does not offer (RFC 6750 section 3.1)."""

    def __init__(self, reason: str = "no_credentials") -> None:
        super().__init__(reason)


class MalformedCredentials(AuthError):
    """The ``Authorization`` header cannot be read as one Bearer credential."""

    status = 400
    code = "invalid_request"
    description = "Malformed Authorization header"


class InvalidToken(AuthError):
    """The token is not accepted for this resource."""

    code = "invalid_token"
    description = "The access token is invalid"


class ExpiredToken(InvalidToken):
    """``exp`` is in the past."""

    description = "The access token expired"
    genuine = False
    """Whether the issuer's signature was verified; otherwise ``exp`` may be made up."""

    def __init__(self, reason: str = "expired") -> None:
        super().__init__(reason)


class NotYetValidToken(InvalidToken):
    """``nbf`` or ``iat`` is in the future."""

    description = "The access token is not yet valid"

    def __init__(self, reason: str = "not_yet_valid") -> None:
        super().__init__(reason)


class RevokedToken(InvalidToken):
    """The operator revoked the token; a new one may be accepted."""

    description = "The access token was revoked"

    def __init__(self, reason: str = "revoked") -> None:
        super().__init__(reason)


class WrongAudience(InvalidToken):
    """The token was issued for another resource (RFC 8707 section 2)."""

    description = "The access token was not issued for this resource"

    def __init__(self, reason: str = "wrong_audience") -> None:
        super().__init__(reason)


class InsufficientScope(AuthError):
    """The token lacks scopes; ``scopes`` names all that the operation needs, sorted."""

    status = 403
    code = "insufficient_scope"
    description = "More permissions are required"

    def __init__(self, scopes: tuple[str, ...], reason: str = "insufficient_scope") -> None:
        super().__init__(reason)
        self.scopes = scopes


class InsufficientAuthentication(AuthError):
    """The user must sign in again, or with stronger authentication (RFC 9470 section 3)."""

    code = "insufficient_user_authentication"
    description = "A stronger or newer sign-in is required"

    def __init__(
        self,
        acr_values: tuple[str, ...] = (),
        max_age: int | None = None,
        reason: str = "insufficient_authentication",
    ) -> None:
        super().__init__(reason)
        self.acr_values = acr_values
        self.max_age = max_age


class IssuerUnavailable(AuthError):
    """
    The token cannot be checked now; ``retry_after`` is in whole seconds.

    A 401 here would make clients throw good tokens away and start over at an issuer that is down.
    """

    status = 503
    code = "temporarily_unavailable"
    description = "The token cannot be checked at the moment"

    def __init__(self, reason: str, *, retry_after: int = 5) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
