"""docs/clients.md: its examples run as they stand, and it names the releases that are tested."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.clients.conftest import GatedEndpoint
from tests.support.processes import python_environment
from tests.support.programs import FOLDER, INSPECTOR, NODE, environment, install

PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```(python|js|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NPX = "npx -y -p @modelcontextprotocol/inspector@2.12.0 mcp-inspector"


def command(language: str, example: str) -> list[str]:
    """Return the command that runs an example of the page with the installed programs."""
    if language == "python":
        return [sys.executable, "-c", example]
    if language == "js":
        return [str(NODE), "--input-type=module", "-e", example]
    assert NPX in example
    return ["sh", "-c", example.replace(NPX, f'"{NODE}" "{INSPECTOR}"')]


@pytest.mark.parametrize(
    ("language", "example"), EXAMPLES, ids=[f"{n}-{each[0]}" for n, each in enumerate(EXAMPLES)]
)
def test_every_example_of_the_page_prints_the_caller(
    gated_endpoint: GatedEndpoint, tmp_path: Path, language: str, example: str
) -> None:
    """It runs as pasted, with a token in the environment."""
    install()
    done = subprocess.run(
        command(language, example.replace("http://127.0.0.1:8000/mcp", gated_endpoint.url)),
        env={
            **python_environment(environment()),
            "TOKEN": gated_endpoint.token,
            "HOME": str(tmp_path),
            "MCP_INSPECTOR_SECRET_STORE": "memory",
        },
        # Where Node looks for the packages.
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "acme" in done.stdout


INSPECTOR_BUILDS = (FOLDER / INSPECTOR).parents[2]
CALLBACKS = {f"http://{host}:6274/oauth/callback" for host in ("127.0.0.1", "localhost")}


def test_the_labels_and_urls_of_the_inspector_steps_exist() -> None:
    """The tested release of the Inspector contains each label and the callback path."""
    install()
    steps = PAGE.partition("### The Inspector\n")[2].partition("\n### ")[0]
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in INSPECTOR_BUILDS.glob("web/dist/assets/index-*.js")
    )
    printed = (INSPECTOR_BUILDS / "web/build/index.js").read_text(encoding="utf-8")
    labels = set(re.findall(r"(?<!\w)\*([^*]+)\*(?!\w)", steps))

    assert {"Add Servers", "streamable-http", "Client ID"} <= labels
    assert {
        label for label in labels if f"`{label}`" not in source and f'"{label}"' not in source
    } == set()
    assert "window.location.origin" in source
    assert "`/oauth/callback`" in source
    assert "6274" in printed
    assert set(re.findall(r"http://[\w.]+:6274/oauth/callback", steps)) == CALLBACKS


@pytest.mark.parametrize(
    "page", ["docs/clients.md", "docs/providers.md", "docs/troubleshooting.md"]
)
def test_every_page_names_both_redirect_addresses_of_the_inspector(page: str) -> None:
    """The Inspector sends the address of its page, and a provider compares it exactly."""
    text = (ROOT / page).read_text(encoding="utf-8")

    assert set(re.findall(r"http://[\w.]+:6274/oauth/callback", text)) == CALLBACKS
    assert "Quick OAuth" not in text


def test_the_table_names_the_installed_client_releases() -> None:
    """A new release requires a new look at the table."""
    lock = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    npm = "node_modules/@modelcontextprotocol/"
    tested = {
        **{name: version(name) for name in ("mcp", "fastmcp")},
        **{name: lock[npm + name]["version"] for name in ("sdk", "client", "inspector")},
    }
    header = next(line for line in PAGE.splitlines() if line.startswith("| |"))
    named = set(re.findall(r"(\w+) (\d+\.\d+) (?:session|modern)", header))

    assert named == {(name, ".".join(full.split(".")[:2])) for name, full in tested.items()}
