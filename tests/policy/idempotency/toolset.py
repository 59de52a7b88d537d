"""Tools whose effects outlive the process: lines of a file; loaded by servers under test."""

from pathlib import Path
from threading import Event

from gatepost import CallContext, Pack

pack = Pack("desk")

EFFECTS, GO = Path("effects"), Path("go")
LOOK_EVERY_S = 0.02


def _act(what: str) -> str:
    with EFFECTS.open("a", encoding="utf-8") as effects:
        effects.write(f"{what}\n")
    while not GO.exists():
        Event().wait(LOOK_EVERY_S)
    return f"{what} {EFFECTS.read_text(encoding='utf-8').split().count(what)}"


@pack.tool()
def act(ctx: CallContext, what: str) -> str:
    """Have an effect, and wait until somebody says go."""
    return _act(what)


@pack.tool(idempotent=True)
def put(ctx: CallContext, what: str) -> str:
    """Have an effect that is the same twice, and wait until somebody says go."""
    return _act(what)
