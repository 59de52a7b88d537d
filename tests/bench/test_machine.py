"""What a file of results says about where it comes from."""

import json
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.machine import this_machine, versions


def test_results_name_the_versions_of_what_was_measured() -> None:
    """Figures of two runs can only be compared if the libraries are known."""
    machine = json.loads(json.dumps(this_machine()))

    assert machine["sqlite"] == sqlite3.sqlite_version
    assert machine["versions"]["uvicorn"] == version("uvicorn")
    assert machine["versions"]["gatepost"] == version("gatepost")


def test_the_versions_of_the_peers_are_those_of_their_own_environment(tmp_path: Path) -> None:
    """The peers have an environment of their own, with other versions of the same libraries."""
    metadata = tmp_path / "PyJWT-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: PyJWT\nVersion: 1.0\n")

    assert versions([str(tmp_path)]) == {"pyjwt": "1.0"}


def test_profiles_are_kept_with_their_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missed target is explained by a profile, which others can look at later."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")

    assert bench.save_profiles(["warm: 40 µs", "fresh: 140 µs"]) == 0

    (path,) = (tmp_path / "results").glob("*-profile.txt")
    text = path.read_text(encoding="utf-8")
    assert "warm: 40 µs\n\nfresh: 140 µs" in text
    assert '"versions"' in text
    assert str(path) in capsys.readouterr().out
