"""The dashboard of `gatepost dev`, and of an installed package."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx2
import pytest

from gatepost.dashboard.assets import Assets
from tests.architecture.source import ROOT
from tests.support.commands import dev, run
from tests.support.programs import BrowserUser


@pytest.mark.slow
def test_the_development_server_has_a_dashboard_for_two_approvers(tmp_path: Path) -> None:
    """The welcome text names it; alice and dave may decide, and bob sees his own tenant."""
    with dev(tmp_path) as gatepost:
        assert f"{gatepost.origin}/dashboard" in gatepost.output
        for name, tenant, status in (
            ("alice", "acme", 200),
            ("dave", "acme", 200),
            ("bob", "globex", 403),
        ):
            with httpx2.Client(base_url=gatepost.origin, timeout=10) as http:
                page = http.get("/dashboard/sign-in").text
                match = re.search(r'href="(/dashboard/sign-in/start[^"]+)"', page)
                assert match is not None
                response = http.get(match[1].replace("&amp;", "&"))
                back = BrowserUser(name).follow(response.headers["location"])
                assert http.get(back).status_code == 303
                home = http.get("/dashboard")
                assert (home.status_code, tenant in home.text) == (status, True)
                operations = http.get("/dashboard/operations")
                assert operations.status_code == (200 if name == "alice" else 403)
                # This very process has reported; the other tests write the reports themselves.
                assert ('data-label="Health"' in operations.text) is (name == "alice")

        checked = run("check", "--config", str(tmp_path / "state" / "dev.toml"), cwd=tmp_path)
        assert checked.process.wait(30) == 0, checked.output
        checked.kill()


def test_the_wheel_contains_the_files_of_the_dashboard(tmp_path: Path) -> None:
    """Templates, styles, scripts and their licences are included."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "server/gatepost/dashboard"
    files = [path for kind in ("static", "templates") for path in (folder / kind).iterdir()]

    assert {f"gatepost/dashboard/{file.parent.name}/{file.name}" for file in files} <= names
    assert {"htmx.js", "sse.js", "frame.css", "pages.css"} <= set(Assets().files)
