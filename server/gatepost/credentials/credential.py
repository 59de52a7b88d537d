"""The interface of credentials with which a request to another server is signed in."""

from typing import Protocol

from gatepost.tools.context.interfaces import SignedHeaders


class CredentialUnavailable(Exception):
    """
    A credential is not available now; the message is a sentence for the operator and contains no
    secret.
    """


class CredentialDenied(CredentialUnavailable):
    """The tenant, or the server of the request, may not use the credential."""


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
    """Sends no credential."""

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """Return no headers."""
        return SignedHeaders({})

    async def refused(self, headers: SignedHeaders) -> bool:
        """Return False, because there is nothing else to send."""
        return False
