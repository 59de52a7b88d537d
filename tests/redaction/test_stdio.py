"""The whole way: an operator sets a secret, a server on pipes never says it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mcp.stdio.client import talking, text
from tests.redaction import tools
from tests.secrets.premises import Premises

VALUE = 'what-only-tools"may-have'


@pytest.fixture
def premises(tmp_path: Path) -> Iterator[Premises]:
    premises = Premises(tmp_path, "sqlite:///gatepost.db", ("acme",))
    yield premises
    premises.close()


@pytest.mark.requirement("P13")
def test_a_server_on_pipes_says_no_secret(premises: Premises) -> None:
    """Not to its client, and not on standard error."""
    premises.settings |= {
        "tools": {"load": [str(Path(tools.__file__))]},
        "stdio": {"tenant": "acme", "subject": "alice"},
    }
    premises.write()
    premises.set("API_KEY", VALUE, "acme")
    config = (premises.folder / "gatepost.toml").read_text()

    with talking(premises.folder, config) as talk:
        said = text(talk.of(talk.call("say", identity=1, text=f"it is {VALUE}")))
        used = text(talk.of(talk.call("use", identity=2, token="secret:API_KEY")))
        talk.of(talk.call("crash", identity=3, text=VALUE))
        talk.hang_up()

        assert (said, used) == ("it is [REDACTED:API_KEY]", "[REDACTED:API_KEY] ")
        assert "only-tools" not in talk.output
        assert talk.output.count("[REDACTED:API_KEY]") > 5
