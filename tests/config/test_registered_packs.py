"""Packs that another installed distribution registers, by the examples of docs/tools.md."""

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.config.pack_registration import registrations
from gatepost.policy.script_reviews.script import Script
from tests.architecture.source import ROOT
from tests.support.commands import completed
from tests.support.connections import answered_text, stdio_process
from tests.support.processes import Process, python_environment

SECTION = (
    (ROOT / "docs/tools.md")
    .read_text(encoding="utf-8")
    .split("\n## Packs of a distribution\n")[1]
    .split("\n## ")[0]
)
REGISTRATION, SETTINGS = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
(ENTRY_POINTS,) = re.findall(r"^```toml\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)

TOOLS = '''
import sys

from acme_packs.settings import InvoiceSettings
from gatepost import CallContext, Pack

pack = Pack("invoices")


@pack.tool()
async def archive_secret(ctx: CallContext) -> str:
    """Say which secret the archive takes."""
    return ctx.settings(InvoiceSettings).token
'''
SCRIPTS = '''
from gatepost import FoundScripts, Script


class Recipes:
    """One script, which the configuration allows once there is a token."""

    def __init__(self, settings, workspace):
        self._settings = settings

    async def find(self, name):
        return Script(name, b"1", "server") if name == "invoices_close" else None

    async def all(self):
        return FoundScripts((await self.find("invoices_close"),), False)

    def allowed_by(self, script):
        return "packs.invoices.token" if self._settings.token else None
'''
CONFIG = """
resource = "http://127.0.0.1:8000/mcp"
mode = "development"
issuers = [{ issuer = "http://127.0.0.1:1/issuer", tenant = { value = "acme" } }]
stdio = { tenant = "acme", subject = "alice" }
storage.database = "sqlite:///gatepost.db"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs the distribution `acme-packs` with modules by name."""
    folder = tmp_path / "site"
    information = folder / "acme_packs-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "acme_packs").mkdir()
    monkeypatch.syspath_prepend(folder)  # type: ignore[no-untyped-call]

    def installed(**modules: str) -> None:
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-packs\n")
        points = re.sub(r'project.entry-points\."(.*)"', r"\1", ENTRY_POINTS).replace('"', "")
        (information / "entry_points.txt").write_text(points)
        for name, code in modules.items():
            (folder / "acme_packs" / f"{name}.py").write_text(textwrap.dedent(code))

    return installed


def command_output(
    folder: Path, *lines: str, command: tuple[str, ...] = ("check",)
) -> tuple[int, str]:
    """Exit code and all output of a command with the configuration and *lines*."""
    (folder / "gatepost.toml").write_text("\n".join([CONFIG, *lines]))
    code, out, err = completed(*command, cwd=folder)
    return code, out + err


def test_a_registered_pack_is_enabled_and_set_by_its_name(install: Install, tmp_path: Path) -> None:
    """Its tools are served, and its settings come as its own type."""
    install(__init__=REGISTRATION, settings=SETTINGS, tools=TOOLS)
    config = CONFIG + 'tools.packs = ["invoices"]\npacks.invoices.token = "secret:ARCHIVE"\n'
    with stdio_process(tmp_path, config) as talk:
        assert answered_text(talk.of(talk.call("archive_secret", identity=1))) == "secret:ARCHIVE"
        assert talk.hang_up() == 0


def test_settings_of_registered_packs_are_checked_like_built_in_ones(
    install: Install, tmp_path: Path
) -> None:
    """Unknown names get the nearest known name, and the pack may refuse values."""
    install(__init__=REGISTRATION, settings=SETTINGS)
    code, unknown = command_output(tmp_path, "packs.invoices.tokn = 1", "packs.invoice.token = 1")
    _, refused = command_output(tmp_path, 'packs.invoices.token = "abc"')

    assert code == 1
    assert "did you mean `packs.invoices.token`?" in unknown
    assert "did you mean `packs.invoices`?" in unknown
    assert "error config.E060 [packs.invoices.token]: this is no reference" in refused


def test_a_disabled_pack_is_not_imported(install: Install, tmp_path: Path) -> None:
    """For an enabled pack, the check names the extra that is missing."""
    broken = "raise ModuleNotFoundError('No module named fpdf', name='fpdf')"
    install(__init__=REGISTRATION, settings=SETTINGS, tools=broken)
    _, off = command_output(tmp_path, 'tools.packs = ["demo"]')
    _, on = command_output(tmp_path, 'tools.packs = ["demo", "invoices"]')

    assert "fpdf" not in off
    assert "config.E061" not in off
    assert "config.W004" in on
    assert "pip install 'acme-packs[pdf]'" in on


@pytest.mark.parametrize(
    ("registration", "why"),
    [
        (REGISTRATION.replace('"invoices"', '"demo"'), "already registered by gatepost"),
        (REGISTRATION.replace('"invoices"', '"In voices"'), "is not a name for a pack"),
        ("PACKS = {'invoices': 'acme_packs.tools'}", "must map names to PackRegistration"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("", "has no attribute 'PACKS'"),
        (REGISTRATION.replace("InvoiceSettings", "Iterator"), "is not a PackSettings"),
    ],
)
def test_an_invalid_pack_registration_is_reported_with_its_distribution(
    install: Install, monkeypatch: pytest.MonkeyPatch, registration: str, why: str
) -> None:
    """The built-in packs stay available."""
    install(__init__=registration, settings=SETTINGS)
    for module in ("acme_packs", "acme_packs.settings"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    registered = registrations.__wrapped__()
    (fault,) = registered.faults

    assert fault.distribution == "acme-packs"
    assert why in fault.message
    assert registered.packs == registrations().packs


def test_a_server_does_not_start_with_an_invalid_pack_registration(
    install: Install, tmp_path: Path
) -> None:
    """Otherwise a pack that an operator relies on would be missing without a message."""
    install(__init__="raise SystemExit")
    code, output = command_output(tmp_path, 'tools.packs = ["demo"]')

    assert code == 1
    assert re.search("error config.E061.*acme-packs.*SystemExit", output)


def test_the_development_server_enables_packs_registered_for_development(
    install: Install, tmp_path: Path
) -> None:
    """Other packs, also built-in ones, need a setting."""
    registration = REGISTRATION.replace("extra=", "in_development=True, extra=")
    install(__init__=registration, settings=SETTINGS)
    script = (
        "from pathlib import Path\n"
        "from gatepost.dev.composition import dev_config\n"
        "print(dev_config(8000, tools=(), state=Path()).tools.packs)\n"
    )
    command = [sys.executable, "-c", script]
    process = Process(command, env=python_environment(), cwd=tmp_path)
    try:
        process.process.wait(60)
        process.stop()
    finally:
        process.kill()

    assert process.stdout.strip() == "('demo', 'invoices')"


def test_scripts_of_a_registered_pack_are_listed_and_approved(
    install: Install, tmp_path: Path
) -> None:
    """`gatepost scripts` finds them through the registration."""
    registration = REGISTRATION.replace("extra=", 'scripts="acme_packs.scripts:Recipes", extra=')
    install(__init__=registration, settings=SETTINGS, scripts=SCRIPTS)
    command = ("scripts", "list", "--tenant", "acme")
    _, plain = command_output(tmp_path, command=command)
    _, allowed = command_output(tmp_path, 'packs.invoices.token = "secret:A"', command=command)
    digest = Script("invoices_close", b"1", "server").digest
    approve = ("scripts", "approve", "invoices_close", "--tenant", "acme", "--digest", digest)
    code, _ = command_output(tmp_path, command=approve)

    assert re.search(rf"invoices_close +not approved +{digest}", plain)
    assert re.search(rf"invoices_close +allowed +{digest} +packs.invoices.token", allowed)
    assert code == 0
