"""Turn a function into a resource, or into the resources of a URI template."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from pydantic_core import to_json

from gatepost.documents.json_shape import decoded
from gatepost.tools.authoring.dependency import injected
from gatepost.tools.authoring.encoded_json import checked_blocks
from gatepost.tools.authoring.function import OfferOptions, awaited, common_members, description_of
from gatepost.tools.authoring.results import converting, labelled
from gatepost.tools.authoring.schema import texts_of
from gatepost.tools.authoring.suggestions import Function, OfferedFunction, P, R, completer
from gatepost.tools.context.content import (
    Audio,
    Contents,
    File,
    Image,
    ListedResource,
    Relevance,
    Role,
    check_mime_type,
)
from gatepost.tools.offers.offer import CallContext, Outcome, ToolFailure
from gatepost.tools.offers.offer_kinds import Lister, ResourceOffer, Template, inherited
from gatepost.tools.offers.uri_template import UriTemplate, is_uri

log = logging.getLogger(__name__)

_encode = msgspec.json.encode

CheckValues = Callable[[Mapping[str, str]], dict[str, Any]]
"""Returns the arguments of the function for the values of the variables; raises ToolFailure."""

ENTRIES_IN_A_ROW = 100
"""After this many entries, about two milliseconds, other tasks may run."""
MAX_ENTRIES = 10_000
"""Maximum number of resources of one template that are listed."""

NO_DOCUMENT = "There is no such resource."


class ResourceOptions(OfferOptions, total=False):
    """The options of a resource."""

    mime_type: str
    """The MIME type; default: plain text for strings, JSON for values, else bytes."""
    size: int
    """The size in bytes, if it is known beforehand."""
    audience: tuple[Role, ...]
    """The audience: `user`, `assistant`, or both."""
    priority: float
    """The importance, from 0 to 1."""
    last_modified: datetime
    """The time of the last change."""
    ttl_s: float
    """How many seconds a client may cache the content; default: none."""
    untrusted: str
    """The source of third-party text that the content may contain."""


class Read(msgspec.Struct, frozen=True):
    """The arguments of a read."""

    uri: str


class ResourceFunction(OfferedFunction[P, R]):
    """
    A function behind a resource, which can still be called.

    For a template, `list` adds a list of its resources and `complete` suggestions for a variable.
    """

    def __init__(
        self,
        function: Callable[P, R],
        offer: ResourceOffer | Template,
        keep: Callable[[Template], None],
    ) -> None:
        super().__init__(function)
        self._offer = offer
        self._keep = keep

    def list(self, function: Function) -> Function:
        """
        Make the decorated function list the resources of this template for a caller.

        It gets only the context. An entry that the template cannot name, or that its check
        refuses, is omitted, so that every listed resource can be read.
        """
        owner = self._template("list")
        self._put(lister=_lister(owner, texts_of(self._function).check, function))
        return function

    def complete(self, variable: str) -> Callable[[Function], Function]:
        """Make the decorated function suggest values of one variable, in the form of `Suggest`."""
        template = self._template("complete")
        names = template.template.names
        if variable not in names:
            raise ValueError(f"{template.key} has no variable {variable}")

        def register(function: Function) -> Function:
            self._suggestions[variable] = function
            self._put(completer=completer(template, names, dict(self._suggestions)))
            return function

        return register

    def _template(self, purpose: str) -> Template:
        if not isinstance(self._offer, Template):
            raise TypeError(f"{self._offer.key} has no variables, so there is nothing to {purpose}")
        return self._offer

    def _put(self, **changes: Any) -> None:
        self._offer = msgspec.structs.replace(self._template("keep"), **changes)
        self._keep(self._offer)


def document(
    function: Callable[..., Any], uri: str, name: str | None, pack: str, options: ResourceOptions
) -> ResourceOffer | Template:
    """
    Create a resource, or a template if the URI has variables.

    Raises TypeError or ValueError if the function cannot be one.
    """
    mime_type = options.get("mime_type")
    check_mime_type(mime_type)
    members = {
        **common_members("resource", name or function.__name__, pack, options),
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
    parameters = set(texts.schema["properties"])
    if parameters != set(template.names if template else ()):
        raise TypeError(f"{function.__name__}: its parameters and the variables of {uri} differ")

    def convert(value: Any, uri: str) -> Outcome:
        return Outcome(contents(value, uri, mime_type))

    work = converting(function, convert)

    async def read_it(ctx: CallContext, read: tuple[str, Mapping[str, Any]]) -> Outcome:
        return await work(ctx, read[1], read[0])

    invoke = labelled(read_it, options.get("untrusted"))
    if template is None:
        if not is_uri(uri):
            raise ValueError(f"{uri} is not a URI; it begins with a scheme, as in report://")
        size = options.get("size")
        return ResourceOffer(
            uri=uri, size=size, check=lambda _: (uri, {}), invoke=invoke, **members
        )
    if "size" in options:
        raise ValueError(f"{uri}: what a template names has no size of its own; its entries have")
    check = _checked(template, texts.check)
    offer = Template(template=template, check=check, invoke=invoke, **members)
    return msgspec.structs.replace(offer, completer=completer(offer, template.names, {}))


def contents(value: Any, uri: str, mime_type: str | None) -> tuple[Mapping[str, Any], ...]:
    """
    Convert the function's return value into contents; raises ToolFailure("not_found") for None.

    Strings, bytes, images, recordings, files and Contents are sent as they are, any other value as
    JSON.
    """
    if value is None:
        raise ToolFailure("not_found", NO_DOCUMENT)
    if isinstance(value, Image | Audio):
        value = Contents(value.data, value.mime_type)
    elif isinstance(value, File):
        value = Contents(value.body, value.mime_type)
    several = value if isinstance(value, list | tuple) and value else [value]
    if all(isinstance(item, Contents) for item in several):
        return checked_blocks(content.protocol_form(uri, mime_type) for content in several)
    if isinstance(value, str | bytes):
        return (Contents(value).protocol_form(uri, mime_type),)
    return (Contents(to_json(value).decode()).protocol_form(uri, mime_type or "application/json"),)


def _checked(
    template: UriTemplate, check: CheckValues
) -> Callable[[bytes], tuple[str, dict[str, Any]]]:
    def checked(arguments: bytes) -> tuple[str, dict[str, Any]]:
        uri = msgspec.json.decode(arguments, type=Read).uri
        values = template.match(uri)
        if values is None:
            raise ToolFailure("not_found", NO_DOCUMENT)
        return uri, check(values)

    return checked


def _lister(owner: Template, check: CheckValues, function: Callable[..., Any]) -> Lister:
    work = awaited(injected(function))

    async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
        blocks: list[Mapping[str, Any]] = []
        left_out = unencodable = 0
        entries = islice(await work(ctx), MAX_ENTRIES)
        while row := [*islice(entries, ENTRIES_IN_A_ROW)]:
            uris = [_readable_uri(owner, check, entry) for entry in row]
            forms = [
                _resource_form(owner, entry, uri)
                for entry, uri in zip(row, uris, strict=True)
                if uri is not None
            ]
            encodable = _encodable(forms)
            left_out += len(row) - len(forms)
            unencodable += len(forms) - len(encodable)
            blocks += encodable
            if len(row) == ENTRIES_IN_A_ROW:
                await asyncio.sleep(0)
        if left_out:
            log.debug("entries_left_out", extra={"template": owner.key, "count": left_out})
        if unencodable:
            log.warning(
                "list_incomplete",
                extra={
                    "request_id": ctx.request_id,
                    "offer": owner.key,
                    "reason": "unencodable",
                    "count": unencodable,
                },
            )
        return Outcome(tuple(blocks))

    return Lister(
        check=lambda _: None,
        invoke=invoke,
        **inherited(owner),
    )


def _readable_uri(owner: Template, check: CheckValues, entry: ListedResource) -> str | None:
    """Return the URI of an entry; None if it could not be read there."""
    try:
        uri = owner.template.expand(entry.variables)
        # A read takes these values from the URI, as `expand` has made sure.
        check({name: str(value) for name, value in entry.variables.items()})
    except (ValueError, ToolFailure):
        # One invalid file name must not make the whole list fail.
        return None
    return uri


def _encodable(forms: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries that have JSON, which nearly always are all, in Python's own types."""
    entries: list[Mapping[str, Any]]
    try:
        entries = decoded(_encode(forms))
    except (TypeError, ValueError, RecursionError):
        # Half a character in one description must not make the whole list fail.
        if len(forms) == 1:
            return []
        entries = [entry for form in forms for entry in _encodable([form])]
    return entries


def _resource_form(owner: Template, entry: ListedResource, uri: str) -> Mapping[str, Any]:
    """Return an entry in the newest revision's form of a Resource, to be encoded."""
    form: dict[str, Any] = {
        "uri": uri,
        "name": entry.name or ", ".join(map(str, entry.variables.values())),
    }
    if entry.title is not None:
        form["title"] = entry.title
    if entry.description is not None:
        form["description"] = entry.description
    if (mime_type := entry.mime_type or owner.mime_type) is not None:
        form["mimeType"] = mime_type
    if entry.size is not None:
        form["size"] = entry.size
    # Not converted here: an error must concern this entry alone, as in `_encodable`.
    if entry.icons:
        form["icons"] = entry.icons
    if entry.relevance not in (None, Relevance()):
        form["annotations"] = entry.relevance
    return form
