"""Remove the tenant's secrets from catalogues, because a server may repeat what it was sent."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from gatepost.upstreams.assembly import FetchedLists
from gatepost.upstreams.catalogue import LeftOut
from gatepost.upstreams.definitions import FoundDefinition

RemoveSecrets = Callable[[str], str]
"""Returns a text without the secrets of one tenant."""
REASON = "it repeats a secret in a name"


def without_secrets(listed: FetchedLists, clean: RemoveSecrets) -> FetchedLists:
    """
    Return what a fetch brought without secrets; it takes time, so call it in a thread.

    Digests stay those of the server's own words. A definition with a secret in a name is left out.
    """
    definitions: list[FoundDefinition] = []
    left_out = list(listed.left_out)
    for definition in listed.definitions:
        text = "\n".join(_texts(definition.value))
        if clean(text) == text:
            definitions.append(definition)
        elif any(clean(name) != name for name in (definition.key, *_names(definition.value))):
            left_out.append(
                LeftOut(section=definition.section, key=clean(definition.key), reason=REASON)
            )
        else:
            definitions.append(
                msgspec.structs.replace(definition, value=_cleaned(definition.value, clean))
            )
    description = msgspec.structs.replace(
        listed.description, instructions=clean(listed.description.instructions)
    )
    cleaned_entries = [msgspec.structs.replace(entry, key=clean(entry.key)) for entry in left_out]
    return msgspec.structs.replace(
        listed,
        description=description,
        definitions=tuple(definitions),
        left_out=tuple(cleaned_entries),
        failure=clean(listed.failure),
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
    for inner in value.values() if isinstance(value, Mapping) else value:
        if isinstance(inner, Mapping | list | tuple):
            yield from _names(inner)


def _cleaned(value: Any, clean: RemoveSecrets) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {name: _cleaned(inner, clean) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner, clean) for inner in value]
    return value
