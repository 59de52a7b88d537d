"""Tool files, settings, key rings and command lines that are malformed."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gatepost import CallContext
from gatepost.check.pack_loading import Toolbox, load
from gatepost.check.problems import problems
from gatepost.cli import doctor
from gatepost.config.settings import Config, Listen, ToolsSettings
from gatepost.dev.composition import (
    IssuerOptions,
    dev_config,
    dev_issuer,
    forget_state,
    write_state,
)
from gatepost.secrets.keyring import KeyRingError, rotate
from gatepost.tools.authoring.pack import Pack


@pytest.mark.parametrize("scopes", ["files", {"a b"}, {'a"'}, {"a\r\nX: y"}, {""}])
def test_a_tool_with_an_invalid_scope_is_refused_at_registration(scopes: Any) -> None:
    """Otherwise the first caller who lacks the scope gets a 500."""
    pack = Pack("odd")

    with pytest.raises((TypeError, ValueError)):

        @pack.tool(scopes=scopes)
        async def odd(ctx: CallContext) -> None:
            """Do nothing; this tool is never registered."""


@pytest.mark.parametrize(
    "source", ["import sys\nsys.exit(3)\n", "class Odd(Exception): ...\nraise Odd('no')\n"]
)
def test_a_tool_file_that_exits_or_raises_is_reported_as_a_problem(
    tmp_path: Path, source: str
) -> None:
    """After `sys.exit()` in a tool file, the command used to end without a message."""
    file = tmp_path / "tools.py"
    file.write_text(source)

    problems = load(ToolsSettings(load=(str(file),))).problems

    assert [(problem.id, problem.setting) for problem in problems] == [
        ("config.E011", "tools.load[0]")
    ]


def test_an_allowed_origin_that_is_no_url_is_reported_as_a_problem() -> None:
    """`gatepost check` reports an invalid value of any setting without a traceback."""
    listen = Listen(allowed_origins=("https://[",))
    config = Config(resource="https://mcp.example.com/mcp", listen=listen)

    reported_problems = problems(config, Toolbox((), ()))

    assert "listen.allowed_origins[0]" in [problem.setting for problem in reported_problems]


def test_the_doctor_refuses_a_token_that_does_not_fit_a_header() -> None:
    """A pasted typographic character ends in exit code 2 and not in a traceback."""
    arguments = ["http://127.0.0.1:1/mcp", "--token", "\u00fc"]

    result = CliRunner().invoke(doctor.command, arguments)

    assert result.exit_code == 2
    assert "--token" in result.output


def test_a_damaged_key_ring_is_not_rotated(tmp_path: Path) -> None:
    """Otherwise the command succeeds, and the next start of the server refuses the ring."""
    ring = tmp_path / "keyring.json"
    ring.write_text('{"keys":[{"id":"a","secret":"zzzz","created":1}]}')
    ring.chmod(0o600)

    with pytest.raises(KeyRingError, match="damaged"):
        rotate(ring, keep=3)


def test_a_development_server_deletes_only_its_own_state_file(tmp_path: Path) -> None:
    """Two servers may use one state directory; the first one to end keeps the other's file."""
    config = dev_config(8000, tools=(), state=tmp_path)
    first, second = (dev_issuer(config, frozenset(), IssuerOptions()) for _ in range(2))
    path = write_state(tmp_path, config, first)
    write_state(tmp_path, config, second)

    forget_state(path, first)
    exists = path.exists()
    forget_state(path, second)

    assert (exists, path.exists()) == (True, False)
