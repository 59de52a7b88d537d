"""The pack `scripts`: its four tools."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from gatepost import CallContext, Outcome, Pack, Script, ScriptApprovals, ToolFailure
from gatepost_packs.scripts.errors import failure_of
from gatepost_packs.scripts.folders import (
    SEEN,
    ScriptFolders,
    changes_since_reload,
    from_code,
    is_allowed,
)
from gatepost_packs.scripts.outline import outline_of
from gatepost_packs.scripts.process import (
    MAX_DEPTH,
    Host,
    ScriptFailed,
    ScriptWork,
    depth_of,
    perform,
)
from gatepost_packs.scripts.script_queue import queue
from gatepost_packs.scripts.settings import LONGEST_S, ScriptsSettings
from gatepost_packs.scripts.worker import HOST_FUNCTIONS
from gatepost_packs.text import encoded

pack = Pack("scripts")

# The longest configured time, and as long again in a queue of busy workers.
TIMEOUT_S = 2 * LONGEST_S
RESULT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"description": "The value, whatever JSON it is"},
        "printed": {"type": "string", "description": "What the script printed"},
    },
    "required": ["value", "printed"],
}
"""The output schema of a script's result: only the script knows the type of its value."""
PENDING = (
    "Error: Script '{file}' is pending approval. An administrator must review and approve this "
    "script before it can be executed."
)
REJECTED = (
    "Error: Script '{file}' was rejected by {by}, so it was not run.{reason} Do not call it again "
    "as it is: change it, or ask your user."
)


class RunnableFunction(BaseModel):
    """A function that `script_run` can call."""

    name: str
    parameters: list[str]


class ListedScript(BaseModel):
    """One script; `source` says which folder it is in."""

    name: str
    description: str
    functions: list[RunnableFunction]
    approved: bool
    source: Literal["server", "workspace"]


class ScriptList(BaseModel):
    """The scripts of a tenant."""

    scripts: list[ListedScript]
    truncated: bool


class ReloadChanges(BaseModel):
    """
    The changes since the last reload, by name; `unapproved` scripts wait for an administrator, or
    were rejected.
    """

    new: list[str]
    changed: list[str]
    gone: list[str]
    unapproved: list[str]


