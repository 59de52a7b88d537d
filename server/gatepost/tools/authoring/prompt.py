"""Turn a function into a prompt."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gatepost.tools.authoring.dependency import injected
from gatepost.tools.authoring.encoded_json import checked_blocks
from gatepost.tools.authoring.function import OfferOptions, awaited, common_members, description_of
from gatepost.tools.authoring.schema import texts_of
from gatepost.tools.authoring.suggestions import Function, OfferedFunction, P, R, completer
from gatepost.tools.context.content import Message
from gatepost.tools.offers.offer import CallContext, Outcome, ToolFailure
from gatepost.tools.offers.offer_kinds import Prompt, PromptArgument


def check_of(arguments: Sequence[PromptArgument]) -> Callable[[bytes], dict[str, str]]:
    """Return the check of a prompt that another server defines, whose arguments are texts."""
    names = {argument.name for argument in arguments}
    required = [argument.name for argument in arguments if argument.required]

    def check(raw: bytes) -> dict[str, str]:
        values = _decoded(raw)
        for name in required:
            if name not in values:
                raise ToolFailure("validation", f"`{name}` is required.", field=name)
        if unknown := values.keys() - names:
            name = min(unknown)[:64]
            message = f"`{name}` is no argument of this prompt."
            raise ToolFailure("validation", message, field=name)
        return values

    return check


def _decoded(raw: bytes) -> dict[str, str]:
    try:
        return msgspec.json.decode(raw, type=dict[str, str])
    except msgspec.DecodeError:
        raise ToolFailure("validation", "The arguments of a prompt are texts.") from None


class PromptFunction(OfferedFunction[P, R]):
    """A function behind a prompt, which can still be called; `complete` adds suggestions."""

    def __init__(
        self, function: Callable[P, R], offer: Prompt, keep: Callable[[Prompt], None]
    ) -> None:
        super().__init__(function)
        self._offer = offer
        self._keep = keep

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
        return texts.check(_decoded(raw))

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
