"""A function and a URI, or a template of URIs, made into resources."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec
import structlog
from pydantic_core import to_json

from gatepost.tools.api import CallContext, Outcome, ToolFailure
from gatepost.tools.completion import Suggest, completer
from gatepost.tools.content import Contents, Entry, Relevance, Role, check_mime_type
from gatepost.tools.function import Options, awaited, description_of, settled
from gatepost.tools.offer import Document, Lister, Template, inherited
from gatepost.tools.schema import texts_of
from gatepost.tools.template import UriTemplate, is_uri

log = structlog.get_logger("gatepost.documents")

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])

ENTRIES_IN_A_ROW = 100
"""After so many, two milliseconds' worth, others get their turn."""
MOST_ENTRIES = 10_000
"""As many resources of one template are listed; nobody reads further."""

NO_DOCUMENT = "There is no such resource."


class ResourceOptions(Options, total=False):
    """What a resource's author may say about it."""

    mime_type: str
    """What it holds; default: plain text for texts, JSON for values, else bytes."""
    size: int
    """How many bytes it has, where that is known beforehand."""
    audience: tuple[Role, ...]
    """Whom it is for: `user`, `assistant`, or both."""
    priority: float
    """How much it matters, from 0 to 1."""
    last_modified: datetime
    """When it was last changed."""
    ttl_s: float
    """Seconds that a client may keep what it read; default: none."""


class Read(msgspec.Struct, frozen=True):
    """The arguments of a read."""

    uri: str


class Resource(Generic[P, R]):
    """
    A function that is read as a resource; it can still be called.

    With it more is said about a template: which resources there are (`list`), and what could be
    filled in (`complete`).
    """

    def __init__(
        self,
        function: Callable[P, R],
        offer: Document | Template,
        keep: Callable[[Template], None],
    ) -> None:
        self._function = function
        self._offer = offer
        self._keep = keep
        self._suggestions: dict[str, Suggest] = {}
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self._function(*arguments, **named)

    def list(self, function: Function) -> Function:
        """
        The decorated function answers the entries of this template for a caller.

        It takes the context alone. What the template cannot name, or its own check refuses, is
        left out: everything that is listed can be read.
        """
        self._put(lister=_lister(self._template("list"), function))
        return function

    def complete(self, variable: str) -> Callable[[Function], Function]:
        """The decorated function suggests values of one variable; see `Suggest` for its form."""
        template = self._template("complete")
        names = template.template.names
        if variable not in names:
            raise ValueError(f"{template.key} has no variable {variable}")

        def register(function: Function) -> Function:
            self._suggestions[variable] = function
            self._put(completer=completer(template, names, dict(self._suggestions)))
            return function

        return register

    def _template(self, wanted: str) -> Template:
        if not isinstance(self._offer, Template):
            raise TypeError(f"{self._offer.key} has no variables, so there is nothing to {wanted}")
        return self._offer

    def _put(self, **more: Any) -> None:
        self._offer = msgspec.structs.replace(self._template("keep"), **more)
        self._keep(self._offer)


def document(
    function: Callable[..., Any], uri: str, name: str | None, pack: str, options: ResourceOptions
) -> Document | Template:
    """
    What the function offers: one resource, or a template if the URI has variables.

    TypeError or ValueError when it cannot.
    """
    mime_type = options.get("mime_type")
    check_mime_type(mime_type)
    made = {
        **settled("resource", name or function.__name__, pack, options),
        "description": description_of(function),
        "mime_type": mime_type,
        "ttl_s": options.get("ttl_s", 0),
        "relevance": Relevance(
            audience=tuple(options.get("audience", ())),
            priority=options.get("priority"),
            last_modified=options.get("last_modified"),
        ),
    }
    template, texts = UriTemplate(uri) if "{" in uri else None, texts_of(function)
    taken = set(texts.schema["properties"])
    if taken != set(template.names if template else ()):
        raise TypeError(f"{function.__name__}: its parameters and the variables of {uri} differ")
    work = awaited(function)

    async def invoke(ctx: CallContext, read: tuple[str, Mapping[str, Any]]) -> Outcome:
        return Outcome(contents(await work(ctx, **read[1]), read[0], mime_type))

    if template is None:
        if not is_uri(uri):
            raise ValueError(f"{uri} is not a URI; it begins with a scheme, as in report://")
        size = options.get("size")
        return Document(uri=uri, size=size, check=lambda _: (uri, {}), invoke=invoke, **made)
    if "size" in options:
        raise ValueError(f"{uri}: what a template names has no size of its own; its entries have")
    check = _checked(template, texts.check)
    offer = Template(template=template, check=check, invoke=invoke, **made)
    return msgspec.structs.replace(offer, completer=completer(offer, template.names, {}))


def contents(value: Any, uri: str, mime_type: str | None) -> tuple[Mapping[str, Any], ...]:
    """
    What a read answers, as blocks of contents; ToolFailure("not_found") for None.

    Text, bytes and Contents are taken as they are, anything else as JSON.
    """
    if value is None:
        raise ToolFailure("not_found", NO_DOCUMENT)
    several = value if isinstance(value, list | tuple) and value else [value]
    if all(isinstance(one, Contents) for one in several):
        return tuple(one.shown(uri, mime_type) for one in several)
    if isinstance(value, str | bytes):
        return (Contents(value).shown(uri, mime_type),)
    return (Contents(to_json(value).decode()).shown(uri, mime_type or "application/json"),)


def _checked(
    template: UriTemplate, check: Callable[[Mapping[str, str]], dict[str, Any]]
) -> Callable[[bytes], tuple[str, dict[str, Any]]]:
    def checked(arguments: bytes) -> tuple[str, dict[str, Any]]:
        uri = msgspec.json.decode(arguments, type=Read).uri
        values = template.match(uri)
        if values is None:
            raise ToolFailure("not_found", NO_DOCUMENT)
        return uri, check(values)

    return checked


def _lister(owner: Template, function: Callable[..., Any]) -> Lister:
    work = awaited(function)

    async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
        blocks: list[Mapping[str, Any]] = []
        left_out = 0
        for number, entry in enumerate(islice(await work(ctx), MOST_ENTRIES), 1):
            if (uri := _named(owner, entry)) is None:
                left_out += 1
            else:
                blocks.append(_shown(owner, entry, uri))
            if number % ENTRIES_IN_A_ROW == 0:
                await asyncio.sleep(0)
        if left_out:
            log.debug("entries_left_out", template=owner.key, count=left_out)
        return Outcome(tuple(blocks))

    return Lister(
        check=lambda _: None,
        invoke=invoke,
        **inherited(owner),
    )


def _named(owner: Template, entry: Entry) -> str | None:
    """The URI of an entry; None when it could not be read there."""
    try:
        uri = owner.template.expand(entry.variables)
        owner.check(msgspec.json.encode(Read(uri)))
    except (ValueError, ToolFailure):
        # One odd file name must not take the whole list away.
        return None
    return uri


def _shown(owner: Template, entry: Entry, uri: str) -> Mapping[str, Any]:
    """An entry as the newest revision writes a Resource."""
    shown = {
        "uri": uri,
        "name": entry.name or ", ".join(map(str, entry.variables.values())),
        "title": entry.title,
        "description": entry.description,
        "mimeType": entry.mime_type or owner.mime_type,
        "size": entry.size,
        "icons": msgspec.to_builtins(entry.icons) or None,
        "annotations": msgspec.to_builtins(entry.relevance) or None,
    }
    return {name: value for name, value in shown.items() if value is not None}
