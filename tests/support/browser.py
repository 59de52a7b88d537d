"""A person with a browser: over plain HTTP, or in a real Chromium."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

MOST_STEPS = 12
NO = re.compile(r"deny|cancel|reject|refuse|abort|decline", re.IGNORECASE)


class PageForm:
    """One form of a page: where it goes, what it holds already, and what can be pressed."""

    def __init__(self, action: str, method: str) -> None:
        self.action = action
        self.method = method.upper()
        self.inputs: list[tuple[str, str, str]] = []
        """What is sent whatever is pressed, as kind, name and value."""
        self.buttons: list[tuple[str, str, str]] = []
        """What can be pressed to send it, as name, value and text."""

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Hidden fields, as name and value."""
        return [(name, value) for kind, name, value in self.inputs if kind == "hidden"]


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[PageForm] = []
        self._button: tuple[str, str] | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(PageForm(given.get("action", ""), given.get("method", "get")))
        elif tag == "input" and self.forms:
            self._input(given.get("type", "text"), given)
        elif tag == "button" and given.get("type", "submit") == "submit":
            self._button = (given.get("name", ""), given.get("value", ""))
            self._text = ""

    def _input(self, kind: str, given: dict[str, str]) -> None:
        name, value, form = given.get("name", ""), given.get("value", ""), self.forms[-1]
        if kind == "submit":
            form.buttons.append((name, value, value))
        elif kind not in {"button", "checkbox", "radio"} or "checked" in given:
            form.inputs.append((kind, name, value))

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "button" and self._button is not None and self.forms:
            self.forms[-1].buttons.append((*self._button, self._text.strip()))
            self._button = None


def forms_of(page: str) -> list[PageForm]:
    """Every form of an HTML page, in order."""
    parser = _Forms()
    parser.feed(page)
    return parser.forms


class BrowserUser:
    """Signs in as *name* and agrees to what is asked, and remembers every page seen."""

    def __init__(self, name: str = "alice") -> None:
        self.name = name
        self.asked: list[dict[str, str]] = []
        """The parameters of every authorization request."""
        self.pages: list[str] = []

    def follow(self, authorize: str) -> str:
        """Open an authorization URL; answers the URL that the client was sent back to."""
        parameters = dict(parse_qsl(urlsplit(authorize).query, keep_blank_values=True))
        self.asked.append(parameters)
        home = parameters["redirect_uri"]
        with httpx2.Client(timeout=10) as client:
            answer = client.get(authorize, headers={"Accept": "text/html"})
            for _ in range(MOST_STEPS):
                where = answer.headers.get("location")
                if where is not None:
                    url = urljoin(str(answer.url), where)
                    if url.startswith(home):
                        return url
                    answer = client.get(url, headers={"Accept": "text/html"})
                    continue
                answer = self._submit(client, answer)
        raise AssertionError(f"{MOST_STEPS} steps did not lead back to {home}")

    def _submit(self, client: httpx2.Client, answer: httpx2.Response) -> httpx2.Response:
        page = answer.text
        assert answer.status_code == 200, f"{answer.status_code} from {answer.url}: {page[:2000]}"
        self.pages.append(page)
        forms = forms_of(page)
        assert forms, f"nothing to press on {answer.url}: {page[:2000]}"
        form = forms[0]
        target = urljoin(str(answer.url), form.action or str(answer.url))
        data = self._filled_in(form)
        # A browser names where a form comes from; issuers check it against forged requests.
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(str(answer.url)))
        if form.method == "GET":
            return client.get(target, params=data)
        return client.post(target, data=dict(data), headers={"Origin": origin})

    def _filled_in(self, form: PageForm) -> list[tuple[str, str]]:
        """What the form holds, and one button: the one that names this person, else a yes."""
        yes = [
            (name, value)
            for name, value, text in form.buttons
            if name and not NO.search(f"{value} {text}")
        ]
        mine = [button for button in yes if button[1] == self.name]
        return [*form.fields, *(mine or yes)[:1]]


CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
PLAYWRIGHT_WITHOUT = """
AvoidUnnecessaryBeforeUnloadCheckSync DestroyProfileOnBrowserClose HttpsUpgrades
HttpsFirstBalancedModeAutoEnable LensOverlay MediaRouter PaintHolding ThirdPartyStoragePartitioning
AvoidCorsURLLoaderRestartOnRedirect OptimizationHints NetworkTimeServiceQuerying AimEnabled
PreconnectToSearch
"""
"""What Playwright switches off; named again, since the last list on a command line is the one."""
UNSEEN = "WebUIOmniboxPopup WebUIOmniboxAimPopup SpareRendererForSitePerProcess"
"""Pages behind the address bar of each window, and processes in reserve: nearly half of the CPU."""
WITHOUT = ",".join(f"{PLAYWRIGHT_WITHOUT} {UNSEEN}".split())
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ARGUMENTS += [f"--disable-features={WITHOUT}"]
WITHIN_MS = 20_000
"""How long a page may take to show what is expected of it, on a machine that is busy."""

in_a_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}"),
]
"""The marks of a test that needs one."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """
    The browser, until the block ends.

    A click returns before the page that it leads to is there, and whatever looks at the page at
    once (`evaluate`, `inner_text`, `is_visible`) may see the old one, the new one or none: say
    with `expect` what of the new page must be there first.
    """
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
