"""Draws the dashboard's pages: templates that escape whatever goes into them."""

from collections.abc import Callable

import jinja2
import markupsafe

from gatepost.dashboard.visit import Answer, Visit, shown
from gatepost.dashboard.words import teach

TOKEN_FIELD = "csrf"  # noqa: S105 - the field's name
"""The form field that carries the session's token."""
TOKEN_HEADER = "x-csrf-token"  # noqa: S105 - the header's name
"""Where htmx sends it."""


class View:
    """
    Renders the templates beside this module.

    Every value is escaped (there is no way to ask for less than that: templates never say
    ``safe``, and a test holds them to it), an unknown one is an error. *asset* makes the path of a
    file that the package brings, named by its content.
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
        teach(self.environment)
        self._asset = asset

    def render(self, name: str, visit: Visit, **values: object) -> str:
        """
        The template *name* (``approvals.html``) for *visit*.

        It also sees ``visit``, ``path(…)`` (a path below the base), ``asset(…)`` (a file of the
        package) and ``token_field()`` (the hidden field that each form needs).
        """
        return self._draw(name, visit.base, visit=visit, csrf=visit.csrf, **values)

    def bare(self, name: str, base: str, *, csrf: str = "", **values: object) -> str:
        """
        The template *name* without the pages around it, for who is not signed in or sees none.

        *csrf* lets somebody who is signed in at least leave.
        """
        return self._draw(name, base, visit=None, csrf=csrf, **values)

    def page(self, name: str, visit: Visit, *, status: int = 200, **values: object) -> Answer:
        """The template *name*, as an answer."""
        return shown(self.render(name, visit, **values), status=status)

    def _draw(self, name: str, base: str, **values: object) -> str:
        def token_field() -> markupsafe.Markup:
            field = '<input type="hidden" name="{}" value="{}">'
            return markupsafe.Markup(field).format(TOKEN_FIELD, values["csrf"])  # noqa: S704

        return self.environment.get_template(name).render(
            base=base,
            path=lambda below="": base + below,
            asset=lambda file: self._asset(base, file),
            token_field=token_field,
            token_header=TOKEN_HEADER,
            **values,
        )
