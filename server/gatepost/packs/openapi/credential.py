"""What calls of an API carry to prove who they are: a reference, or a literal under seal."""

import re
from collections.abc import Mapping

from gatepost.openapi.address import origin_of
from gatepost.packs.openapi.settings import HEADER, OpenapiSettings
from gatepost.packs.openapi.shelf import Record
from gatepost.tools.api import CallContext, ToolFailure

REFERENCE = "secret:"
VALUE = re.compile(r"[\x20-\x7e]{1,8000}", re.ASCII)
TAKEN = frozenset({"host", "content-length", "content-type", "connection", "transfer-encoding"})


async def kept(ctx: CallContext, api: str, text: str | None) -> str:
    """
    What a Record says of this value: `secret:NAME` as it is, a literal's name once it is sealed.

    ToolFailure when there is no such secret, or when literals are not taken.
    """
    if text is None:
        return ""
    literals = ctx.settings(OpenapiSettings).literals
    value = await ctx.secret(text, field="auth_header", literals=literals)
    _checked(value)
    if text.startswith(REFERENCE):
        return text
    raise ToolFailure("denied", "literals are not kept yet", field="auth_header")


def checked_header(name: str) -> str:
    """*name*, if it may carry a credential; raises ToolFailure."""
    if not HEADER.fullmatch(name) or name.lower() in TAKEN:
        message = f"{name[:100]!r} is not a header that can carry a credential."
        raise ToolFailure("validation", message, field="auth_header_name")
    return name


async def headers(ctx: CallContext, record: Record, *, url: str, home: str) -> Mapping[str, str]:
    """The header that proves who calls, where *url* has the origin of the API's *home*."""
    # A description may send single operations elsewhere: whoever wrote it gets no credential there.
    if not record.auth or origin_of(url) != origin_of(home):
        return {}
    value = await ctx.secret(record.auth, field="auth_header")
    return {record.auth_header.lower(): _checked(value)}


def _checked(value: str) -> str:
    if not VALUE.fullmatch(value):
        # The value is not shown.
        message = "`auth_header` holds what no header can hold: line breaks, or no ASCII."
        raise ToolFailure("validation", message, field="auth_header")
    return value
