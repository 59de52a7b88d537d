"""The tool services of calls: settings, durable entries, HTTP, secrets, nested calls."""

import difflib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from gatepost.config.packs import Packs, by_type
from gatepost.outbound.http_client import OutboundClient
from gatepost.outbound.http_request import plain_url
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.hosts import BoundSecret, destination
from gatepost.secrets.names import INNER_NAME, NAME, SecretRefused
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.entries import Entries
from gatepost.storage.records import Records
from gatepost.tools.calls.redacted_call import peer_here
from gatepost.tools.calls.registry import Unknown
from gatepost.tools.context.client import MissingCapability, ProtocolError
from gatepost.tools.context.interfaces import Outbound, SealedStore, SignedHeaders
from gatepost.tools.offers.offer import Call, CallContext, Failure, Outcome, ToolFailure

T = TypeVar("T")

MAX_DEPTH = 4
"""Maximum nesting of calls, so that a tool that calls itself ends."""

log = logging.getLogger("gatepost.secrets")


class ToolCredentials(Protocol):
    """The `[credentials]` tables, as far as tools may use them."""

    async def signed_headers(
        self, ctx: CallContext, name: str, url: str, *, refused: SignedHeaders | None
    ) -> SignedHeaders:
        """Return the headers of a table for requests of a call to *url*; raises ToolFailure."""


class TenantToolServices:
    """Implement `ToolServices` for one configuration."""

    def __init__(
        self,
        packs: Packs,
        *,
        records: Records,
        secrets: SecretCache,
        outbound: OutboundClient,
        credentials: ToolCredentials,
        run: Callable[[Call], Awaitable[Outcome]],
    ) -> None:
        self._settings = by_type(packs, outbound.network)
        self._records = records
        self._secrets = secrets
        self._outbound = outbound
        self._credentials = credentials
        self._run = run

    def http(self, ctx: CallContext) -> Outbound:
        """Implement `ToolServices`."""
        return self._outbound.of(ctx.caller.tenant_id, ctx.correlation)

    def entries(self, ctx: CallContext, subject: str) -> Entries:
        """Implement `ToolServices`."""
        return self._records.of(ctx.caller.tenant_id).entries(subject)

    def settings(self, kind: type[T]) -> T:
        """Implement `ToolServices`."""
        settings: T = self._settings[kind]
        return settings

    def sealed(self, ctx: CallContext) -> SealedStore:
        """Implement `ToolServices`."""
        return TenantSealedStore(self._secrets, ctx.caller.tenant_id)

    async def secret(
        self, ctx: CallContext, name: str, field: str, *, to: str | None, fixed: bool
    ) -> str:
        """Implement `ToolServices`."""
        tenant = ctx.caller.tenant_id
        if not NAME.fullmatch(name):
            # The name is not repeated, because it could be the secret itself after the prefix.
            message = "That is no name of a secret; one looks like API_KEY: secret:API_KEY."
            raise ToolFailure("validation", message, field=field)
        bound_secret = await opened(self._secrets, tenant, name, field)
        if bound_secret is None:
            raise await missing(
                self._secrets, tenant, name, field, binds=to is not None and not fixed
            )
        destination = None if to is None else self._destination(to, name, field)
        details = {
            "tenant": tenant,
            "secret": name,
            "host": destination,
            "request_id": ctx.request_id,
        }
        if reason := withheld(bound_secret, tenant, name, destination, fixed=fixed):
            log.warning("secret_withheld", extra=details)
            raise ToolFailure("denied", reason, field=field)
        log.info("secret_used", extra=details)
        return bound_secret.value

    async def signed_headers(
        self, ctx: CallContext, name: str, url: str, *, refused: SignedHeaders | None
    ) -> SignedHeaders:
        """Implement `ToolServices`."""
        return await self._credentials.signed_headers(ctx, name, url, refused=refused)

    def _destination(self, url: str, name: str, field: str) -> str:
        try:
            return destination(plain_url(url), self._outbound.address_policy)
        except ValueError as problem:
            message = f"The secret {name} is not sent to that URL: {problem}."
            raise ToolFailure("denied", message, field=field) from None

    async def call(
        self,
        ctx: CallContext,
        name: str,
        arguments: Mapping[str, Any],
        *,
        is_passed_on: bool = False,
    ) -> Outcome:
        """Implement `ToolServices`."""
        if ctx.depth >= MAX_DEPTH:
            message = f"Tools call one another at most {MAX_DEPTH} deep; {name} was not called."
            return Outcome(failure=Failure("denied", message))
        inner = Call(
            caller=ctx.caller,
            name=name,
            arguments=msgspec.json.encode(arguments),
            request_id=ctx.request_id,
            client=ctx.client,
            correlation=ctx.correlation,
            depth=ctx.depth + 1,
            lasting=ctx.lasting,
            peer=peer_here(),
        )
        try:
            return await self._run(inner)
        except Unknown:
            failure = Failure("not_found", f"There is no tool named {name!r}.")
        except MissingCapability as missing:
            if is_passed_on:
                raise
            failure = Failure("denied", f"{name} {missing}, which the caller of a tool has not.")
        except ProtocolError as error:
            if is_passed_on:
                raise
            failure = Failure("internal", error.message)
        return Outcome(failure=failure)


