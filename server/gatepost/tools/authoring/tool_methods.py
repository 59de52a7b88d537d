"""Mark methods of a class as tools; `Pack.add_object` offers those of an object."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

TOOL_ATTRIBUTE = "__gatepost_tool__"


def tool_method(function: Function | None = None, /, **options: Any) -> Any:
    """
    Mark a method as a tool, with the options of `@pack.tool`.

    `self` comes before the context. The options are checked when an object is added to a pack.
    """

    def mark(method: Function) -> Function:
        setattr(method, TOOL_ATTRIBUTE, options)
        return method

    return mark if function is None else mark(function)


def marked_methods(value: object) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Yield the bound methods of an object that are marked, in the order of their definition."""
    examined: set[str] = set()
    for kind in reversed(type(value).__mro__):
        for name in vars(kind):
            # A subclass that overrides a method says by its own mark whether it is a tool.
            method = getattr(value, name, None) if name not in examined else None
            options = getattr(method, TOOL_ATTRIBUTE, None)
            if callable(method) and isinstance(options, dict):
                examined.add(name)
                yield method, options
