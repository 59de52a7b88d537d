"""Icons and annotations of offers, and the content that resources and prompts return."""

import base64
import mimetypes
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

import msgspec

Role = Literal["user", "assistant"]

MIME_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+(?:;.*)?", re.ASCII | re.IGNORECASE)
ICON_SOURCES = ("https://", "data:image/")


class Icon(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """
    A picture that clients show beside a name (schema Icon).

    ``src`` is an `https:` or `data:image/…` URI, because clients load nothing else. Write
    ``sizes`` as `48x48`, or `any` for a vector image. Raises ValueError if a member is invalid.
    """

    src: str
    mime_type: str | None = None
    sizes: tuple[str, ...] = ()
    theme: Literal["light", "dark"] | None = None

    def __post_init__(self) -> None:
        if not self.src.startswith(ICON_SOURCES):
            raise ValueError(f"an icon is an https: or data:image/ URI, not {self.src[:40]!r}")
        check_mime_type(self.mime_type)


class Relevance(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """
    The audience, priority and date of a resource (schema Annotations).

    ``priority`` is between 0 and 1; ``last_modified`` must have a time zone.
    """

    audience: tuple[Role, ...] = ()
    priority: float | None = None
    last_modified: datetime | None = None

    def __post_init__(self) -> None:
        if self.audience and not set(self.audience) <= {"user", "assistant"}:
            raise ValueError("audience holds 'user', 'assistant' or both")
        if self.priority is not None and not 0 <= self.priority <= 1:
            raise ValueError("priority goes from 0 to 1")
        if self.last_modified is not None and self.last_modified.tzinfo is None:
            raise ValueError("last_modified needs a time zone")


class Contents(msgspec.Struct, frozen=True):
    """
    One part of a resource's content, or a resource in a message.

    Text is sent as text, bytes as base64. ``uri`` defaults to the URI that was read; in a message
    it is required.
    """

    body: str | bytes
    mime_type: str | None = None
    uri: str | None = None

    def __post_init__(self) -> None:
        check_mime_type(self.mime_type)

    def protocol_form(self, uri: str, mime_type: str | None) -> dict[str, Any]:
        """Return the protocol's form (schema TextResourceContents, BlobResourceContents)."""
        form: dict[str, Any] = {"uri": self.uri or uri}
        declared = self.mime_type or mime_type
        if isinstance(self.body, str):
            return {**form, "mimeType": declared or "text/plain", "text": self.body}
        form["mimeType"] = declared or "application/octet-stream"
        return {**form, "blob": base64.b64encode(self.body).decode("ascii")}


IMAGE_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
"""The first bytes of the images that models read."""


class Image(msgspec.Struct, frozen=True):
    """
    An image, in a tool's answer or in a message.

    ``mime_type`` defaults to what the first bytes say, and to `image/png` for unknown ones: models
    refuse a JPEG that is called a PNG.
    """

    data: bytes
    mime_type: str = ""

    def __post_init__(self) -> None:
        if not self.mime_type:
            mime_types = (
                kind for start, kind in IMAGE_STARTS.items() if self.data.startswith(start)
            )
            msgspec.structs.force_setattr(self, "mime_type", next(mime_types, "image/png"))
        check_mime_type(self.mime_type)


class Audio(msgspec.Struct, frozen=True):
    """An audio recording, in a tool's answer or in a message."""

    data: bytes
    mime_type: str = "audio/wav"

    def __post_init__(self) -> None:
        check_mime_type(self.mime_type)


class File(msgspec.Struct, frozen=True):
    """
    A file, in a tool's answer or in a message (schema EmbeddedResource).

    Clients offer it as ``name``, a file name without folders. Text is sent as text, bytes as
    base64. ``mime_type`` defaults to that of the name's extension. Raises ValueError if a member is
    invalid.
    """

    body: str | bytes
    name: str
    mime_type: str | None = None

    def __post_init__(self) -> None:
        if not self.name.strip(". ") or {*"/\\"} & {*self.name} or not self.name.isprintable():
            raise ValueError(f"{self.name!r} is not a file name without folders")
        if self.mime_type is None:
            msgspec.structs.force_setattr(self, "mime_type", mimetypes.guess_type(self.name)[0])
        check_mime_type(self.mime_type)

    @property
    def contents(self) -> Contents:
        """Return the file as an embedded resource, whose URI cannot be read."""
        return Contents(self.body, self.mime_type, f"attachment:{quote(self.name, safe='')}")


class Message(msgspec.Struct, frozen=True):
    """
    One message of a prompt.

    ``content`` is text, an Image, Audio, a File, Contents with its URI, or a content block in MCP's
    form.
    """

    role: Role
    content: str | Image | Audio | File | Contents | Mapping[str, Any]

    def protocol_form(self) -> dict[str, Any]:
        """Return the protocol's form; raises TypeError or ValueError for unsupported content."""
        if self.role not in ("user", "assistant"):
            raise ValueError(f"a message is the user's or the assistant's, not {self.role!r}")
        return {"role": self.role, "content": block_of(self.content)}


class ListedResource(msgspec.Struct, frozen=True, kw_only=True):
    """
    One resource of a template, as its lister returns it.

    ``variables`` are the values of the template's variables, so that a listed resource can be
    read. ``name`` defaults to these values. ``size`` is in bytes.
    """

    variables: Mapping[str, str]
    name: str | None = None
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: tuple[Icon, ...] = ()
    relevance: Relevance = Relevance()


def block_of(content: Any) -> Mapping[str, Any]:
    """Return a content block in MCP's form; raises TypeError or ValueError for other values."""
    if isinstance(content, str):
        return {"type": "text", "text": str.__str__(content)}
    if isinstance(content, Image | Audio):
        data = base64.b64encode(content.data).decode("ascii")
        kind = "image" if isinstance(content, Image) else "audio"
        return {"type": kind, "data": data, "mimeType": content.mime_type}
    if isinstance(content, File):
        content = content.contents
    if isinstance(content, Contents):
        if content.uri is None:
            raise ValueError("a resource in an answer or a message needs its URI")
        return {"type": "resource", "resource": content.protocol_form(content.uri, None)}
    if isinstance(content, Mapping) and isinstance(content.get("type"), str):
        return content
    raise TypeError(f"an answer or a message cannot hold {type(content).__name__}")


def check_mime_type(mime_type: str | None) -> None:
    """Raise ValueError if *mime_type* is neither None nor a MIME type (RFC 6838)."""
    if mime_type is not None and not MIME_TYPE.fullmatch(mime_type):
        raise ValueError(f"{mime_type!r} is not a MIME type")
