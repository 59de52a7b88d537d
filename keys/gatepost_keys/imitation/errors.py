"""Write errors as the imitated provider does; pure."""

import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from gatepost_keys.imitation.facts import filled
from gatepost_keys.imitation.shape import ErrorShape, Imitation

STANDARD_ERRORS = ErrorShape()


class WrittenError(msgspec.Struct, frozen=True, kw_only=True):
    """One error in the provider's words."""

    error: str
    description: str
    status: int
    code: int
    body: Mapping[str, object]


def written_as(
    shape: Imitation, error: Any, *, is_known_client: bool, resource: str
) -> WrittenError:
    """
    Return Authlib's *error* in the provider's words; *is_known_client* says whether the client
    exists.

    *resource* is the one that was asked for, if it is the reason for the error.

    An error with a redirect address is one of the authorization endpoint.
    """
    keys = [error.error]
    if error.error == "invalid_client" and not is_known_client:
        keys = ["unknown_client", *keys]
    if error.redirect_uri:
        keys = [f"authorize.{error.error}", *keys]
    error_form = next((shape.errors[key] for key in keys if key in shape.errors), STANDARD_ERRORS)
    refused = error.error == "invalid_client"
    # Always 401 by itself: clients throw their registration away and start over on that.
    usual = "Client authentication failed" if refused else str(error.description or "")
    text = error_form.description.format(asked=resource) or usual
    return WrittenError(
        error=error_form.error or error.error,
        description=f"AADSTS{error_form.code}: {text}" if error_form.code else text,
        status=error_form.status or (401 if refused else error.status_code),
        code=error_form.code,
        body=error_form.body or shape.error_body,
    )


def error_body(shape: Imitation, written: WrittenError, now: float) -> dict[str, object]:
    """Return the members of an error answer at this time."""
    facts = {
        "error": written.error,
        "description": written.description,
        "code": written.code or None,
        "trace": str(uuid.UUID(bytes=secrets.token_bytes(16), version=4)),
        "timestamp": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
    }
    return filled(written.body, facts)
