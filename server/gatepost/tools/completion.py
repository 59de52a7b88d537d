"""Suggestions for an argument while somebody types it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from gatepost.tools.api import CallContext, Outcome, ToolFailure
from gatepost.tools.function import awaited
from gatepost.tools.offer import Completer, Prompt, Template, inherited

Suggest = Callable[[CallContext, str, Mapping[str, str]], Awaitable[Iterable[str]] | Iterable[str]]
"""Takes the context, what is typed so far, and the other arguments; answers what would fit."""

MOST_VALUES = 100
"""The protocol allows no more (CompleteResult)."""
MOST_CHARACTERS = 4096
"""The longest text that anybody completes."""
MOST_GIVEN = 100


class Question(msgspec.Struct, frozen=True):
    """The arguments of a completer."""

    argument: str
    value: str
    given: dict[str, str] = {}


def completer(
    owner: Template | Prompt, arguments: Iterable[str], suggestions: Mapping[str, Suggest]
) -> Completer:
    """The completer of a template or prompt; an argument without suggestions has none to give."""
    names = frozenset(arguments)

    def check(raw: bytes) -> Question:
        question = msgspec.json.decode(raw, type=Question)
        if question.argument not in names:
            known = ", ".join(sorted(names)) or "none"
            message = f"`{question.argument[:64]}` is not an argument here; there are: {known}."
            raise ToolFailure("validation", message, field="argument.name")
        texts = (question.value, *question.given.values())
        if len(question.given) > MOST_GIVEN or max(map(len, texts)) > MOST_CHARACTERS:
            raise ToolFailure("validation", "The arguments are too long.", field="argument.value")
        return question

    async def invoke(ctx: CallContext, question: Question) -> Outcome:
        suggest = suggestions.get(question.argument)
        if suggest is None:
            return _answered(())
        return _answered(await awaited(suggest)(ctx, question.value, question.given))

    return Completer(
        arguments=names,
        suggests=bool(suggestions),
        check=check,
        invoke=invoke,
        **inherited(owner),
    )


def _answered(suggested: Any) -> Outcome:
    values = list(suggested)
    if isinstance(suggested, str) or not all(isinstance(value, str) for value in values):
        raise TypeError("suggestions are a list of texts")
    shown = values[:MOST_VALUES]
    answer = {"values": shown, "total": len(values), "hasMore": len(values) > len(shown)}
    return Outcome(structured=msgspec.Raw(msgspec.json.encode(answer)))
