"""The credential of an API: a reference to a secret, or an encrypted literal."""

import re
import secrets
from collections.abc import Mapping

import msgspec

from gatepost import REFERENCE_PREFIX, CallContext, ToolFailure
from gatepost_authz import origin_of
from gatepost_packs.openapi.settings import HEADER, OpenapiSettings

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,30}) +(\S.*)", re.ASCII)
VALUE = re.compile(r"[\x20-\x7e]{1,8000}", re.ASCII)
RESERVED_HEADERS = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding"}
)
FIELD = "auth_header"
MIN_CHARACTERS = 8


class CallCredential(msgspec.Struct, frozen=True, kw_only=True):
    """
    The credential of a call, without the secret itself.

    The scheme is stored separately, so that redaction removes the token with and without it.
    """

    header: str = "Authorization"
    scheme: str = ""
    reference: str = ""
    """`secret:NAME`, which the tenant's operator set."""
    fixed: bool = False
    """Whether the operator's configuration determines the API's address."""
    sealed: str = ""
    """The name under which a literal is stored encrypted."""


async def stored_credential(
    ctx: CallContext, header: str, text: str | None, home: str
) -> CallCredential:
    """
    Return the credential without its value; a literal is encrypted and stored durably.

    ToolFailure if the secret does not exist, may not go to *home*, the API's address, or is a
    literal that the settings forbid.
    """
    if not HEADER.fullmatch(header) or header.lower() in RESERVED_HEADERS:
        message = f"{header[:100]!r} is not a header that can carry a credential."
        raise ToolFailure("validation", message, field="auth_header_name")
    if text is None:
        return CallCredential(header=header)
    match = SCHEME.fullmatch(text)
    scheme, reference = match.groups() if match else ("", text)
    literals = ctx.settings(OpenapiSettings).literals
    value = _checked(await ctx.secret(reference, field=FIELD, literals=literals, to=home))
    if reference.startswith(REFERENCE_PREFIX):
        return CallCredential(header=header, scheme=scheme, reference=reference)
    if len(value) < MIN_CHARACTERS:
        # Redaction removes it from every answer to the tenant: `true` would spoil them all.
        message = (
            f"`{FIELD}` has {len(value)} characters besides its scheme; a credential has at "
            f"least {MIN_CHARACTERS}."
        )
        raise ToolFailure("validation", message, field=FIELD)
    name = f"{FIELD}_{secrets.token_hex(16)}"
    await ctx.sealed.put(name, value)
    return CallCredential(header=header, scheme=scheme, sealed=name)


async def forget(ctx: CallContext, credential: CallCredential) -> None:
    """Remove the stored value of an API that is gone."""
    if credential.sealed:
        await ctx.sealed.delete(credential.sealed)


async def headers(
    ctx: CallContext, credential: CallCredential, *, url: str, home: str
) -> Mapping[str, str]:
    """Return the header with the credential if *url* has the origin of the API's *home*."""
    # A description can send single operations elsewhere: its author must not get the credential
    # there.
    if origin_of(url) != origin_of(home):
        return {}
    if credential.sealed:
        value = await ctx.sealed.get(credential.sealed)
        if value is None:
            message = "This API's credential no longer exists. Load the API again with auth_header."
            raise ToolFailure("not_found", message, field="name")
    elif credential.reference:
        # Checked at each call: the secret's binding may have changed since the API was loaded.
        value = await ctx.secret(credential.reference, field=FIELD, to=url, fixed=credential.fixed)
    else:
        return {}
    return {credential.header.lower(): _checked(f"{credential.scheme} {value}".strip())}


def _checked(value: str) -> str:
    if not VALUE.fullmatch(value):
        # The value is not shown.
        message = (
            f"`{FIELD}` holds line breaks or non-ASCII characters, which a header cannot hold."
        )
        raise ToolFailure("validation", message, field=FIELD)
    return value
