"""Derive a tool's output schema, and convert what it returns into labelled Outcomes."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypedDict, is_typeddict

from gatepost.documents.json_shape import decoded
from gatepost.execution.threads import in_thread
from gatepost.tools.authoring.dependency import injected
from gatepost.tools.authoring.encoded_json import checked_json, checked_value, holds_encoded
from gatepost.tools.authoring.generated_schema import schema_of, simplify
from gatepost.tools.authoring.mixed_content import blocks, encoded, holds_content, is_content
from gatepost.tools.authoring.type_adapter import adapter_of
from gatepost.tools.offers.offer import CallContext, Invoke, Outcome, ToolFailure
from gatepost.tools.schemas.raw_schema import validator_of

T = TypeVar("T")
ToOutcome = Callable[[Any], Outcome]

RESULT = "result"
"""The member that holds a value that is not an object."""
BEFORE_RESULT = b'{"result":'

_skim = msgspec.json.Decoder(msgspec.Raw).decode


class ReturnConversion(msgspec.Struct, frozen=True):
    """The conversion of a function's return value; ``schema`` if the value is structured."""

    answer: ToOutcome
    schema: Mapping[str, Any] | None = None


def returned_by(
    function: Callable[..., Any], output_schema: Mapping[str, Any] | None = None
) -> ReturnConversion:
    """
    Read the return annotation of a tool function; *output_schema* is the author's own.

    ``str`` becomes text, ``None`` an empty answer, and ``Outcome`` is used as it is. ``Image``,
    ``Audio``, ``File``, ``bytes`` and lists with them become content blocks. A model,
    TypedDict, dataclass, msgspec Struct or ``dict[str, …]`` becomes a structured value whose
    output schema is an object (the 2025-11-25 revision allows no other). It is repeated as text
    for clients without structured content. Any other type becomes the member ``result`` of such
    an object, and its text is its JSON.

    You can give an output schema only for ``str`` and ``Outcome``, because other types have their
    own. Raises TypeError or ValueError if it does not match the type.
    """
    hint = get_type_hints(function, include_extras=True).get("return", inspect.Signature.empty)
    if output_schema is not None:
        return ReturnConversion(_answer_for(function, hint, output_schema), output_schema)
    if hint in (str, inspect.Signature.empty, Any):
        return ReturnConversion(_loose)
    if hint in (None, type(None)):
        return ReturnConversion(lambda _: Outcome())
    if hint is Outcome:
        return ReturnConversion(_outcome)
    if holds_content(hint):
        return ReturnConversion(lambda value: Outcome(blocks(value)))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return ReturnConversion(_struct_answer(hint), _struct_schema(hint))
    is_object = _is_object(hint)
    # Decided for each call, because the type of the returned value is known only now.
    shape = hint if is_object else TypedDict("Result", {RESULT: hint})  # type: ignore[operator]
    adapter = adapter_of(shape, function, {"the result": hint})
    schema = schema_of(adapter, mode="serialization")
    if is_object:
        return ReturnConversion(lambda value: structured(_dump(adapter, value)), schema)
    return ReturnConversion(lambda value: wrapped(_dump(adapter, {RESULT: value})), schema)


def converting(
    function: Callable[..., Any], convert: Callable[..., T]
) -> Callable[..., Awaitable[T]]:
    """
    Return a coroutine function that calls *function* with a context and arguments by name.

    It returns what *convert* makes of the returned value and its own further arguments. What a
    plain function returns is converted in a thread as well, because it may be large.
    """
    call = injected(function)

    async def converted(ctx: Any, arguments: Mapping[str, Any], *others: Any) -> T:
        return convert(await call(ctx, **arguments), *others)

    def compute(ctx: Any, arguments: Mapping[str, Any], *others: Any) -> T:
        return convert(function(ctx, **arguments), *others)

    async def converted_in_thread(ctx: Any, arguments: Mapping[str, Any], *others: Any) -> Any:
        # The dependencies end before the conversion, so they do not see its errors.
        return await in_thread(convert, await call(ctx, **arguments), *others)

    if inspect.iscoroutinefunction(function):
        return converted
    return partial(in_thread, compute) if call is function else converted_in_thread


def text(value: str) -> Outcome:
    """Return an outcome with one block of text."""
    return Outcome(({"type": "text", "text": value},))


def structured(encoded: bytes) -> Outcome:
    """Return an outcome with a structured value, given as JSON, and the same as text (SEP-2106)."""
    return Outcome(({"type": "text", "text": encoded.decode()},), msgspec.Raw(encoded))


def wrapped(encoded: bytes) -> Outcome:
    """Return an outcome whose structured value wraps one member, whose JSON is the text."""
    value = encoded[len(BEFORE_RESULT) : -1]
    return Outcome(({"type": "text", "text": value.decode()},), msgspec.Raw(encoded))


def text_of(content: Sequence[Mapping[str, Any]]) -> str:
    """Join the text blocks without the empty ones."""
    return "\n\n".join(
        str(block["text"]) for block in content if block.get("type") == "text" and block.get("text")
    )


