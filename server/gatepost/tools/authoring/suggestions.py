"""Suggest values for the arguments of prompts and the variables of URI templates."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from gatepost.tools.authoring.function import awaited
from gatepost.tools.offers.offer import CallContext, Outcome, ToolFailure
from gatepost.tools.offers.offer_kinds import Completer, Prompt, Template, inherited

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])

Suggest = Callable[[CallContext, str, Mapping[str, str]], Awaitable[Iterable[str]] | Iterable[str]]
"""Gets the context, the text typed so far and the other arguments; returns matching values."""

MAX_VALUES = 100
"""Maximum number of values that the protocol allows (CompleteResult)."""
MAX_CHARACTERS = 4096
"""The longest text that can be completed."""
MAX_GIVEN = 100


class CompletionRequest(msgspec.Struct, frozen=True, rename={"context_arguments": "given"}):
    """The arguments of a completer."""

    argument: str
    value: str
    context_arguments: dict[str, str] = {}


def completer(
    owner: Template | Prompt, arguments: Iterable[str], suggestions: Mapping[str, Suggest]
) -> Completer:
    """Create the completer of a template or prompt, for arguments with and without suggestions."""
    names = frozenset(arguments)

    def check(raw: bytes) -> CompletionRequest:
        completion = msgspec.json.decode(raw, type=CompletionRequest)
        if completion.argument not in names:
            choices = ", ".join(sorted(names)) or "none"
            message = f"`{completion.argument[:64]}` is not an argument here; there are: {choices}."
            raise ToolFailure("validation", message, field="argument.name")
        texts = (completion.value, *completion.context_arguments.values())
        if len(completion.context_arguments) > MAX_GIVEN or max(map(len, texts)) > MAX_CHARACTERS:
            raise ToolFailure("validation", "The arguments are too long.", field="argument.value")
        return completion

    async def invoke(ctx: CallContext, completion: CompletionRequest) -> Outcome:
        suggest = suggestions.get(completion.argument)
        if suggest is None:
            return _answered(())
        return _answered(
            await awaited(suggest)(ctx, completion.value, completion.context_arguments)
        )

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
    first_values = values[:MAX_VALUES]
    answer = {
        "values": first_values,
        "total": len(values),
        "hasMore": len(values) > len(first_values),
    }
    return Outcome(structured=msgspec.Raw(msgspec.json.encode(answer)))


class OfferedFunction(Generic[P, R]):
    """A function behind an offer, which can still be called, and the suggestions for it."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._suggestions: dict[str, Suggest] = {}
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self._function(*arguments, **keywords)
