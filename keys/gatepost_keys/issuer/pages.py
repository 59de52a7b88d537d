"""
Render the issuer's pages: sign-in, consent, refusals, and a front page that describes the issuer.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.settings import MOUNT

STYLE_PATH = f"{MOUNT}/style.css"


def policy(form_target: str = "") -> str:
    """
    Return a policy that allows only the own style sheet, no scripts and no frames.

    Browsers apply `form-action` to the redirect that answers a form too, so the consent page
    names where its answer leads.
    """
    targets = f"'self' {form_target}".strip()
    return (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
        f"form-action {targets}; frame-ancestors 'none'"
    )


@cache
def templates() -> jinja2.Environment:
    """Return the templates beside this module, compiled once in a process."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gatepost_keys.issuer"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class Pages:
    """Renders the templates, which escape every value."""

    def render(
        self,
        name: str,
        values: Mapping[str, object],
        *,
        status: int = 200,
        form_target: str = "",
    ) -> Response:
        """Return the page *name* with *values*."""
        text = templates().get_template(f"{name}.html").render(mount=MOUNT, **values)
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy(form_target),
            # With no-referrer a browser would send `Origin: null` with our own forms.
            "Referrer-Policy": "same-origin",
            "X-Frame-Options": "DENY",
        }
        return HTMLResponse(text, status, headers)

    def refusal(self, title: str, sentence: str, *, status: int = 400, hint: str = "") -> Response:
        """Return a page for a person whose request cannot go on and may not be sent back."""
        values = {"title": title, "sentence": sentence, "hint": hint}
        return self.render("refusal", values, status=status)


def style() -> RouteHandler:
    """Return the one style sheet."""
    text = resources.files("gatepost_keys.issuer").joinpath("style.css").read_bytes()

    async def get(request: Request) -> Response:
        return Response(text, 200, {"Cache-Control": "max-age=60"}, "text/css")

    return get
