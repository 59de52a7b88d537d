"""What a tool function returns → its output schema, and an Outcome."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from gatepost.tools.api import CallContext, Outcome
from gatepost.tools.dialect import validator_of
from gatepost.tools.schema import Plain, tidy

Answer = Callable[[Any], Outcome]

_encode = msgspec.json.encode


class Returned(msgspec.Struct, frozen=True):
    """How a function's return value becomes an Outcome; ``schema`` when it is structured."""

    answer: Answer
    schema: Mapping[str, Any] | None = None


def returned_by(function: Callable[..., Any]) -> Returned:
    """
    Read the return annotation of a tool function.

    ``str`` answers text, ``None`` nothing, ``Outcome`` itself. A model, TypedDict, dataclass,
    msgspec Struct or ``dict[str, …]`` answers a structured value with an output schema whose root
    is an object (the 2025-11-25 revision allows no other) and repeats it as text for clients that
    know no structured content. Anything else answers its JSON as text.
    """
    hint = get_type_hints(function, include_extras=True).get("return", inspect.Signature.empty)
    if hint in (str, inspect.Signature.empty, Any):
        return Returned(_loose)
    if hint in (None, type(None)):
        return Returned(lambda _: Outcome())
    if hint is Outcome:
        return Returned(_outcome)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return Returned(_struct_answer(hint), _struct_schema(hint))
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    if not _is_object(hint):
        return Returned(lambda value: text(_dump(adapter, value).decode()))
    schema = tidy(adapter.json_schema(schema_generator=Plain, mode="serialization"))
    return Returned(lambda value: structured(_dump(adapter, value)), schema)


def text(value: str) -> Outcome:
    """One block of text."""
    return Outcome(({"type": "text", "text": value},))


def structured(encoded: bytes) -> Outcome:
    """A structured value, given as JSON, and the same as text (SEP-2106)."""
    return Outcome(({"type": "text", "text": encoded.decode()},), msgspec.Raw(encoded))


def vetted(
    invoke: Callable[[CallContext, Any], Awaitable[Outcome]],
) -> Callable[[CallContext, Any], Awaitable[Outcome]]:
    """*invoke*, held to answer an Outcome whose value is JSON; TypeError or ValueError if not."""

    async def checked(ctx: CallContext, arguments: Any) -> Outcome:
        return _outcome(await invoke(ctx, arguments))

    return checked


def holding(
    invoke: Callable[[CallContext, Any], Awaitable[Outcome]], schema: Mapping[str, Any]
) -> Callable[[CallContext, Any], Awaitable[Outcome]]:
    """
    *invoke*, held to an output schema: clients check what they get, and drop what does not fit.

    TypeError when an outcome that is no failure lacks the value or has another.
    """
    validator = validator_of(schema)

    async def checked(ctx: CallContext, arguments: Any) -> Outcome:
        outcome = _outcome(await invoke(ctx, arguments))
        if outcome.failure is None:
            value = outcome.structured
            if isinstance(value, msgspec.Raw):
                value = msgspec.json.decode(value)
            if value is msgspec.UNSET or not validator.is_valid(value):
                raise TypeError("the tool's answer is not what its output schema says")
        return outcome

    return checked


def _loose(value: Any) -> Outcome:
    if isinstance(value, str):
        return Outcome(({"type": "text", "text": value},))  # as `text`, of which most answers are
    if value is None:
        return Outcome()
    return _outcome(value) if isinstance(value, Outcome) else text(_encode(value).decode())


def _outcome(value: Any) -> Outcome:
    if not isinstance(value, Outcome):
        raise TypeError(f"the tool is declared to answer an Outcome, not {type(value).__name__}")
    if isinstance(value.structured, msgspec.Raw):
        # Sent as it is: it must be JSON, and on one line, or it would break what stands around it.
        whole = msgspec.Raw(_encode(msgspec.json.decode(value.structured)))
        return msgspec.structs.replace(value, structured=whole)
    return value


def _is_object(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return is_typeddict(kind) or (
        isinstance(kind, type)
        and (issubclass(kind, BaseModel | Mapping) or dataclasses.is_dataclass(kind))
    )


def _dump(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """Check what the tool returned before clients check it against the schema; TypeError."""
    try:
        return adapter.dump_json(adapter.validate_python(value), by_alias=True)
    except ValidationError as error:
        raise TypeError(f"the tool's answer is not what it declares: {error.title}") from None


def _struct_schema(hint: type[msgspec.Struct]) -> Mapping[str, Any]:
    schema = msgspec.json.schema(hint)
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in schema.get("$defs", {}):
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return tidy(schema)


def _struct_answer(hint: type[msgspec.Struct]) -> Answer:
    decode = msgspec.json.Decoder(hint).decode

    def answer(value: Any) -> Outcome:
        encoded = _encode(value)
        try:
            # A Struct does not check what it is made of.
            fits = isinstance(value, hint) and decode(encoded) is not None
        except msgspec.ValidationError:
            fits = False
        if not fits:
            raise TypeError(f"the tool's answer is not the {hint.__name__} it declares")
        return structured(encoded)

    return answer
