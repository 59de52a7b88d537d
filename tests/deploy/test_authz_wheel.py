"""gatepost-authz alone in an empty environment: its README's examples, pasted."""

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client

from tests.architecture.source import ROOT
from tests.deploy.test_wheel import clean, printed
from tests.support.issuers import Idp, TokenFactory, jwk, rsa_key
from tests.support.processes import Process, free_port

pytestmark = pytest.mark.slow

FOLDER = ROOT / "authz"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n+```python\n(.*?)^```$", README, re.M | re.DOTALL))
PROTOCOLS = {"Ten lines": "http", "FastMCP": "mcp", "The MCP Python SDK": "mcp", "FastAPI": "http"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel and the packages it requires."""
    folder = tmp_path_factory.mktemp("authz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, FOLDER]
    printed(*pip, *build, cwd=folder)
    (wheel,) = folder.glob("gatepost_authz-*.whl")
    home = folder / "environment"
    printed(
        Path(sys.executable).with_name("uv"), "venv", "--python", sys.executable, home, cwd=folder
    )
    install(home / "bin/python", wheel)
    return home / "bin/python"


def install(python: Path, *what: str | Path) -> None:
    """Install in the versions of our lock."""
    pins = re.findall(
        r"^[\w.-]+==[^\\\n]+", (ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), re.M
    )
    constraints = python.parent / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", python]
    printed(*uv, "--constraints", constraints, *what, cwd=python.parent)


@pytest.fixture(scope="module")
def frameworks(python: Path, names_it_needs: str) -> Path:
    """Return the same interpreter after the packages of the examples are installed."""
    install(python, "uvicorn", "fastmcp", "mcp", "fastapi")
    return python


@pytest.fixture(scope="module")
def names_it_needs(python: Path) -> str:
    """Return the modules that `import gatepost_authz` loads before more packages are installed."""
    code = "import gatepost_authz, sys; print(sorted({n.split('.')[0] for n in sys.modules}))"
    return printed(python, "-c", code, cwd=python.parent)


def test_gatepost_authz_imports_with_only_its_declared_dependencies(names_it_needs: str) -> None:
    """It imports no other package of Gatepost."""
    assert "'gatepost_authz'" in names_it_needs
    assert "'gatepost'" not in names_it_needs
    assert "'gatepost_keys'" not in names_it_needs


def test_both_distributions_have_one_version_and_licence() -> None:
    """They contain the same files."""
    assert (FOLDER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    projects = (ROOT / "pyproject.toml", FOLDER / "pyproject.toml")
    versions = {
        re.findall(r'^version = "(.+)"$', project.read_text(encoding="utf-8"), re.M)[0]
        for project in projects
    }

    assert len(versions) == 1


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with Idp() as idp:
        yield idp.issuer("main", [jwk(rsa_key())])


@contextmanager
def served(python: Path, example: str, issuer: str, folder: Path) -> Iterator[str]:
    """Save an example as app.py with an address and issuer of this machine; yield its resource."""
    host = f"127.0.0.1:{free_port()}"
    code = re.sub(r"https://(?:api|weather)\.example\.com", f"http://{host}", example)
    code = code.replace("weather.example.com", host).replace("https://id.example.com", issuer)
    code = code.replace("resource=", "development=True, resource=")
    (folder / "app.py").write_text(code, encoding="utf-8")
    command = [str(python), "-m", "uvicorn", "app:app", "--port", host.split(":")[1]]
    process = Process(command, env=clean(), cwd=folder)
    try:
        process.wait_for("Uvicorn running on", timeout_s=60)
        yield re.findall(r'resource="(.+?)"', code)[0]
        process.stop()
        assert "Traceback" not in process.output, process.output
    finally:
        process.kill()


def test_the_readme_contains_every_tested_example() -> None:
    """Other tests of this file run them."""
    assert {*EXAMPLES} == {*PROTOCOLS}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_example_accepts_a_good_token_and_refuses_bad_ones(
    name: str, frameworks: Path, issuer: str, tmp_path: Path
) -> None:
    """Missing tokens, another audience and another tenant are refused."""
    with served(frameworks, EXAMPLES[name], issuer, tmp_path) as resource:
        factory = TokenFactory(issuer, resource)
        claims = {"scope": "invoices:read", "org_id": "org_8Xa2"}
        bad = [
            factory.token(**claims, aud="https://other.example"),
            factory.token(**claims | {"org_id": "org_stranger"}),
        ]
        url = resource if PROTOCOLS[name] == "mcp" else f"{resource}/invoices"
        refused = [httpx2.post(url)]
        refused += [httpx2.post(url, headers={"Authorization": f"Bearer {token}"}) for token in bad]
        answer = good_call(url, factory.token(**claims), PROTOCOLS[name])

    assert [response.status_code for response in refused] == [401, 401, 401]
    assert all("resource_metadata=" in response.headers["www-authenticate"] for response in refused)
    assert "acme" in answer


def good_call(url: str, token: str, protocol: str) -> str:
    """Return the answer that the caller reads."""
    if protocol == "http":
        return httpx2.get(url, headers={"Authorization": f"Bearer {token}"}).text

    async def call() -> str:
        async with Client(url, auth=token) as client:
            return str((await client.call_tool("forecast", {"city": "Bern"})).content)

    return asyncio.run(call())


def test_a_call_without_the_scope_is_refused(frameworks: Path, issuer: str, tmp_path: Path) -> None:
    """The example with FastAPI answers 403."""
    with served(frameworks, EXAMPLES["FastAPI"], issuer, tmp_path) as resource:
        token = TokenFactory(issuer, resource).token(scope="other", org_id="org_8Xa2")
        answer = httpx2.get(f"{resource}/invoices", headers={"Authorization": f"Bearer {token}"})

    assert (answer.status_code, answer.json()) == (403, {"error": "insufficient_scope"})
