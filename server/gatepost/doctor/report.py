"""What an examination finds: steps, each with a level, and one sentence at the end."""

from typing import Literal

import msgspec

Level = Literal["ok", "note", "warn", "fail"]

SERVER = "the MCP server"
ISSUER = "the authorization server"
CLIENT = "the client"
LONGEST = 600
"""Characters of one finding."""


class Step(msgspec.Struct, frozen=True):
    """
    One thing a client does, and how it went.

    `note` is something to know that stops no client; `warn` stops some clients; `fail` stops all.
    For those two, ``detail`` is what is wrong, ``where`` the side that has to change, and ``fix``
    what to change there.
    """

    name: str
    level: Level
    detail: str
    where: str = ""
    fix: str = ""


class Report(msgspec.Struct, frozen=True):
    """Every step of an examination, in the order taken."""

    url: str
    steps: tuple[Step, ...]

    @property
    def healthy(self) -> bool:
        """Whether a client gets through as far as was tried."""
        return all(step.level != "fail" for step in self.steps)

    @property
    def sentence(self) -> str:
        """One sentence: fine, or what is wrong, where, and what to change at which side."""
        # The first failure: what comes after it is often its consequence.
        for level, opening in (("fail", ""), ("warn", "A client can get through, but ")):
            for step in self.steps:
                if step.level == level:
                    return _sentence(f"{opening}{step.detail}: at {step.where}, {step.fix}.")
        return f"Everything that a client needs is in place at {self.url}."


def _sentence(text: str) -> str:
    return text if text.startswith("http") else text[0].upper() + text[1:]


def _shown(text: str) -> str:
    # Most of it comes from servers that may not be friendly: nothing of theirs is to move the
    # cursor of the operator's terminal or to fill it.
    clean = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"


class Findings:
    """Collects steps while an examination goes on."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def ok(self, name: str, detail: str) -> None:
        """Record what a client can rely on."""
        self.steps.append(Step(name, "ok", _shown(detail)))

    def note(self, name: str, detail: str) -> None:
        """Record something to know that stops no client."""
        self.steps.append(Step(name, "note", _shown(detail)))

    def warn(self, name: str, detail: str, *, where: str, fix: str) -> None:
        """Record what stops some clients."""
        self.steps.append(Step(name, "warn", _shown(detail), where, fix))

    def fail(self, name: str, detail: str, *, where: str, fix: str) -> None:
        """Record what stops every client."""
        self.steps.append(Step(name, "fail", _shown(detail), where, fix))
