"""Messages for a model about a failed script; each limit names its setting."""

from gatepost import FailureKind, ToolFailure
from gatepost_packs.scripts.process import MAX_DEPTH, ScriptFailed
from gatepost_packs.scripts.settings import ScriptsSettings

REASONS: dict[str, tuple[FailureKind, str]] = {
    "script": ("validation", "{file} failed:\n{message}"),
    "value": (
        "validation",
        "The value of {file} cannot be sent as JSON: {message}\nReturn strings, numbers, "
        "booleans, None, and lists, dicts and structs of these; keys of dicts must be strings.",
    ),
    "wall": (
        "timeout",
        "{file} did not finish within {it.timeout_s:g} seconds (packs.scripts.timeout_s).",
    ),
    "cpu": (
        "timeout",
        "{file} used more than {it.cpu_s} seconds of processor time (packs.scripts.cpu_s). "
        "Let it do less at once.",
    ),
    "steps": (
        "validation",
        "{file} took more than {it.max_steps} steps (packs.scripts.max_steps). "
        "Look for a loop that never ends, or let it do less at once.",
    ),
    "memory": (
        "validation",
        "{file} needed more than {it.memory_mb} MB of memory (packs.scripts.memory_mb). "
        "Let it keep less at once.",
    ),
    "output": (
        "validation",
        "{file} printed or answered more than {it.max_output_bytes} bytes "
        "(packs.scripts.max_output_bytes). Let it print less, or answer in parts.",
    ),
    "calls": (
        "validation",
        "{file} called tools more than {it.max_calls} times (packs.scripts.max_calls).",
    ),
    "depth": (
        "validation",
        "{file} has a value that is nested more than {depth} levels deep. Make it flatter.",
    ),
    "values": (
        "validation",
        "{file} has more than {message} values at once, or a number of too many digits. "
        "Let it answer or call tools in parts.",
    ),
    "stack": (
        "validation",
        "{file} is nested too deeply for its interpreter, in its text or in its data. "
        "Write it flatter.",
    ),
    "killed": (
        "internal",
        "{file} lost its process, which was killed from outside. Its effects until then remain; "
        "call again to run it anew.",
    ),
    "crash": (
        "validation",
        "{file} crashed its interpreter, possibly for lack of memory: it may use "
        "{it.memory_mb} MB (packs.scripts.memory_mb). {message}",
    ),
}

MAX_PRINTED = 2_000


def failure_of(
    failed: ScriptFailed, file: str, settings: ScriptsSettings, *, untrusted: str | None = None
) -> ToolFailure:
    """
    Return the failure for the caller, with the end of the printed text; *untrusted* labels it.
    """
    kind, text = REASONS.get(failed.reason, REASONS["crash"])
    message = text.format(
        file=f"Script '{file}'", message=failed.message.strip(), it=settings, depth=MAX_DEPTH
    )
    if failed.printed:
        message += f"\nIt had printed:\n{failed.printed[-MAX_PRINTED:]}"
    return ToolFailure(kind, message.strip(), untrusted=untrusted)
