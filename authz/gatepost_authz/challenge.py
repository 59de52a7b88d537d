"""Build the response for a refusal: status, ``WWW-Authenticate`` and body."""

import re
from collections.abc import Iterable

import msgspec

from gatepost_authz.errors import (
    AuthError,
    InsufficientAuthentication,
    InsufficientScope,
    IssuerUnavailable,
    MissingToken,
)
from gatepost_authz.headers import HeaderField
from gatepost_authz.protected_resource import Target

SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope or acr value: printable, without space, quote or backslash (RFC 6750 section 3)."""

NO_CREDENTIALS = "An access token is required"
REMEMBERED = 256
"""The number of cached responses; enough for one resource with its tools."""

VARYING = (InsufficientScope, InsufficientAuthentication, IssuerUnavailable)
"""The refusals whose response depends on more than their class."""

ChallengeResponse = tuple[int, tuple[HeaderField, ...], bytes]
"""Status, fields without the length, and body; the same objects for the same refusal."""


def words(values: Iterable[str]) -> str:
    """Join *values* for a quoted parameter; raise ValueError if one could end the quotes."""
    values = tuple(values)
    for value in values:
        # A quote or a line break here would let a configuration or a tool's declaration write
        # parameters, or whole headers, of its own.
        if SCOPE_TOKEN.fullmatch(value) is None:
            raise ValueError(f"{value!r} cannot stand in a challenge")
    return " ".join(values)


class Challenge:
    """
    Builds the gate's challenges (RFC 6750 section 3, RFC 9728 section 5.1, RFC 9470 section 3).

    The order is what known clients can read: ``resource_metadata`` first, the description last,
    since two of them look for ``scope=`` anywhere in the text. *baseline* are the scopes that
    clients request for any request.
    """

    def __init__(
        self, *, baseline: tuple[str, ...] = (), error_without_credentials: bool = True
    ) -> None:
        words(baseline)
        self.baseline = baseline
        self.error_without_credentials = error_without_credentials
        self._answers: dict[object, ChallengeResponse] = {}

    def response(
        self, error: AuthError, target: Target | None
    ) -> tuple[int, list[HeaderField], bytes]:
        """
        Return status, a copy of the header list, and body of the refusal.

        Without *target* (a path that names no tenant) the challenge names no metadata: any address
        would say something about which tenants there are.
        """
        status, fields, body = self.answer(error, target)
        return status, [*fields, (b"content-length", b"%d" % len(body))], body

    def answer(self, error: AuthError, target: Target | None) -> ChallengeResponse:
        """Return the refusal without its length; the same objects for the same refusal."""
        particulars = _particulars(error) if isinstance(error, VARYING) else None
        key = (type(error), particulars, target.metadata_url if target is not None else None)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._build(error, target)
            # Callers can invent tenants in a path, so their answers are not cached.
            if len(self._answers) < REMEMBERED and (target is None or target.tenant is None):
                self._answers[key] = answer
        return answer

    def _build(self, error: AuthError, target: Target | None) -> ChallengeResponse:
        body = msgspec.json.encode(_body(error))
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
        ]
        if isinstance(error, IssuerUnavailable):
            headers.append((b"retry-after", str(error.retry_after).encode()))
        else:
            headers.append((b"www-authenticate", self.header(error, target).encode("ascii")))
        return error.status, tuple(headers), body

    def header(self, error: AuthError, target: Target | None) -> str:
        """Return the value of ``WWW-Authenticate``."""
        parameters = []
        if target is not None:
            parameters.append(("resource_metadata", words([target.metadata_url])))
        code = error.code
        if isinstance(error, MissingToken) and self.error_without_credentials:
            code = "invalid_token"
        if code:
            parameters.append(("error", code))
        parameters += self._demands(error)
        if error.description:
            parameters.append(("error_description", error.description))
        if not parameters:
            return "Bearer"
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters)

    def _demands(self, error: AuthError) -> list[tuple[str, str]]:
        """Return the parameters for required scopes or a stronger sign-in."""
        if isinstance(error, InsufficientAuthentication):
            demands = [("acr_values", words(error.acr_values))] if error.acr_values else []
            if error.max_age is not None:
                demands.append(("max_age", str(error.max_age)))
            return demands
        scopes = self.baseline if error.status == 401 else ()
        if isinstance(error, InsufficientScope):
            # Some clients replace their scopes by those that the challenge names.
            scopes = tuple(dict.fromkeys((*self.baseline, *error.scopes)))
        return [("scope", words(scopes))] if scopes else []


def _body(error: AuthError) -> dict[str, object]:
    """Return the body, with a ``message`` that clients can hand to a model."""
    description = error.description or NO_CREDENTIALS
    body: dict[str, object] = {
        "error": error.code or "invalid_token",
        "error_description": description,
        "message": f"{description}.",
    }
    if isinstance(error, InsufficientScope):
        body["message"] = f"{description}: the access token needs the scopes {words(error.scopes)}."
        body["scopes"] = error.scopes
    if isinstance(error, IssuerUnavailable):
        body["message"] = f"{description}. Try again in {error.retry_after} seconds."
        body["retry_after"] = error.retry_after
    return body


def _particulars(error: AuthError) -> object:
    """Return the details that distinguish this refusal from others of its class."""
    if isinstance(error, InsufficientScope):
        return error.scopes
    if isinstance(error, InsufficientAuthentication):
        return error.acr_values, error.max_age
    return error.retry_after if isinstance(error, IssuerUnavailable) else None
