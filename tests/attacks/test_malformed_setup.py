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
from gatepost.tools.pack import Pack


@pytest.mark.parametrize("scopes", ["files", {"a b"}, {'a"'}, {"a\r\nX: y"}, {""}])
def test_a_tool_cannot_ask_for_what_no_challenge_can_name(scopes: Any) -> None:
    """It would be found out by the first caller who lacks it, as a 500."""
    pack = Pack("odd")

    with pytest.raises((TypeError, ValueError)):

        @pack.tool(scopes=scopes)
        async def odd(ctx: CallContext) -> None:
            """Never registered."""


@pytest.mark.parametrize(
    "source", ["import sys\nsys.exit(3)\n", "class Odd(Exception): ...\nraise Odd('no')\n"]
)
def test_a_tool_file_that_fails_in_its_own_way_is_a_problem_and_no_traceback(
    tmp_path: Path, source: str
) -> None:
    """Also `sys.exit()`, after which the command used to end without a word."""
    file = tmp_path / "tools.py"
    file.write_text(source)

    problems = load(ToolsSettings(load=(str(file),))).problems

    assert [(problem.id, problem.setting) for problem in problems] == [
        ("config.E011", "tools.load[0]")
    ]


def test_an_origin_that_is_no_url_is_a_problem_and_no_traceback() -> None:
    """`gatepost check` says all problems, whatever is written in a setting."""
    listen = Listen(allowed_origins=("https://[",))
    config = Config(resource="https://mcp.example.com/mcp", listen=listen)

    reported_problems = problems(config, Toolbox((), ()))

    assert "listen.allowed_origins[0]" in [problem.setting for problem in reported_problems]


def test_a_token_that_no_header_can_carry_is_wrong_use_of_the_doctor() -> None:
    """A pasted typographic character ended in a traceback."""
    arguments = ["http://127.0.0.1:1/mcp", "--token", "\u00fc"]

    result = CliRunner().invoke(doctor.command, arguments)

    assert result.exit_code == 2
    assert "--token" in result.output


def test_a_damaged_key_ring_is_not_rotated_into_one_that_no_server_loads(tmp_path: Path) -> None:
    """The command said that the ring signs with a new key; the next start refused the ring."""
    ring = tmp_path / "keyring.json"
    ring.write_text('{"keys":[{"id":"a","secret":"zzzz","created":1}]}')
    ring.chmod(0o600)

    with pytest.raises(KeyRingError, match="damaged"):
        rotate(ring, keep=3)


def test_a_development_server_forgets_only_its_own_state(tmp_path: Path) -> None:
    """The first of two with one state directory took the second's with it when it ended."""
    config = dev_config(8000, tools=(), state=tmp_path)
    first, second = (dev_issuer(config, frozenset(), IssuerOptions()) for _ in range(2))
    path = write_state(tmp_path, config, first)
    write_state(tmp_path, config, second)

    forget_state(path, first)
    exists = path.exists()
    forget_state(path, second)

    assert (exists, path.exists()) == (True, False)
