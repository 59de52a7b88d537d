"""Render the dashboard's templates, which escape every value."""

import time
from collections.abc import Callable, Container
from functools import partial
from typing import Any, TypeVar

import jinja2
import markupsafe

from gatepost.dashboard.labels import NAVIGATION, add_filters
from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.execution.cpu_thread import in_cpu_thread

T = TypeVar("T")

TOKEN_FIELD = "csrf"  # noqa: S105 - the field's name
"""The form field that carries the session's token."""
TOKEN_HEADER = "x-csrf-token"  # noqa: S105 - the header's name
"""The header in which htmx sends the token."""


class Templates:
    """
    Render the templates beside this module.

    Every value is escaped: templates never use ``safe``, which a test checks. An undefined value is
    an error. *asset* returns the content-addressed path of a static file.
    """

    def __init__(self, asset: Callable[[str, str], str]) -> None:
        self.environment = jinja2.Environment(
            loader=jinja2.PackageLoader("gatepost.dashboard"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        add_filters(self.environment)
        self._asset = asset

    def lead_to(self, paths: Container[str]) -> None:
        """Show only these pages in the navigation."""
        links = [link for link in NAVIGATION if link.path in paths]
        self.environment.globals["navigation"] = links

    def render(self, name: str, page_request: PageRequest, **values: object) -> str:
        """
        Return the template *name* (``approvals.html``) rendered for the page request.

        It also sees ``page_request``, ``now``, ``path(…)`` (a path below the base), ``asset(…)`` (a
        file of the package) and ``token_field()`` (the hidden field that each form needs).
        """
        return self._draw(
            name,
            page_request.base,
            page_request=page_request,
            csrf=page_request.csrf,
            now=time.time(),
            **values,
        )

    def bare(self, name: str, base: str, *, csrf: str = "", **values: object) -> str:
        """
        Return the template *name* without navigation, for users without a session or a role.

        With *csrf*, a signed-in user can sign out.
        """
        return self._draw(name, base, page_request=None, csrf=csrf, **values)

    async def page(
        self,
        name: str,
        page_request: PageRequest,
        *,
        tab: str,
        status: int = 200,
        **values: object,
    ) -> PageResponse:
        """
        Return the page of a template; *tab* is its path in the navigation.

        Raises TooManyWaiting if the user requests too many pages at once.
        """
        render = partial(self.render, name, page_request, tab=tab, **values)
        return PageResponse(status=status, html=await self.compute(page_request, render))

    async def part(self, name: str, page_request: PageRequest, **values: object) -> str:
        """Return a part of a page, for htmx."""
        render = partial(self.render, name, page_request, **values)
        # Not refused: each open page waits for one part at a time, and open pages are limited.
        return await in_cpu_thread(page_request.user, render, bounded=False)

    async def compute(
        self, page_request: PageRequest, function: Callable[..., T], *arguments: Any
    ) -> T:
        """
        Return what *function* computes for a page; raises TooManyWaiting as `page` does.

        A caller may have made the arguments that a page shows take long.
        """
        return await in_cpu_thread(page_request.user, function, *arguments)

    def _draw(self, name: str, base: str, **values: object) -> str:
        def token_field() -> markupsafe.Markup:
            field = '<input type="hidden" name="{}" value="{}">'
            return markupsafe.Markup(field).format(TOKEN_FIELD, values["csrf"])  # noqa: S704

        return self.environment.get_template(name).render(
            base=base,
            path=lambda subpath="": base + subpath,
            asset=lambda file: self._asset(base, file),
            token_field=token_field,
            token_header=TOKEN_HEADER,
            **values,
        )
