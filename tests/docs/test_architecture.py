"""docs/architecture.md is the running server, drawn."""

import re

import msgspec

from gatepost.app import build_app
from gatepost.check.pack_loading import load
from gatepost.config.settings import Config, StorageSettings
from gatepost.dashboard.page_access import CheckedPage
from gatepost.dashboard.security_headers import SecurityHeaders
from gatepost.http.checks import HeadChecks
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost_authz.config import DashboardClient, Issuer
from gatepost_authz.middleware import BearerMiddleware
from tests.architecture.source import ROOT, SOURCE_ROOTS

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
CONFIG = Config(
    resource="http://127.0.0.1:8000/mcp",
    mode="development",
    storage=StorageSettings(database="memory:"),
)


def test_the_page_lists_the_checks_of_a_request_in_order() -> None:
    """The order is that of the running server."""
    running = re.findall(r"^ +\d\. (\w+):", HeadChecks.__doc__ or "", re.MULTILINE)

    assert re.findall(r"^\d\. (\w+)$", PAGE, re.MULTILINE) == running
    assert " · ".join(running) in PAGE


async def test_every_route_is_public_by_the_page_or_needs_a_token() -> None:
    """Unknown paths need a token too."""
    public = {"/", "/favicon.ico", "/openapi.json", "/mcp/.well-known/oauth-protected-resource"}
    public |= {f"/.well-known/oauth-protected-resource{path}" for path in ("", "/mcp")}
    async with opened(CONFIG, load(CONFIG.tools), KeyRing.ephemeral()) as services:
        edge = build_app(CONFIG, services)
        table = edge.app
        gated = {r.path: isinstance(r.app, BearerMiddleware) for r in table.routes}

        assert {path for path, behind in gated.items() if not behind} == public
        assert isinstance(table.default, BearerMiddleware)
        assert set(edge._probes) == {"/health", "/readyz"}


async def test_every_dashboard_route_has_security_headers_and_needs_a_session() -> None:
    """Only the routes of sign-in, sign-out and static files need no session."""
    public = {"/sign-in", "/sign-in/start", "/callback", "/signed-out", "/{rest:path}"}
    public |= {"/static/{digest}/{name}"}
    client = DashboardClient(client_id="gatepost", client_secret="file:/dev/null")
    issuer = Issuer(issuer="http://127.0.0.1:9000/dev-as", dashboard=client)
    config = msgspec.structs.replace(CONFIG, issuers=(issuer,))
    async with opened(config, load(config.tools), KeyRing.ephemeral()) as services:
        routes = {
            route.path.removeprefix("/dashboard"): route.app
            for route in build_app(config, services).app.routes
            if route.path.startswith("/dashboard")
        }

        assert all(isinstance(app, SecurityHeaders) for app in routes.values())
        assert {
            path for path, app in routes.items() if not isinstance(app.app, CheckedPage)
        } == public


def test_the_page_names_every_package_and_top_level_module() -> None:
    """A reader who looks for a module begins there."""
    words = set(re.findall(r"\w+", PAGE.split("```")[1]))
    folder = ROOT / "server/gatepost"
    packages = {path.parent.name for path in folder.glob("*/**/__init__.py")} - {"versions"}
    modules = {path.stem for path in folder.glob("*.py")}

    assert packages | modules <= words


def test_every_folder_of_tests_that_the_page_names_exists() -> None:
    """A reader who changes a package finds its tests there."""
    paragraph = PAGE.partition("The folders of `tests/`")[2].partition("\n")[0]
    named = set(re.findall(r"`([\w/]+)`", paragraph))
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"__pycache__"}
    packages = {path.stem for path in (ROOT / "server/gatepost").iterdir()} | {
        "authz",
        "keys",
        "packs",
    }

    assert [name for name in sorted(named) if not (ROOT / "tests" / name).is_dir()] == []
    assert folders - packages <= named


def test_every_module_that_a_decision_names_exists() -> None:
    """Decisions leave out the first folders of a path."""
    folders = (*SOURCE_ROOTS.values(), ROOT / "tests", ROOT / "bench")
    files = [file.as_posix() for folder in set(folders) for file in folder.rglob("*.py")]
    named = [
        (page.name, path)
        for page in (ROOT / "docs/decisions").glob("*.md")
        for path in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    ]

    assert named
    assert [
        reference
        for reference in named
        if not any(file.endswith(f"/{reference[1]}") for file in files)
    ] == []


def test_every_module_the_page_names_exists() -> None:
    """A removed file on the page would mislead readers."""
    named = re.findall(r"\bgatepost(?:_authz|_keys|_packs)?/[\w/]+\.py", PAGE)
    missing = [n for n in named if not (SOURCE_ROOTS[n.split("/")[0]] / n).is_file()]

    assert named
    assert missing == []
