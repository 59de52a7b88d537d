"""A pack that says what it is told, in each place there is."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import pytest

from gatepost import CallContext, Contents, ListedResource, Pack, Secret, ToolFailure
from gatepost.redaction import redactor as redactor_module
from gatepost.tools.context.client import LoggingLevel, ProtocolError
from gatepost.tools.offers.offer import Outcome


@pytest.fixture(autouse=True)
def first_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no other screens in the process, which has a limited number of them."""
    monkeypatch.setattr(redactor_module, "_screens", WeakSet())


KEPT_TEXT = [""]


pack = Pack("parrot")
log = logging.getLogger("parrot")


@pack.tool(read_only=True)
async def say(ctx: CallContext, text: str) -> str:
    """Answer it as text."""
    return text


@pack.tool()
async def say_once(ctx: CallContext, text: str) -> str:
    """Answer it as text; not to be repeated."""
    return text


@pack.tool(read_only=True)
async def say_rows(ctx: CallContext, text: str) -> dict[str, Any]:
    """Answer it in a structured value, and as the name of a member."""
    return {"rows": [1, text], text: 2.5, "inner": {"x": [text, None]}}


@pack.tool(read_only=True)
async def say_blocks(ctx: CallContext, text: str) -> Outcome:
    """Answer it in every member of every kind of block."""
    data = text.encode()
    blob = Contents(data, "application/octet-stream", f"file:///{text}").protocol_form("", None)
    return Outcome(
        (
            {"type": "text", "text": "first", "annotations": {"audience": ["user"]}},
            {"type": "image", "data": blob["blob"], "mimeType": "image/png"},
            {"type": "resource", "resource": blob},
            {"type": "resource", "resource": {"uri": "x:y", "text": text, "_meta": {text: text}}},
            {"type": "resource_link", "uri": f"file:///{text}", "name": text, "title": text},
        )
    )


