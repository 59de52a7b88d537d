"""Encodes parameters, forms and files for GitLab (its API documentation, "Encoding")."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from gatepost import ToolFailure, Upload
from gatepost_packs.gitlab.address import CREDENTIALS, credential

MOST_DEPTH = 4


class FormFile(TypedDict):
    """One file of a multipart form."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's own way

    name: NotRequired[Annotated[str, Field(description="Of the form's field; default `file`")]]
    filename: Annotated[str, Field(description="What the file is called", min_length=1)]
    data_base64: Annotated[str, Field(description="Its bytes, as base64")]
    content_type: NotRequired[Annotated[str, Field(description="Its media type")]]


def flattened(values: Mapping[str, Any] | None, field: str) -> dict[str, Any]:
    """
    Return values by GitLab's names: `labels[]=a`, `filter[state]=b`.

    ToolFailure for a value that this notation cannot express, and for a token, which has its own
    argument.
    """
    found: dict[str, Any] = {}
    for name, value in _leaves(values or {}, field):
        if field == "params" and name.lower() in CREDENTIALS:
            raise credential(name, field)
        found.setdefault(name, []).append(value)
    return {name: many if len(many) > 1 else many[0] for name, many in found.items()}


def uploads_of(files: Sequence[FormFile] | None) -> list[Upload]:
    """Return the files with their bytes; ToolFailure if one is not base64."""
    found: list[Upload] = []
    for at, file in enumerate(files or ()):
        try:
            # Many tools write base64 with line breaks.
            data = base64.b64decode("".join(file["data_base64"].split()), validate=True)
        except (binascii.Error, ValueError):
            field = f"files[{at}].data_base64"
            message = f"`{field}` is not base64 (RFC 4648, with `+`, `/` and `=`)."
            raise ToolFailure("validation", message, field=field) from None
        kind = file.get("content_type", "application/octet-stream")
        found.append(Upload(file.get("name", "file"), file["filename"], data, kind))
    return found


def _leaves(
    values: Mapping[str, Any], field: str, before: str = "", depth: int = 1
) -> Iterator[tuple[str, Any]]:
    if depth > MOST_DEPTH:
        raise ToolFailure("validation", f"`{field}` is nested too deeply for a form.", field=field)
    for name, value in values.items():
        key = f"{before}[{name}]" if before else name
        if isinstance(value, Mapping):
            yield from _leaves(value, field, key, depth + 1)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Mapping | list):
                    message = f"`{field}.{name}` holds lists within lists; send it as `json_body`."
                    raise ToolFailure("validation", message, field=f"{field}.{name}")
                yield key if key.endswith("[]") else f"{key}[]", _said(one)
        elif value is not None:
            yield key, value


def _said(value: Any) -> Any:
    return "" if value is None else value
