"""A function's signature → JSON Schema 2020-12 → checked arguments."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

import msgspec
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from gatepost.tools.api import CallContext, ToolFailure
from gatepost.tools.dialect import validator_of
from gatepost.tools.mistake import NOTHING_HIDDEN, Hidden, got, mistake, path_of
from gatepost.tools.secret import secret_arguments

# Three mistakes are what a model repairs in one go; thirty fill its window.
SHOWN_MISTAKES = 3

# pydantic names the value by its kind ("Input should", "String should"): here it has a name.
SHOULD = re.compile(r"\w+ should (.*)", re.DOTALL)

SILENT = frozenset(
    {
        "dict_type",
        "json_invalid",
        "json_type",
        "list_type",
        "literal_error",
        "model_type",
        "string_pattern_mismatch",
        "string_too_long",
        "string_too_short",
        "string_type",
        "too_long",
        "too_short",
    }
)
"""The mistakes whose message never quotes the value; an author's own validator may."""

Check = Callable[[bytes], Any]


class Plain(GenerateJsonSchema):
    """pydantic's schemas without the titles it makes from names: they only cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Arguments(msgspec.Struct, frozen=True):
    """What a function takes besides its context: the schema clients see and the check it means."""

    schema: Mapping[str, Any]
    check: Check


def arguments_of(function: Callable[..., Any]) -> Arguments:
    """
    Read the parameters after the first (the context) of a tool function.

    Types are taken as JSON means them: a string is never read as a number. Descriptions come from
    ``Annotated[str, Field(description=…)]`` or ``Annotated[str, "…"]``. TypeError when the first is
    no context, and when another has no annotation or cannot be passed by name.
    """
    adapter, parameters = _adapter(function)
    schema = tidy(adapter.json_schema(schema_generator=Plain))
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            _show_default(schema["properties"][parameter.name], parameter.default)
    validate = adapter.validator.validate_json
    names, hidden = _named(parameters), Hidden(secret_arguments(schema))

    def check(arguments: bytes) -> dict[str, Any]:
        try:
            checked: dict[str, Any] = validate(arguments, strict=True)
        except ValidationError as error:
            # The values stay out of the traceback's chain: they end up in logs.
            raise _failure(error, names, hidden) from None
        return checked

    return Arguments(schema, check)


class Texts(msgspec.Struct, frozen=True):
    """What a function takes that is only ever given texts, and the check that reads them."""

    schema: Mapping[str, Any]
    check: Callable[[Mapping[str, str]], dict[str, Any]]


def texts_of(function: Callable[..., Any]) -> Texts:
    """
    Read the parameters after the first of a function whose arguments are texts on the wire.

    They may be annotated with whatever one text can mean: `int`, `Literal`, a date. TypeError as
    in `arguments_of`, and for lists and objects.
    """
    adapter, parameters = _adapter(function)
    schema = tidy(adapter.json_schema(schema_generator=Plain))
    for name, described in schema["properties"].items():
        if not _is_one_text(described):
            raise TypeError(f"{function.__name__}: {name} is given one text; take it as `str`")
    if secret_arguments(schema):
        # What they are called with is a prompt or an address: both are shown and kept by clients.
        raise TypeError(f"{function.__name__}: only tools take secrets")
    validate: Any = adapter.validator.validate_strings  # its type wants dictionaries of its own
    names = _named(parameters)

    def check(values: Mapping[str, str]) -> dict[str, Any]:
        try:
            checked: dict[str, Any] = validate(dict(values))
        except ValidationError as error:
            raise _failure(error, names) from None
        return checked

    return Texts(schema, check)


def _is_one_text(schema: Mapping[str, Any]) -> bool:
    options = schema.get("anyOf")
    if options is not None:
        return all(_is_one_text(option) for option in options)
    return schema.get("type") not in ("array", "object")


def _named(parameters: Iterable[inspect.Parameter]) -> str:
    return ", ".join(f"`{parameter.name}`" for parameter in parameters) or "none"


def _adapter(
    function: Callable[..., Any],
) -> tuple[TypeAdapter[dict[str, Any]], list[inspect.Parameter]]:
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or not _takes_context(parameters[0], hints.get(parameters[0].name)):
        # It would be given the context in the place of an argument, and nobody would be told.
        wanted = "its first parameter is the call's context: write `ctx: CallContext`"
        raise TypeError(f"{function.__name__}: {wanted}")
    parameters = parameters[1:]
    make: Any = TypedDict  # its fields are known only now
    shape = make("Arguments", {p.name: _field(function, p, hints.get(p.name)) for p in parameters})
    shape.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    return TypeAdapter(shape), parameters


def _takes_context(first: inspect.Parameter, hint: Any) -> bool:
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    if first.name.startswith(("ctx", "context", "_")):
        return True
    return hint is Any or (isinstance(hint, type) and issubclass(CallContext, hint))


def _field(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"{function.__name__}: {parameter} cannot be passed by name")
    if hint is None:
        raise TypeError(f"{function.__name__}: parameter {parameter.name} needs a type annotation")
    if isinstance(parameter.default, FieldInfo):
        raise TypeError(
            f"{function.__name__}: write {parameter.name}: Annotated[…, Field(…)] = default"
        )
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        notes = [Field(description=n) if isinstance(n, str) else n for n in notes]
        hint = Annotated[inner, *notes]
    return Required[hint] if parameter.default is parameter.empty else NotRequired[hint]


def _show_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = to_jsonable_python(default)
    except PydanticSerializationError:
        return  # a default that JSON cannot say is the function's own business


def tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Make a generated schema plain: an object at the root, no title, definitions in place."""
    definitions = schema.pop("$defs", {})
    plain: dict[str, Any] = _inline(schema, definitions, ())
    plain.pop("title", None)
    plain.setdefault("type", "object")
    plain.setdefault("properties", {})
    kept = {name: _inline(value, definitions, (name,)) for name, value in definitions.items()}
    reached = _reached(plain, kept)
    if used := {name: kept[name] for name in kept if name in reached}:
        plain["$defs"] = used
    return plain


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """Replace references by what they name: several clients and models do not follow them."""
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if (
        name in definitions
        and name not in inside
        and name not in _reached(definitions[name], definitions)
    ):
        around = {key: value for key, value in node.items() if key != "$ref"}
        target = {k: v for k, v in definitions[name].items() if k != "title"}
        return _inline({**target, **around}, definitions, (*inside, name))
    return {key: _inline(value, definitions, inside) for key, value in node.items()}


