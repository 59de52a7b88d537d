"""The result of an examination: steps with levels, and one sentence."""

from typing import Literal

import msgspec

ReportLevel = Literal["ok", "note", "warn", "fail"]

SERVER = "the MCP server"
ISSUER = "the authorization server"
CLIENT = "the client"
LONGEST = 600
"""Maximum number of characters of one finding."""


class Step(msgspec.Struct, frozen=True):
    """
    One step of a client and its result.

    `note` is something to know that stops no client; `warn` stops some clients; `fail` stops all.
    For those two, ``detail`` is what is wrong, ``where`` the side that has to change, and ``fix``
    what to change there.
    """

    name: str
    level: ReportLevel
    detail: str
    where: str = ""
    fix: str = ""


class Report(msgspec.Struct, frozen=True):
    """All steps of an examination, in order."""

    url: str
    steps: tuple[Step, ...]

    @property
    def healthy(self) -> bool:
        """Return whether a client can connect, as far as was tried."""
        return all(step.level != "fail" for step in self.steps)

    @property
    def sentence(self) -> str:
        """Return one sentence: no problems, or what is wrong, where, and how to fix it."""
        # Report the first failure, because later ones are often its consequence.
        for level, opening in (("fail", ""), ("warn", "Clients can connect, but ")):
            for step in self.steps:
                if step.level == level:
                    return _sentence(f"{opening}{step.detail}: at {step.where}, {step.fix}.")
        return f"No problems found at {self.url}."


def _sentence(text: str) -> str:
    return text if text.startswith("http") else text[0].upper() + text[1:]


def printable(text: str) -> str:
    """Return a text of an untrusted server as it may be printed: bounded, and on one line."""
    # The text comes from untrusted servers: it must not move the cursor of the terminal or fill
    # the screen.
    clean = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"


class Findings:
    """Collect the steps of an examination."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def ok(self, name: str, detail: str) -> None:
        """Record a step that works."""
        self.steps.append(Step(name, "ok", printable(detail)))

    def note(self, name: str, detail: str) -> None:
        """Record information that stops no client."""
        self.steps.append(Step(name, "note", printable(detail)))

    def warn(self, name: str, detail: str, *, where: str, fix: str) -> None:
        """Record a problem that stops some clients."""
        self.steps.append(Step(name, "warn", printable(detail), where, fix))

    def fail(self, name: str, detail: str, *, where: str, fix: str) -> None:
        """Record a problem that stops every client."""
        self.steps.append(Step(name, "fail", printable(detail), where, fix))
