"""Close several objects, also if one of them fails."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable

Close = Callable[[], Awaitable[None] | None]


async def close_all(*parts: Close) -> None:
    """
    Call these one after another.

    Raises the error of the last one that fails; its context has those of the others.
    """
    first, *remaining = parts
    try:
        closing = first()
        if isawaitable(closing):
            await closing
    finally:
        if remaining:
            await close_all(*remaining)
