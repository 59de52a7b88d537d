"""Make pydantic's adapters of a tool's types, and name a type that has no JSON Schema."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

ADVICE = "use a built-in type, a TypedDict, a dataclass or a pydantic model"


def adapter_of(
    shape: Any, function: Callable[..., Any], types: Mapping[str, Any]
) -> TypeAdapter[Any]:
    """
    Return the adapter of *shape*, which consists of *types*, by their place in the function.

    Raises TypeError with the function, the place and the type if a type has no JSON Schema.
    Pydantic's own error names only the type, and advises a setting of a model.
    """
    try:
        return TypeAdapter(shape)
    except PydanticSchemaGenerationError:
        for place, kind in types.items():
            if not _has_schema(kind):
                raise TypeError(
                    f"{function.__name__}: {place} has the type {_type_text(kind, function)}, "
                    f"which has no JSON Schema: {ADVICE}"
                ) from None
        raise


def _has_schema(kind: Any) -> bool:
    try:
        TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        return False
    return True


def _type_text(kind: Any, function: Callable[..., Any]) -> str:
    bare_type = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return inspect.formatannotation(bare_type).replace(f"{function.__module__}.", "")