def _references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*(_references(item) for item in node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"].removeprefix("#/$defs/")} if isinstance(node.get("$ref"), str) else set()
    return own.union(*(_references(value) for value in node.values()))


def _reached(node: Any, definitions: Mapping[str, Any]) -> set[str]:
    """The names of definitions that *node* leads to, by however many steps."""
    seen: set[str] = set()
    ahead = _references(node)
    while ahead:
        seen |= ahead
        ahead = {n for d in ahead if d in definitions for n in _references(definitions[d])} - seen
    return seen


def checker(schema: Mapping[str, Any]) -> Check:
    """
    Check arguments against a schema that a tool brings itself (OpenAPI, another server).

    ValueError for one that `validator_of` does not take.
    """
    validator = validator_of(schema)
    hidden = Hidden(secret_arguments(schema))

    def check(arguments: bytes) -> Any:
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            raise ToolFailure("validation", "The arguments are not valid JSON.") from None
        mistakes = []
        for error in validator.iter_errors(value):
            mistakes.append(mistake(error, hidden))
            if len(mistakes) == SHOWN_MISTAKES:
                break
        if mistakes:
            message = " ".join(sentence for _, sentence in mistakes)
            raise ToolFailure("validation", message, field=mistakes[0][0] or None)
        return value

    return check


def _failure(error: ValidationError, names: str, hidden: Hidden = NOTHING_HIDDEN) -> ToolFailure:
    details = error.errors(include_url=False)
    shown = details[:SHOWN_MISTAKES]
    sentences = [_sentence(detail, names, hidden) for detail in shown]
    if more := len(details) - len(shown):
        sentences.append(f"And {more} more.")
    return ToolFailure(
        "validation", " ".join(sentences), field=path_of(list(shown[0]["loc"])) or None
    )


def _sentence(detail: ErrorDetails, names: str, hidden: Hidden) -> str:
    field = path_of(list(detail["loc"]))
    if detail["type"] == "missing":
        return f"`{field}` is required."
    if detail["type"] == "extra_forbidden":
        known = f"; it takes: {names}" if len(detail["loc"]) == 1 else ""
        return f"`{field}` is not an argument here{known}."
    message = detail["msg"].removeprefix("Value error, ").removesuffix(".")
    subject = f"`{field}`" if field else "The arguments"
    secret = hidden.holds(detail["loc"])
    if secret and detail["type"] not in SILENT:
        return f"{subject}: the value is not valid."
    if rest := SHOULD.match(message):
        return f"{subject} should {rest[1]}{'' if secret else got(detail['input'])}."
    return f"{subject}: {message}."
