"""Derive a JSON Schema 2020-12 from a function's signature, and check arguments against it."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import (
    Annotated,
    Any,
    NoReturn,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from gatepost.documents.json_shape import may_overflow, values_bound
from gatepost.tools.authoring.dependency import dependency_of
from gatepost.tools.authoring.generated_schema import schema_of
from gatepost.tools.authoring.type_adapter import adapter_of
from gatepost.tools.authoring.validation_errors import MAX_LISTED, failure_of, is_caused_by_cut
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.tools.schemas import core_schema
from gatepost.tools.schemas.bounded_validation import (
    NOTHING_HIDDEN,
    Bounds,
    HiddenArguments,
    decoded,
    structure_of,
)
from gatepost.tools.schemas.raw_schema import validator_of
from gatepost.tools.schemas.schema_branches import branching_of
from gatepost.tools.schemas.secret import secret_arguments

MAX_ERRORS = 10_000
"""
The most validation errors that are built for one document. Each takes a microsecond, and one more
for each value in the part of the document it is about.
"""
MAX_TRIED = 100_000
"""
Values times the alternatives for each; pydantic tries all of them, at 0.3 microseconds each.
"""
MAX_UNKNOWN = 10
"""Maximum number of unknown members that are reported."""

ValidateJson = Callable[[bytes], Any]


class FunctionArguments(msgspec.Struct, frozen=True):
    """The arguments of a function besides its context: their schema and the check for it."""

    schema: Mapping[str, Any]
    check: ValidateJson
    reads_texts: bool
    """Whether the check may parse the content of a text, such as JSON."""


def arguments_of(function: Callable[..., Any]) -> FunctionArguments:
    """
    Read the parameters after the first (the context) of a tool function.

    Types are strict as in JSON: a string is never read as a number. Descriptions come from
    ``Annotated[str, Field(description=…)]`` or ``Annotated[str, "…"]``. Raises TypeError if the
    first parameter is not the context, or another has no annotation or cannot be passed by name.
    """
    adapter, parameters = _adapter(function)
    schema = schema_of(adapter)
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            _show_default(schema["properties"][parameter.name], parameter.default)
    check = _ArgumentCheck(adapter, schema, _listed_names(parameters))
    return FunctionArguments(schema, check.check, bool(check.own_bounds))


class _ArgumentCheck:
    """Validates arguments; long ones are bounded first, and left at the first error."""

    def __init__(self, adapter: TypeAdapter[Any], schema: Mapping[str, Any], names: str) -> None:
        self._core_schema, validator = core_schema.finite_only(adapter)
        self._validate = validator.validate_json
        self._validate_long: Any = None
        self._names = names
        self.own_bounds = core_schema.bounds_of(adapter.core_schema)
        self._reads_floats = core_schema.reads_floats(adapter.core_schema)
        self._bounds = Bounds(
            schema,
            branching_of(schema, discriminated=True),
            lambda: validator_of(structure_of(schema)),
            self._explain,
            most_errors=MAX_ERRORS,
            most_steps=MAX_TRIED,
            hidden=HiddenArguments(secret_arguments(schema)),
        )

    def check(self, arguments: bytes) -> dict[str, Any]:
        """Return the arguments as the function takes them; raises ToolFailure."""
        validate: Any = self._validate
        if len(arguments) > self._bounds.harmless_bytes:
            self._bounds.passes(arguments)
            validate = self._until_first_error
        if self.own_bounds and values_bound(arguments, within_texts=True) > core_schema.FEW_VALUES:
            document = decoded(arguments)
            for bound in self.own_bounds:
                bound(document)
        try:
            checked: dict[str, Any] = validate(arguments, strict=True)
        except ValidationError as error:
            hidden = self._bounds.hidden(arguments)
            failure = failure_of(error, self._names, hidden)
            if error.error_count() > MAX_LISTED:
                failure = self._bounds.of_beginning(decoded(arguments), 1, hidden) or failure
        else:
            if self._reads_floats and may_overflow(arguments):
                core_schema.refuse_infinity(self._core_schema, decoded(arguments))
            return checked
        return _raised(failure)

    @property
    def _until_first_error(self) -> Any:
        # Created at first use, because most tools never need it. The validators inside a prebuilt
        # one would continue after their first error.
        if self._validate_long is None:
            self._validate_long = core_schema.failing_fast(self._core_schema).validate_json
        return self._validate_long

    def _explain(self, value: Any, hidden: HiddenArguments) -> ToolFailure | None:
        try:
            self._validate(msgspec.json.encode(value), strict=True)
        except ValidationError as error:
            return None if is_caused_by_cut(error) else failure_of(error, self._names, hidden)
        return None


class Texts(msgspec.Struct, frozen=True):
    """The arguments of a function that gets only strings: their schema and the check for it."""

    schema: Mapping[str, Any]
    check: Callable[[Mapping[str, str]], dict[str, Any]]


def texts_of(function: Callable[..., Any]) -> Texts:
    """
    Read the parameters after the first of a function whose arguments are sent as strings.

    Their types can be anything that one string can express: `int`, `Literal`, a date. Raises
    TypeError as `arguments_of` does, and for lists and objects.
    """
    adapter, parameters = _adapter(function)
    schema = schema_of(adapter)
    for name, described in schema["properties"].items():
        if not _is_one_text(described):
            raise TypeError(f"{function.__name__}: {name} is given one text; take it as `str`")
    if secret_arguments(schema):
        # Clients show and store the arguments of prompts and the URIs of resources.
        raise TypeError(f"{function.__name__}: only tools take secrets")
    validate: Any = core_schema.finite_only(adapter)[1].validate_strings  # typed for dictionaries
    names = _listed_names(parameters)
    declared = frozenset(schema["properties"])

    def check(values: Mapping[str, str]) -> dict[str, Any]:
        if len(values) > len(declared):
            # Otherwise every validation error would copy all of them.
            values = {name: values[name] for name in sorted(values.keys() & declared)} | dict(
                islice(
                    ((name, values[name]) for name in values if name not in declared), MAX_UNKNOWN
                )
            )
        try:
            checked: dict[str, Any] = validate(dict(values))
        except ValidationError as error:
            failure = failure_of(error, names, NOTHING_HIDDEN)
        else:
            return checked
        return _raised(failure)

    return Texts(schema, check)


def _raised(failure: ToolFailure) -> NoReturn:
    """
    Raise the failure, outside of what handled pydantic's error.

    That error would be its context, `from None` or not: values of the caller in logs, and a ring
    over pydantic's own memory, where no collector sees it. Each refused call would stay for good.
    """
    try:
        raise failure
    finally:
        del failure


def _is_one_text(schema: Mapping[str, Any]) -> bool:
    options = schema.get("anyOf")
    if options is not None:
        return all(_is_one_text(option) for option in options)
    return schema.get("type") not in ("array", "object")


def _listed_names(parameters: Iterable[inspect.Parameter]) -> str:
    return ", ".join(f"`{parameter.name}`" for parameter in parameters) or "none"


def _adapter(
    function: Callable[..., Any],
) -> tuple[TypeAdapter[dict[str, Any]], list[inspect.Parameter]]:
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or not _takes_context(parameters[0], hints.get(parameters[0].name)):
        # The function would silently get the context in place of an argument.
        expected = "its first parameter is the call's context: write `ctx: CallContext`"
        raise TypeError(f"{function.__name__}: {expected}")
    parameters = [p for p in parameters[1:] if dependency_of(hints.get(p.name)) is None]
    make: Any = TypedDict  # its fields have only just become known
    shape = make("Arguments", {p.name: _field(function, p, hints.get(p.name)) for p in parameters})
    shape.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    types = {f"parameter {p.name}": hints.get(p.name) for p in parameters}
    return adapter_of(shape, function, types), parameters


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
        return  # a default that JSON cannot express is not shown