@pack.tool(
    title="List scripts",
    scopes={"scripts:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="script files",
)
async def script_list(ctx: CallContext) -> ScriptList:
    """List available scripts: name, functions, description, and whether they may run."""
    settings = ctx.settings(ScriptsSettings)
    found_scripts = await ScriptFolders(settings, ctx.workspace).all()
    listed = []
    for script in found_scripts.scripts:
        outline = outline_of(script.content.decode(errors="replace"))
        listed.append(
            ListedScript(
                name=script.name,
                description=outline.description,
                functions=[
                    RunnableFunction(name=function.name, parameters=list(function.parameters))
                    for function in outline.functions
                ],
                approved=await may_run(ctx, settings, script),
                source="server" if script.place == "server" else "workspace",
            )
        )
    return ScriptList(scripts=listed, truncated=found_scripts.cut)


@pack.tool(
    title="Run a script",
    scopes={"scripts:run"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=True,
    timeout_s=TIMEOUT_S,
    output_schema=RESULT_SCHEMA,
)
async def script_run(
    ctx: CallContext,
    name: Annotated[
        str, Field(description="Name of the script (without .star extension)", max_length=200)
    ],
    function: Annotated[
        str | None, Field(description="Optional function name to call; without it, main")
    ] = None,
    args: Annotated[
        list[Any], Field(description="Optional arguments to pass to the function, in order")
    ] = [],  # noqa: B006  # the model sees this default; no code changes it
) -> Outcome:
    """Execute a Starlark script that an administrator approved, and answer its function's value."""
    settings = ctx.settings(ScriptsSettings)
    script = await ScriptFolders(settings, ctx.workspace).find(name.removesuffix(".star"))
    if script is None:
        raise ToolFailure("not_found", f"Error: script '{name}' not found", field="name")
    if depth_of(args) > MAX_DEPTH:
        message = f"`args` is nested more than {MAX_DEPTH} levels deep."
        raise ToolFailure("validation", message, field="args")
    await _require(ctx, settings, script)
    return await _run(ctx, settings, script, function=function or "main", args=args)


@pack.tool(
    title="Execute Starlark code",
    scopes={"scripts:exec"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=True,
    timeout_s=TIMEOUT_S,
    output_schema=RESULT_SCHEMA,
)
async def script_exec(
    ctx: CallContext,
    code: Annotated[str, Field(description="Starlark source; its last expression is the answer")],
) -> Outcome:
    """
    Execute Starlark code, and answer its last value and what it printed.

    The code can call other tools: `call("tool_name", argument=value)` answers what the tool
    answers, `try_call(…)` answers {"ok": value} or {"error": message}. Unless the server is
    configured otherwise, an administrator has to approve exactly this code first.
    """
    settings = ctx.settings(ScriptsSettings)
    if settings.exec == "off":
        message = "script_exec is turned off here (packs.scripts.exec). Use script_run."
        raise ToolFailure("denied", message)
    content = encoded(code, "code")
    if len(content) > settings.max_code_bytes:
        message = (
            f"`code` has {len(content)} bytes and may have {settings.max_code_bytes} "
            "(packs.scripts.max_code_bytes)."
        )
        raise ToolFailure("validation", message, field="code")
    script = from_code(content)
    await _require(ctx, settings, script)
    return await _run(ctx, settings, script)


@pack.tool(
    title="Reload scripts",
    scopes={"scripts:run"},
    read_only=False,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="script files",
)
async def script_reload(ctx: CallContext) -> ReloadChanges:
    """
    Reload scripts from disk: what is new, changed and gone since the last reload, and what waits
    for an administrator's approval before it can run.
    """
    settings = ctx.settings(ScriptsSettings)
    found_scripts = await ScriptFolders(settings, ctx.workspace).all()
    unapproved = [
        script for script in found_scripts.scripts if not await may_run(ctx, settings, script)
    ]
    await _submit(ctx, settings, *unapproved)
    turned = await changes_since_reload(ctx.entries(SEEN), found_scripts.scripts)
    return ReloadChanges(
        new=turned.new,
        changed=turned.changed,
        gone=turned.gone,
        unapproved=[script.name for script in unapproved],
    )


async def may_run(ctx: CallContext, settings: ScriptsSettings, script: Script) -> bool:
    """Return whether the configuration or an administrator lets exactly this script run."""
    if is_allowed(script, settings):
        return True
    return await ScriptApprovals.of(ctx).is_approved(script)


async def _require(ctx: CallContext, settings: ScriptsSettings, script: Script) -> None:
    if await may_run(ctx, settings, script):
        return
    rejection = await ScriptApprovals.of(ctx).rejection(script)
    if rejection is not None:
        text = REJECTED.format(
            file=script.file, by=rejection.by.display_name, reason=rejection.reason_sentence
        )
        raise ToolFailure("denied", text)
    await _submit(ctx, settings, script)
    raise ToolFailure("denied", PENDING.format(file=script.file))


async def _submit(ctx: CallContext, settings: ScriptsSettings, *scripts: Script) -> None:
    await ScriptApprovals.of(ctx).request(
        scripts, caller=ctx.caller, max_waiting=settings.max_pending
    )


async def _run(
    ctx: CallContext,
    settings: ScriptsSettings,
    script: Script,
    *,
    function: str | None = None,
    args: list[Any] | None = None,
) -> Outcome:
    code = script.text
    if code is None:
        raise ToolFailure("validation", f"Script '{script.file}' is not UTF-8 text.")
    if function in HOST_FUNCTIONS:
        raise _missing_function(function, script, code)
    # A script cannot ask a person, because it would run again from its start, with all its effects.
    quiet = ctx.without_client()

    sources: set[str] = set()

    async def call(tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        outcome = await quiet.call(tool, arguments)
        if outcome.untrusted:
            sources.add(outcome.untrusted)
        return _shown_outcome(outcome)

    async def report_progress(seconds: float, summary: str) -> None:
        await ctx.progress(seconds, settings.timeout_s, f"{script.file} runs: {summary}")

    work = ScriptWork(file=script.file, code=code, function=function, args=args or [])
    try:
        async with queue().admitted(ctx.caller.tenant_id, settings, may_wait=ctx.depth == 0):
            ran = await perform(work, Host(call, report_progress), settings)
    except ScriptFailed as failed:
        if failed.reason == "function":
            raise _missing_function(function, script, code) from None
        raise failure_of(failed, script.file, settings, untrusted=_label(sources)) from None
    return msgspec.structs.replace(_answer(ran.value, ran.printed), untrusted=_label(sources))


def _label(sources: set[str]) -> str | None:
    """Return the label for the result: the sources of the tools that the script called."""
    return ", ".join(sorted(sources)) or None


def _missing_function(function: str | None, script: Script, code: str) -> ToolFailure:
    names = [listed.name for listed in outline_of(code).functions]
    listing = f"It has: {', '.join(names)}." if names else "It has none."
    message = f"Script '{script.file}' has no function '{function}'. {listing}"
    return ToolFailure("not_found", message, field="function")


def _shown_outcome(outcome: Outcome) -> Mapping[str, Any]:
    """Return a tool's result as a script gets it: its value, else its text."""
    if outcome.failure is not None:
        return {"error": outcome.failure.message, "kind": outcome.failure.kind}
    if outcome.structured is not msgspec.UNSET:
        return {"ok": outcome.structured}
    texts = (str(block["text"]) for block in outcome.content if block.get("type") == "text")
    return {"ok": "\n\n".join(texts)}


def _answer(value: Any, printed: str) -> Outcome:
    """
    Return the value as text (JSON unless it is a string), then the printed text; both as data, too.
    """
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    blocks = [{"type": "text", "text": text}]
    if printed:
        blocks.append({"type": "text", "text": f"Printed:\n{printed}"})
    return Outcome(tuple(blocks), {"value": value, "printed": printed})
