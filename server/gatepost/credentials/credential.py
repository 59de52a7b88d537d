"""What a request to another server is signed in with."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class CredentialUnavailable(Exception):
    """A credential cannot be had now; the message is a sentence for the operator, no secret."""


class SignedHeaders(msgspec.Struct, frozen=True):
    """The headers that sign a request in."""

    headers: Mapping[str, str]
    """By lower-case names; the values are secrets and are in the tenant's redaction set."""
    version: str = ""
    """Changes whenever the credential is renewed; connections and sessions are keyed by it."""

    def __repr__(self) -> str:
        return f"<SignedHeaders {', '.join(self.headers)}>"


class OutboundCredential(Protocol):
    """
    One credential of one tenant for one server.

    A credential of a person (sign-in on behalf of the caller, token exchange) will implement the
    same protocol: `headers` then depends on the *principal*.
    """

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """
        Return the headers for a request; raises CredentialUnavailable.

        *principal* is the caller's `principal_key` where the credential is a person's own.
        """

    async def refused(self, headers: SignedHeaders) -> bool:
        """
        Take note that the server answered 401 to *headers*.

        Return whether `headers` may now return others, so that the request is worth one retry.
        """


class NoCredential:
    """Signs in with nothing."""

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """Return no headers."""
        return SignedHeaders({})

    async def refused(self, headers: SignedHeaders) -> bool:
        """Return False, because there is nothing else to send."""
        return False