@pack.tool(read_only=True)
async def say_halves(ctx: CallContext, text: str) -> Outcome:
    """Answer it in two blocks."""
    half = len(text) // 2
    return Outcome(({"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}))


@pack.tool(read_only=True)
async def give(ctx: CallContext, value: dict[str, Any]) -> dict[str, Any]:
    """Answer a structured value, of which the text is a copy."""
    return value


@pack.tool(read_only=True)
async def give_apart(ctx: CallContext, value: Any, texts: list[str]) -> Outcome:
    """Answer a structured value with a copy in other words, and texts among other blocks."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": json.dumps(value, indent=2)}]
    for text in texts:
        blocks.append({"type": "text", "text": text})
        blocks.append({"type": "resource_link", "uri": "file:///innocent", "name": "innocent"})
    return Outcome(tuple(blocks), value)


@pack.tool(read_only=True)
async def fail_plainly(ctx: CallContext, text: str) -> str:
    """Fail with nothing but it."""
    raise ToolFailure("conflict", text)


@pack.tool(read_only=True)
async def fail(ctx: CallContext, text: str) -> str:
    """Fail with it."""
    raise ToolFailure("conflict", f"It cannot be done: {text}", field=text)


@pack.tool(read_only=True)
async def refuse(ctx: CallContext, text: str) -> str:
    """Answer an error of the protocol with it."""
    raise ProtocolError(-32602, f"No: {text}", {"seen": [text]})


@pack.tool(read_only=True)
async def crash(ctx: CallContext, text: str) -> str:
    """Fail as no author wanted, and log it in each way."""
    log.warning("parrot_warned", extra={"seen": text, "rows": [text], "number": 8642753108642753})
    logging.getLogger("library").error("cannot use %s", text)
    try:
        raise RuntimeError(f"inner {text}")
    except RuntimeError as error:
        raise ValueError(text) from error


@pack.tool(read_only=True)
async def forget(ctx: CallContext, text: str) -> str:
    """Leave a task behind whose failure no caller sees."""

    async def broken() -> None:
        raise RuntimeError(text)

    task = asyncio.create_task(broken())
    await asyncio.wait([task])
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": f"lost {text}", "exception": task.exception()})
    return "forgotten"


RUNNING_TASKS: list[tuple[asyncio.Event, asyncio.Task[None]]] = []


@pack.tool(read_only=True)
async def leave(ctx: CallContext) -> str:
    """Leave something running that logs when it is told to."""
    go = asyncio.Event()

    async def later() -> None:
        await go.wait()
        logging.getLogger("library").error("about %s", KEPT_TEXT[0])

    RUNNING_TASKS.append((go, asyncio.create_task(later())))
    return "left"


@pack.tool(read_only=True)
async def release(ctx: CallContext) -> str:
    """Tell it to."""
    go, task = RUNNING_TASKS.pop()
    go.set()
    await task
    return "released"


@pack.tool(read_only=True)
async def report(ctx: CallContext, text: str) -> str:
    """Say it while running, in one piece and in two."""
    half = len(text) // 2
    await ctx.progress(1, message=text)
    await ctx.progress(2, message=text[:half])
    await ctx.progress(3, message=text[half:])
    await ctx.log("error", {"seen": [text]}, logger=text)
    await ctx.log("error", text[:half])
    await ctx.log("error", text[half:])
    return "done"


@pack.tool(read_only=True)
async def log_each(ctx: CallContext, messages: list[tuple[LoggingLevel, str, float]]) -> str:
    """Log each text with its level, and pause for the seconds after it."""
    for level, text, pause_s in messages:
        await ctx.log(level, text)
        await asyncio.sleep(pause_s)
    return "done"


@pack.tool(read_only=True)
async def report_each(ctx: CallContext, reports: list[tuple[float, str, float]]) -> str:
    """Report each progress with its text, and pause for the seconds after it."""
    for progress, text, pause_s in reports:
        await ctx.progress(progress, message=text)
        await asyncio.sleep(pause_s)
    return "done"


@pack.tool(read_only=True)
async def report_once(ctx: CallContext, text: str) -> str:
    """Say it while running, in one piece."""
    await ctx.progress(1, message=text)
    await ctx.log("error", json.loads(text))
    return "done"


@pack.tool(read_only=True, task_support="required")
async def last(ctx: CallContext, text: str, fails: bool = False) -> str:
    """Become a task that says it in its status and its result."""
    await ctx.progress(1, message=f"working on {text}")
    if fails:
        raise ProtocolError(-32603, f"No: {text}")
    return text


@pack.tool(read_only=True)
async def ask(ctx: CallContext, text: str) -> str:
    """Ask the person with it."""
    fields = {"type": "object", "properties": {"ok": {"type": "boolean", "title": text}}}
    await ctx.ask(f"Is {text} right?", fields)
    return "asked"


@pack.tool(read_only=True)
async def ask_plainly(ctx: CallContext, text: str) -> str:
    """Ask the person nothing but it."""
    await ctx.ask(text, {"type": "object", "properties": {"ok": {"type": "boolean"}}})
    return "asked"


@pack.tool(read_only=True)
async def use(ctx: CallContext, token: Secret, text: str = "") -> str:
    """Use a secret and answer it together with a text."""
    value = await ctx.secret(token, field="token")
    return f"{value} {text}"


@pack.tool(read_only=True)
async def shared_store(ctx: CallContext, token: Secret, text: str) -> Outcome:
    """Call another tool, and then log what it was given itself."""
    outcome = await ctx.call("say", {"text": text})
    log.warning(f"used {token}")
    return outcome


@pack.tool(read_only=True)
async def pick(ctx: CallContext, text: int) -> str:
    """Take a number only."""
    return str(text)


@pack.resource("parrot://said", mime_type="text/plain")
async def said(ctx: CallContext) -> str:
    """Read what a test has put there."""
    return KEPT_TEXT[0]


@pack.resource("parrots://{name}", mime_type="text/plain")
async def one(ctx: CallContext, name: str) -> str:
    """Read it, too."""
    return KEPT_TEXT[0]


@one.list
async def all_of_them(ctx: CallContext) -> list[ListedResource]:
    """List one resource whose name and description contain the secret."""
    return [
        ListedResource(variables={"name": "polly"}, name=KEPT_TEXT[0], description=KEPT_TEXT[0])
    ]


@pack.prompt()
async def tell(ctx: CallContext, text: str) -> str:
    """Write a prompt that contains the text."""
    return f"Tell me of {text}"


@tell.complete("text")
async def suggest(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """Complete it."""
    return [f"{value}!"]
