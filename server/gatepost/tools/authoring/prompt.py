"""Prompts from functions, and the suggestions for arguments of prompts and templates."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from gatepost.tools.authoring.dependency import injected
from gatepost.tools.authoring.encoded_json import checked_blocks
from gatepost.tools.authoring.function import OfferOptions, awaited, common_members, description_of
from gatepost.tools.authoring.schema import texts_of
from gatepost.tools.context.content import Message
from gatepost.tools.offers.offer import CallContext, Outcome, ToolFailure
from gatepost.tools.offers.offer_kinds import Completer, Prompt, PromptArgument, Template, inherited

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


def check_of(arguments: Sequence[PromptArgument]) -> Callable[[bytes], dict[str, str]]:
    """Return the check of a prompt that another server defines, whose arguments are texts."""
    names = {argument.name for argument in arguments}
    required = [argument.name for argument in arguments if argument.required]

    def check(raw: bytes) -> dict[str, str]:
        try:
            values = msgspec.json.decode(raw, type=dict[str, str])
        except msgspec.DecodeError:
            raise ToolFailure("validation", "The arguments of a prompt are texts.") from None
        for name in required:
            if name not in values:
                raise ToolFailure("validation", f"`{name}` is required.", field=name)
        if unknown := values.keys() - names:
            name = min(unknown)[:64]
            message = f"`{name}` is no argument of this prompt."
            raise ToolFailure("validation", message, field=name)
        return values

    return check


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


P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


class PromptFunction(Generic[P, R]):
    """A function behind a prompt, which can still be called; `complete` adds suggestions."""

    def __init__(
        self, function: Callable[P, R], offer: Prompt, keep: Callable[[Prompt], None]
    ) -> None:
        self._function = function
        self._offer = offer
        self._keep = keep
        self._suggestions: dict[str, Suggest] = {}
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self._function(*arguments, **keywords)

    def complete(self, argument: str) -> Callable[[Function], Function]:
        """Make the decorated function suggest values of one argument, in the form of `Suggest`."""
        names = [argument.name for argument in self._offer.arguments]
        if argument not in names:
            raise ValueError(f"the prompt {self._offer.name} has no argument {argument}")

        def register(function: Function) -> Function:
            self._suggestions[argument] = function
            completion = completer(self._offer, names, dict(self._suggestions))
            self._offer = msgspec.structs.replace(self._offer, completer=completion)
            self._keep(self._offer)
            return function

        return register


def prompt(
    function: Callable[..., Any], name: str | None, pack: str, options: OfferOptions
) -> Prompt:
    """Create the prompt of a function; raises TypeError or ValueError if it cannot be one."""
    texts = texts_of(function)
    work = awaited(injected(function))
    required = texts.schema.get("required", ())

    def check(raw: bytes) -> dict[str, Any]:
        try:
            values = msgspec.json.decode(raw, type=dict[str, str])
        except msgspec.DecodeError:
            raise ToolFailure("validation", "The arguments of a prompt are texts.") from None
        return texts.check(values)

    async def invoke(ctx: CallContext, arguments: dict[str, Any]) -> Outcome:
        return Outcome(messages(await work(ctx, **arguments)))

    offer = Prompt(
        description=description_of(function, "the user"),
        arguments=tuple(
            PromptArgument(
                key, described.get("title"), described.get("description"), key in required
            )
            for key, described in texts.schema["properties"].items()
        ),
        check=check,
        invoke=invoke,
        **common_members("prompt", name or function.__name__, pack, options),
    )
    names = [argument.name for argument in offer.arguments]
    return msgspec.structs.replace(offer, completer=completer(offer, names, {}))


def messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Convert a prompt's return value into messages; a single string is the user's."""
    if isinstance(value, str):
        return (Message("user", value).protocol_form(),)
    several = value if isinstance(value, list | tuple) else [value]
    if not several or not all(isinstance(message, Message) for message in several):
        raise TypeError("a prompt answers a text, or one Message or several")
    return checked_blocks(message.protocol_form() for message in several)
