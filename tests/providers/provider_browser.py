"""A person with a scripted browser: cookies, forms, redirects, and the provider's private CA."""

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2

from tests.support.programs import BrowserUser

if TYPE_CHECKING:
    from tests.providers.provider import IdentityProvider

PASSWORD = "correct horse battery staple"
MOST_STEPS = 20
NAME = re.compile(r"login|user|name|account", re.IGNORECASE)
YES = re.compile(
    r"accept|allow|authori[sz]e|approve|continue|sign|log ?in|yes|confirm|logout", re.I
)
NO = re.compile(r"deny|cancel|reject|refuse|abort|decline|forgot|no\b", re.IGNORECASE)


class Control(NamedTuple):
    """One field or button of a form."""

    kind: str
    name: str
    value: str
    text: str = ""


class HtmlForm(NamedTuple):
    """One form of a page."""

    action: str
    method: str
    controls: list[Control]

    @property
    def fields(self) -> list[Control]:
        """What is sent whatever is pressed."""
        return [each for each in self.controls if each.kind not in {"submit", "button"}]

    @property
    def buttons(self) -> list[Control]:
        """What can be pressed to send it."""
        return [each for each in self.controls if each.kind == "submit"]


class _ProviderPage(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[HtmlForm] = []
        self._button: Control | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(
                HtmlForm(given.get("action", ""), given.get("method", "get").upper(), [])
            )
        elif tag == "input" and self.forms:
            self._input(given)
        elif tag == "button":
            kind, name = given.get("type", "submit"), given.get("name", "")
            self._button, self._text = Control(kind, name, given.get("value", "")), ""

    def _input(self, given: dict[str, str]) -> None:
        kind = given.get("type", "text")
        if kind in {"checkbox", "radio"} and "checked" not in given:
            return
        value, name = given.get("value", ""), given.get("name", "")
        self.forms[-1].controls.append(Control(kind, name, value, value))

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "button" and self._button is not None and self.forms:
            self.forms[-1].controls.append(self._button._replace(text=self._text.strip()))
            self._button = None


class ProviderBrowser(BrowserUser):
    """Signs in at *provider* as *name*, with one browser for all pages."""

    def __init__(self, provider: "IdentityProvider", name: str) -> None:
        super().__init__(name)
        self.provider = provider
        self.http = provider.http()
        self.passwords = 0
        """How often a password was asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.close()

    def follow(self, authorize: str) -> str:
        """Open an authorization URL; answers the URL that the client was sent back to."""
        parameters = dict(parse_qsl(urlsplit(authorize).query, keep_blank_values=True))
        self.asked.append(parameters)
        return self.walk(authorize, parameters["redirect_uri"])

    def walk(self, url: str, home: str) -> str:
        """Go on from *url*, filling in what is asked, until a redirect leads to *home*."""
        answer = self.get(url)
        for _ in range(MOST_STEPS):
            where = answer.headers.get("location")
            if str(answer.url).startswith(home):
                return str(answer.url)
            if where is None:
                assert answer.status_code == 200, f"{answer.status_code}: {answer.text[:2000]}"
                self.pages.append(answer.text)
                answer = self.provider.sign_in(self, answer)
                continue
            url = urljoin(str(answer.url), where)
            if url.startswith(home):
                return url
            answer = self.get(url)
        raise AssertionError(f"{MOST_STEPS} steps did not lead back to {home}: {answer.url}")

    def get(self, url: str) -> httpx2.Response:
        """Open a page."""
        return self.http.get(url, headers={"Accept": "text/html"})

    def fill_in(self, answer: httpx2.Response) -> httpx2.Response:
        """Fill in the first form that is posted, and press the button that agrees."""
        page = _ProviderPage()
        page.feed(answer.text)
        forms = [form for form in page.forms if form.method == "POST"]
        assert forms, f"nothing to press on {answer.url}: {answer.text[:3000]}"
        form = forms[0]
        data = {field.name: self._written(field) for field in form.fields if field.name}
        pressed = next(iter(self._agreeing(form)), None)
        if pressed is not None and pressed.name:
            data[pressed.name] = pressed.value
        target = urljoin(str(answer.url), form.action or str(answer.url))
        # A browser names where a form comes from; providers check it against forged requests.
        here = "{0.scheme}://{0.netloc}".format(urlsplit(str(answer.url)))
        headers = {"Origin": here, "Referer": str(answer.url), "Accept": "text/html"}
        return self.http.post(target, data=data, headers=headers)

    def _written(self, field: Control) -> str:
        if field.kind == "password":
            self.passwords += 1
            return PASSWORD
        if field.kind in {"text", "email"} and NAME.search(field.name):
            return self.name
        return field.value

    @staticmethod
    def _agreeing(form: HtmlForm) -> list[Control]:
        buttons = [each for each in form.buttons if not NO.search(f"{each.value} {each.text}")]
        named = [each for each in buttons if each.value == "accept"]
        return named or [each for each in buttons if YES.search(f"{each.value} {each.text}")]
