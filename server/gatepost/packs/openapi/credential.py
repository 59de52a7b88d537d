"""What calls of an API carry to prove who they are: a reference, or a literal under seal."""

import re
import secrets
from collections.abc import Mapping

import msgspec

from gatepost.packs.openapi.settings import HEADER, OpenapiSettings
from gatepost.tools.api import CallContext, ToolFailure
from gatepost_authz.addresses import origin_of

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,30}) +(\S.*)", re.ASCII)
VALUE = re.compile(r"[\x20-\x7e]{1,8000}", re.ASCII)
TAKEN = frozenset({"host", "content-length", "content-type", "connection", "transfer-encoding"})
FIELD = "auth_header"
LEAST_CHARACTERS = 8


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a call proves who it is, without the secret itself.

    The scheme stands apart: what is kept out of answers is then the token, with or without it.
    """

    header: str = "Authorization"
    scheme: str = ""
    reference: str = ""
    """`secret:NAME`, which the tenant's operator set."""
    fixed: bool = False
    """Whether the operator's configuration says where the API is."""
    sealed: str = ""
    """Or the name under which a literal is sealed."""


async def kept(ctx: CallContext, header: str, text: str | None, home: str) -> Credential:
    """
    What remains of this value in the clear; a literal is sealed, durably.

    ToolFailure when there is no such secret, when it may not go to *home*, where the API is, or
    when literals are not taken.
    """
    if not HEADER.fullmatch(header) or header.lower() in TAKEN:
        message = f"{header[:100]!r} is not a header that can carry a credential."
        raise ToolFailure("validation", message, field="auth_header_name")
    if text is None:
        return Credential(header=header)
    match = SCHEME.fullmatch(text)
    scheme, named = match.groups() if match else ("", text)
    literals = ctx.settings(OpenapiSettings).literals
    value = _checked(await ctx.secret(named, field=FIELD, literals=literals, to=home))
    if named.startswith("secret:"):
        return Credential(header=header, scheme=scheme, reference=named)
    if len(value) < LEAST_CHARACTERS:
        # It is taken out of every answer to the tenant: `true` would leave none as it is.
        message = (
            f"`{FIELD}` has {len(value)} characters besides its scheme; a credential has at "
            f"least {LEAST_CHARACTERS}."
        )
        raise ToolFailure("validation", message, field=FIELD)
    name = f"openapi_{secrets.token_hex(16)}"
    await ctx.sealed.put(name, value)
    return Credential(header=header, scheme=scheme, sealed=name)


async def forget(ctx: CallContext, credential: Credential) -> None:
    """Remove what is sealed for an API that is gone."""
    if credential.sealed:
        await ctx.sealed.delete(credential.sealed)


async def headers(
    ctx: CallContext, credential: Credential, *, url: str, home: str
) -> Mapping[str, str]:
    """The header that proves who calls, where *url* has the origin of the API's *home*."""
    # A description may send single operations elsewhere: whoever wrote it gets no credential there.
    if origin_of(url) != origin_of(home):
        return {}
    if credential.sealed:
        value = await ctx.sealed.get(credential.sealed)
        if value is None:
            message = "The credential of this API is gone. Load it again with auth_header."
            raise ToolFailure("not_found", message, field="name")
    elif credential.reference:
        # Judged at each call: what a secret is bound to may have changed since it was loaded.
        value = await ctx.secret(credential.reference, field=FIELD, to=url, fixed=credential.fixed)
    else:
        return {}
    return {credential.header.lower(): _checked(f"{credential.scheme} {value}".strip())}


def _checked(value: str) -> str:
    if not VALUE.fullmatch(value):
        # The value is not shown.
        message = f"`{FIELD}` holds what no header can hold: line breaks, or no ASCII."
        raise ToolFailure("validation", message, field=FIELD)
    return value
