"""Pass an upstream's progress and log messages on to the caller's client."""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.context.client import LEVELS
from gatepost.tools.offers.offer import CallContext
from gatepost.upstreams.calls.input_requests import UNREADABLE, clean, cleaned
from gatepost.upstreams.connection import UpstreamNotification
from gatepost.upstreams.upstream_server import UpstreamServer

MAX_MESSAGE = 1_000
MAX_LOG_BYTES = 16_384


async def passed_on(
    ctx: CallContext, server: UpstreamServer, notification: UpstreamNotification
) -> None:
    """
    Pass on one notification; an invalid one is dropped.

    It is also dropped during an outage: the call was sent, and must not fail because of it.
    """
    params = notification.params
    with suppress(StoreUnavailable, *UNREADABLE):
        if notification.method == "notifications/progress":
            await _progress(ctx, params)
        elif notification.method == "notifications/message" and "logging" in server.allow:
            await _log(ctx, server, params)


async def _progress(ctx: CallContext, params: Mapping[str, Any]) -> None:
    progress, total, message = (params.get(name) for name in ("progress", "total", "message"))
    if progress is None or not _is_number(progress):
        return
    text = clean(message, MAX_MESSAGE) if isinstance(message, str) else None
    # The client drops a report that does not grow (PR-01).
    await ctx.progress(progress, total if _is_number(total) else None, text)


async def _log(ctx: CallContext, server: UpstreamServer, params: Mapping[str, Any]) -> None:
    level = params.get("level")
    if level not in LEVELS:
        return
    data = cleaned(params.get("data"))
    if len(msgspec.json.encode(data)) > MAX_LOG_BYTES:
        return
    logger_name = params.get("logger")
    logger = (
        f"{server.name}: {clean(logger_name, 100)}" if isinstance(logger_name, str) else server.name
    )
    await ctx.log(level, data, logger=logger)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