class TenantSealedStore:
    """The `SealedStore` of one tenant."""

    def __init__(self, secrets: SecretCache, tenant: str) -> None:
        self._secrets, self._tenant = secrets, tenant

    async def put(self, name: str, value: str) -> None:
        """Implement `SealedStore`."""
        try:
            await self._secrets.put(self._tenant, inner(name), value)
        except SecretRefused as refusal:
            raise ToolFailure("denied", f"The secret part cannot be kept: {refusal}.") from None

    async def get(self, name: str) -> str | None:
        """Implement `SealedStore`."""
        bound_secret = await opened(self._secrets, self._tenant, inner(name))
        return None if bound_secret is None else bound_secret.value

    async def delete(self, name: str) -> bool:
        """Implement `SealedStore`."""
        return await self._secrets.delete(self._tenant, inner(name))


def inner(name: str) -> str:
    """Return *name* if it is valid for an encrypted value; raises ValueError."""
    if not INNER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for an encrypted value: 1 to 200 of a-z, 0-9 and _")
    return name


async def opened(
    secrets: SecretCache, tenant: str, name: str, field: str | None = None
) -> BoundSecret | None:
    """Return a secret with its hosts; ToolFailure if it cannot be decrypted."""
    try:
        return await secrets.value(tenant, name)
    except SecretUnreadable:
        message = (
            f"The secret {name} is kept here and cannot be opened any more. Nothing that you call "
            "with helps: its operator has to set it again."
        )
        raise ToolFailure("internal", message, field=field) from None


def withheld(
    bound_secret: BoundSecret, tenant: str, name: str, destination: str | None, *, fixed: bool
) -> str | None:
    """Return a sentence for the agent why a secret is not sent to *destination*, or None."""
    bound = " and ".join(bound_secret.hosts)
    if destination is None:
        if not bound_secret.hosts:
            return None
        return (
            f"The secret {name} is bound to {bound}, and it cannot be told where this tool would "
            "send it. An operator sets another one for it, without --host."
        )
    if destination in bound_secret.hosts or (fixed and not bound_secret.hosts):
        return None
    command = f"gatepost secrets bind {name} --tenant {tenant} --host"
    if bound_secret.hosts:
        # The command does not name the host, because an attacker may have chosen it.
        return (
            f"The secret {name} is bound to {bound} and is not sent to {destination}. Call it "
            f"there. Only an operator can bind it to other hosts: {command} HOST"
        )
    return (
        f"The secret {name} is bound to no host, so it is not sent to one that a caller chooses. "
        f"If {destination} is the server it was made for, an operator binds it: "
        f"{command} {destination}"
    )


async def missing(
    secrets: SecretCache, tenant: str, name: str, field: str, *, binds: bool
) -> ToolFailure:
    """
    Return the error for an agent that named a secret which the tenant does not have.

    *binds*: the secret would have to be bound to a host.
    """
    similar = difflib.get_close_matches(name, await secrets.names(tenant), n=3)
    suggestion = f" Did you mean {' or '.join(similar)}?" if similar else ""
    message = (
        f"There is no secret {name} here.{suggestion} "
        f"An operator sets it: gatepost secrets set {name} --tenant {tenant}"
        f"{' --host HOST' if binds else ''}"
    )
    return ToolFailure("not_found", message, field=field)
