"""Send messages to people (`chat_send`)."""

import asyncio
import mimetypes
from pathlib import Path
from typing import Annotated, Any, Literal

import apprise  # noqa: F401  # without the extra, the pack is left out
import msgspec
from pydantic import BaseModel, Field, TypeAdapter

from gatepost import CallContext, FailureKind, Pack, ToolFailure
from gatepost_authz import Network
from gatepost_packs.chat.settings import ChatSettings, refusal
from gatepost_packs.child.connections import WorkerConnections
from gatepost_packs.child.process import WorkerFailed, ask

pack = Pack("chat")

WORKER = Path(__file__).with_name("worker.py")
HANDLE = 3
"""The file descriptor of the worker's only way out."""
MAX_CHARACTERS = 20_000
MAX_TITLE = 250


class ProviderDelivery(BaseModel):
    """One provider that accepted the message."""

    service: str
    """The provider's name."""
    parts: int
    """The number of messages that it became."""


class FailedDelivery(BaseModel):
    """One provider that did not accept the message, or not all of it."""

    service: str
    reason: str


class Sent(BaseModel):
    """The providers that the message was sent to."""

    channel: str
    delivered: list[ProviderDelivery]
    failed: list[FailedDelivery]


class DeliveryResult(BaseModel):
    """The result of the worker."""

    problem: Literal["url", "long"] | None = None
    service: str = "the provider"
    parts: int = 0
    """The number of messages that were sent, of all of them."""
    of: int = 0
    status: int | None = None


DELIVERY_RESULT = TypeAdapter(DeliveryResult)


class Unsent(msgspec.Struct, frozen=True):
    """The reason why a provider did not accept a message."""

    kind: FailureKind
    service: str
    reason: str
    partly: bool = False
    """Whether a part of it was sent."""


@pack.tool(
    title="Send a message",
    scopes={"chat:send"},
    read_only=False,
    destructive=False,
    idempotent=False,
    open_world=True,
    timeout_s=75,
)
async def chat_send(
    ctx: CallContext,
    channel: Annotated[str, Field(description="Name of a configured channel")],
    message: Annotated[
        str, Field(description="The text, sent as it is", min_length=1, max_length=MAX_CHARACTERS)
    ],
    title: Annotated[
        str | None,
        Field(description="A title, where the provider shows one", max_length=MAX_TITLE),
    ] = None,
) -> Sent:
    """Send a message to a chat channel, as plain text."""
    settings = ctx.settings(ChatSettings)
    if channel not in settings.channels:
        channel_names = (
            ", ".join(settings.channels) or "none; an administrator adds them in packs.chat"
        )
        text = f"There is no channel {channel!r}. There are: {channel_names}."
        raise ToolFailure("not_found", text, field="channel")
    if not message.strip():
        raise ToolFailure("validation", "`message` is empty.", field="message")
    # All are checked before any is sent, so that a missing secret is not found half way.
    urls = [await _checked(ctx, channel, reference) for reference in settings.destinations(channel)]
    trusted = await asyncio.to_thread(_trusted, ctx.settings(Network).ca_bundle)
    texts = {"body": message, "title": title or "", "ca": trusted, "max_parts": settings.max_parts}
    results = await asyncio.gather(*(_send(ctx, url, texts, settings.timeout_s) for url in urls))
    delivered = [result for result in results if isinstance(result, ProviderDelivery)]
    unsent = [result for result in results if isinstance(result, Unsent)]
    if unsent and not delivered and not any(result.partly for result in unsent):
        raise _failure(channel, unsent)
    return Sent(
        channel=channel,
        delivered=delivered,
        failed=[FailedDelivery(service=result.service, reason=result.reason) for result in unsent],
    )


async def _checked(ctx: CallContext, channel: str, reference: str) -> str:
    url = await ctx.secret(reference, field="channel")
    if problem := refusal(url):
        text = f"The channel {channel} cannot be used: {problem}. An operator can set another URL."
        raise ToolFailure("denied", text)
    return url


def _trusted(bundle: str) -> str:
    return Path(bundle).read_text(encoding="ascii", errors="ignore") if bundle else ""


async def _send(
    ctx: CallContext, url: str, texts: dict[str, Any], timeout_s: float
) -> ProviderDelivery | Unsent:
    """Send to one destination; a reported failure holds no part of the URL."""
    connections = WorkerConnections(ctx.http, ctx.settings(Network))
    async with connections.open():
        request = texts | {"url": url, "handle": HANDLE}
        try:
            result: DeliveryResult = await ask(
                WORKER,
                request,
                timeout_s=timeout_s,
                handles=((connections.handle, HANDLE),),
                reads=tuple(str(path) for path in mimetypes.knownfiles),
                result_type=DELIVERY_RESULT,
            )
        except TimeoutError:
            reason = (
                f"it did not answer within {timeout_s:g} seconds; it may have received the message"
            )
            return Unsent("timeout", "the provider", reason)
        except WorkerFailed:
            reason = "sending to it broke off; it may have received the message"
            return Unsent("timeout", "the provider", reason)
    if result.problem is not None:
        return _problem(result, texts["max_parts"])
    if result.parts == result.of > 0:
        return ProviderDelivery(service=result.service, parts=result.parts)
    return _refused(result, connections.failures)


def _problem(result: DeliveryResult, max_messages: int) -> Unsent:
    if result.problem == "long":
        count = f"{result.of} messages there, and at most {max_messages} are sent"
        reason = f"the message would become {count}"
        return Unsent("validation", result.service, reason)
    reason = "Apprise cannot use the URL of the channel; an operator can correct it"
    return Unsent("denied", "the provider", reason)


def _refused(result: DeliveryResult, failures: list[ToolFailure]) -> Unsent:
    partly = result.parts > 0
    kind, reason = _reason_of(result.status)
    if failures:
        kind, reason = failures[-1].failure.kind, "it cannot be reached"
        if kind == "denied":
            reason = (
                "messages may not be sent to its server; allowed are encrypted connections to "
                "the internet, and hosts that an operator names in [network] allow_hosts"
            )
    if partly:
        reason = f"{result.parts} of {result.of} parts were sent, then {reason}"
    return Unsent(kind, result.service, reason, partly)


def _reason_of(status: int | None) -> tuple[FailureKind, str]:
    if status is None:
        # Connected, but without an answer that Apprise understood: a retry could send it twice.
        return "timeout", "it did not answer, or not as expected; it may have received the message"
    if status == 429:
        return "rate_limit", "it accepts no more messages for now (HTTP 429)"
    if status >= 500:
        return "upstream_unavailable", f"it fails at the moment (HTTP {status})"
    if status in {400, 413, 422}:
        return "validation", f"it refuses this message (HTTP {status}); a shorter one may work"
    return "denied", (
        f"it refuses the request (HTTP {status}); an operator can check the channel's URL"
    )


def _failure(channel: str, unsent: list[Unsent]) -> ToolFailure:
    reasons = "; ".join(f"{result.service}: {result.reason}" for result in unsent)
    kinds = [result.kind for result in unsent]
    # Some kinds invite a retry, and a destination that did not answer may have the message.
    kind = "timeout" if "timeout" in kinds else kinds[0]
    field = "message" if kind == "validation" else None
    effect = (
        "It is unknown whether the message was sent" if kind == "timeout" else "Nothing was sent"
    )
    return ToolFailure(kind, f"{effect} to {channel}. {reasons}.", field=field)