def has_result(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema is an object with exactly the member ``result``."""
    members = schema.get("properties", {})
    return schema.get("type") == "object" and [*members] == [RESULT] == schema.get("required")


def detached(
    invoke: Invoke,
) -> Invoke:
    """Wrap *invoke* so that the call becomes a task at its start, if the client supports tasks."""

    async def begin(ctx: CallContext, arguments: Any) -> Outcome:
        await ctx.detach()
        return await invoke(ctx, arguments)

    return begin


def vetted(
    invoke: Invoke,
) -> Invoke:
    """Wrap *invoke* to raise TypeError or ValueError unless it returns a valid Outcome."""

    async def checked(ctx: CallContext, arguments: Any) -> Outcome:
        return _outcome(await invoke(ctx, arguments))

    return checked


def holding(invoke: Invoke, schema: Mapping[str, Any]) -> Invoke:
    """
    Wrap *invoke* to check its outcomes against an output schema, as clients do.

    The wrapper raises TypeError if a successful outcome lacks a value or does not match.
    """
    answer = _held_to(schema)

    async def checked(ctx: CallContext, arguments: Any) -> Outcome:
        return answer(await invoke(ctx, arguments))

    return checked


def _held_to(schema: Mapping[str, Any]) -> ToOutcome:
    """
    Return a function that checks outcomes against an output schema.

    If the schema has the form ``{"result": …}``, an outcome may also have the bare value, or only
    a text.
    """
    validator, may_wrap, is_text = validator_of(schema), has_result(schema), _is_of_text(schema)

    def answer(returned: Any) -> Outcome:
        outcome = _outcome(returned)
        if outcome.failure is not None:
            return outcome
        value = returned.structured
        if isinstance(value, msgspec.Raw):
            value = decoded(value)
        if may_wrap and not isinstance(value, Mapping):
            outcome = msgspec.structs.replace(outcome, as_result=True)
            if value is msgspec.UNSET:
                if is_text:
                    return outcome  # any text matches, and it may be long
                value = text_of(outcome.content)
            value = {RESULT: value}
        if value is msgspec.UNSET or not validator.is_valid(value):
            raise TypeError("the tool's answer does not match its output schema")
        return outcome

    return answer


def _is_of_text(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema is ``{"result": …}`` with any string."""
    if not has_result(schema):
        return False
    member: Mapping[str, Any] = schema["properties"][RESULT]
    return member.get("type") == "string" and member.keys() <= {"type", "title", "description"}


def _answer_for(function: Callable[..., Any], hint: Any, schema: Mapping[str, Any]) -> ToOutcome:
    if hint is Outcome:
        return _held_to(schema)
    name = getattr(function, "__name__", "the function")
    if hint is not str:
        raise TypeError(f"{name}: output_schema is for functions that return str or Outcome")
    if not _is_of_text(schema):
        raise ValueError(
            f"{name}: the output schema of a function that returns str is an object with the "
            f"required member `{RESULT}` of the type string"
        )
    return _as_result


def _as_result(value: Any) -> Outcome:
    if not isinstance(value, str):
        raise TypeError(f"the tool is declared to answer str, not {type(value).__name__}")
    return Outcome(({"type": "text", "text": str.__str__(value)},), as_result=True)


def _loose(value: Any) -> Outcome:
    if type(value) is str:
        return Outcome(({"type": "text", "text": value},))  # the same as `text`
    if isinstance(value, str):
        return text(str.__str__(value))  # JSON has no types of libraries
    if value is None:
        return Outcome()
    if isinstance(value, Outcome):
        return _outcome(value)
    return Outcome(blocks(value)) if is_content(value) else text(encoded(value).decode())


def _outcome(value: Any) -> Outcome:
    """
    Return the outcome that a function has returned, with its structured value as JSON.

    Redaction, the limit of the answer and the protocol need the JSON. It is encoded once.
    """
    if not isinstance(value, Outcome):
        raise TypeError(f"the tool is declared to answer an Outcome, not {type(value).__name__}")
    outcome: Outcome = value
    if holds_encoded(outcome.content):
        # Redaction and the protocol read the JSON that is sent.
        outcome = replace(outcome, content=tuple(checked_value(outcome.content)))
    if outcome.structured is msgspec.UNSET:
        return outcome
    # It is sent unchanged, so it must be valid JSON on one line.
    encoded = checked_json(outcome.structured)
    return replace(outcome, structured=msgspec.Raw(encoded))


def _is_object(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return is_typeddict(kind) or (
        isinstance(kind, type)
        and (issubclass(kind, BaseModel | Mapping) or dataclasses.is_dataclass(kind))
    )


def _dump(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """Check and encode a tool's return value; raises TypeError if it does not match its type."""
    try:
        encoded = adapter.dump_json(adapter.validate_python(value), by_alias=True)
    except ValidationError as error:
        raise TypeError(f"the tool's answer is not what it declares: {error.title}") from None
    # A model may write infinity and NaN as constants of Python, which are no JSON.
    if b"NaN" in encoded or b"Infinity" in encoded:
        _skim(encoded)
    return encoded


def _struct_schema(hint: type[msgspec.Struct]) -> Mapping[str, Any]:
    schema = msgspec.json.schema(hint)
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in schema.get("$defs", {}):
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return simplify(schema)


def _struct_answer(hint: type[msgspec.Struct]) -> ToOutcome:
    decode = msgspec.json.Decoder(hint).decode

    def answer(value: Any) -> Outcome:
        encoded = checked_json(value)
        try:
            # A Struct does not check the types of its members.
            fits = isinstance(value, hint) and decode(encoded) is not None
        except msgspec.ValidationError:
            fits = False
        if not fits:
            raise TypeError(f"the tool's answer is not the {hint.__name__} it declares")
        return structured(encoded)

    return answer


def labelled(invoke: Invoke, source: str | None) -> Invoke:
    """
    Wrap *invoke* so that its outcomes and its failures name *source*; None wraps nothing.

    A failure is labelled too, because it may quote what the other system answered. An outcome that
    names a source itself keeps it.
    """
    if source is None:
        return invoke

    async def labelling(ctx: CallContext, arguments: Any) -> Outcome:
        try:
            outcome = await invoke(ctx, arguments)
        except ToolFailure as failure:
            failure.untrusted = failure.untrusted or source
            raise
        return outcome if outcome.untrusted else replace(outcome, untrusted=source)

    return labelling
