"""A function made into a prompt: texts in, messages out."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from gatepost.tools.api import CallContext, Outcome, ToolFailure
from gatepost.tools.completion import Suggest, completer
from gatepost.tools.content import Message
from gatepost.tools.function import Options, awaited, description_of, settled
from gatepost.tools.offer import Argument, Prompt
from gatepost.tools.schema import texts_of

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


class PromptFunction(Generic[P, R]):
    """A function that answers a prompt; it can still be called. `complete` says more about it."""

    def __init__(
        self, function: Callable[P, R], offer: Prompt, keep: Callable[[Prompt], None]
    ) -> None:
        self._function = function
        self._offer = offer
        self._keep = keep
        self._suggestions: dict[str, Suggest] = {}
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self._function(*arguments, **named)

    def complete(self, argument: str) -> Callable[[Function], Function]:
        """The decorated function suggests values of one argument; see `Suggest` for its form."""
        names = [known.name for known in self._offer.arguments]
        if argument not in names:
            raise ValueError(f"the prompt {self._offer.name} has no argument {argument}")

        def register(function: Function) -> Function:
            self._suggestions[argument] = function
            made = completer(self._offer, names, dict(self._suggestions))
            self._offer = msgspec.structs.replace(self._offer, completer=made)
            self._keep(self._offer)
            return function

        return register


def prompt(function: Callable[..., Any], name: str | None, pack: str, options: Options) -> Prompt:
    """What the function offers; TypeError or ValueError when it cannot."""
    texts = texts_of(function)
    work = awaited(function)
    required = texts.schema.get("required", ())

    def check(raw: bytes) -> dict[str, Any]:
        try:
            given = msgspec.json.decode(raw, type=dict[str, str])
        except msgspec.DecodeError:
            raise ToolFailure("validation", "The arguments of a prompt are texts.") from None
        return texts.check(given)

    async def invoke(ctx: CallContext, arguments: dict[str, Any]) -> Outcome:
        return Outcome(messages(await work(ctx, **arguments)))

    offer = Prompt(
        description=description_of(function, "whoever picks it"),
        arguments=tuple(
            Argument(key, shown.get("title"), shown.get("description"), key in required)
            for key, shown in texts.schema["properties"].items()
        ),
        check=check,
        invoke=invoke,
        **settled("prompt", name or function.__name__, pack, options),
    )
    names = [argument.name for argument in offer.arguments]
    return msgspec.structs.replace(offer, completer=completer(offer, names, {}))


def messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    """What a prompt answers, as blocks of messages: a text alone is the user's."""
    if isinstance(value, str):
        return (Message("user", value).shown(),)
    several = value if isinstance(value, list | tuple) else [value]
    if not several or not all(isinstance(one, Message) for one in several):
        raise TypeError("a prompt answers a text, or one Message or several")
    return tuple(one.shown() for one in several)
