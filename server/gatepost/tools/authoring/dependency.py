"""Provide values that a function gets beside its arguments, and that no caller sees or sends."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from gatepost.tools.authoring.function import awaited
from gatepost.tools.authoring.lifespan import Lifespan


class Depends:
    """
    Marks a parameter whose value *provider* makes for each call.

    Write `db: Annotated[Database, Depends(database)]`. The provider is a function of the context
    (or of nothing), plain or `async`; an async generator, whose rest runs after the call; or a
    pack's `@pack.lifespan`. Within one call it runs once, however many parameters name it. Raises
    TypeError if it is none of these.
    """

    def __init__(self, provider: Any) -> None:
        if not isinstance(provider, Lifespan):
            if not callable(provider) or inspect.isgeneratorfunction(provider):
                raise TypeError(f"Depends({provider!r}): write a function or an async generator")
            required = [
                parameter.name
                for parameter in inspect.signature(provider).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            ]
            if len(required) > 1:
                name = getattr(provider, "__name__", provider)
                raise TypeError(f"Depends({name}): it can take the context, and nothing else")
            self.takes_context = bool(inspect.signature(provider).parameters)
        self.provider = provider


def dependency_of(hint: Any) -> Depends | None:
    """Return the Depends in an annotation, if there is one."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Depends)), None)


def injected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, or a coroutine function that adds its dependencies, if it has some."""
    hints = get_type_hints(function, include_extras=True)
    dependencies = {
        name: dependency
        for name, hint in hints.items()
        if (dependency := dependency_of(hint)) is not None
    }
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(parameter.default, Depends):
            raise TypeError(
                f"{function.__name__}: write {name}: Annotated[…, Depends(…)], not a default"
            )
    return _injecting(function, dependencies) if dependencies else function


def _injecting(
    function: Callable[..., Any], dependencies: Mapping[str, Depends]
) -> Callable[..., Any]:
    work: Callable[..., Awaitable[Any]] = awaited(function)

    @wraps(function)
    async def call(ctx: Any, /, **arguments: Any) -> Any:
        async with AsyncExitStack() as closing:
            results: dict[Any, Any] = {}
            for name, dependency in dependencies.items():
                if dependency.provider not in results:
                    results[dependency.provider] = await _provided(dependency, ctx, closing)
                arguments[name] = results[dependency.provider]
            return await work(ctx, **arguments)

    return call


async def _provided(dependency: Depends, ctx: Any, closing: AsyncExitStack) -> Any:
    provider = dependency.provider
    if isinstance(provider, Lifespan):
        value = provider.enter()
        closing.callback(provider.leave)
        return value
    arguments = (ctx,) if dependency.takes_context else ()
    if inspect.isasyncgenfunction(provider):
        make: Callable[..., AsyncIterator[Any]] = provider
        return await closing.enter_async_context(asynccontextmanager(make)(*arguments))
    return await awaited(provider)(*arguments)
