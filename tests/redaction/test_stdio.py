"""The whole way: an operator sets a secret, a server on pipes never says it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redaction import conftest
from tests.support.commands import DeploymentFolder
from tests.support.connections import answered_text, stdio_process

SECRET_VALUE = 'what-only-tools"may-have'


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[DeploymentFolder]:
    deployment = DeploymentFolder(tmp_path, "sqlite:///gatepost.db", ("acme",))
    yield deployment
    deployment.close()


@pytest.mark.requirement("P13")
def test_a_stdio_server_shows_no_secret(deployment: DeploymentFolder) -> None:
    """Neither the client nor standard error gets one."""
    deployment.settings |= {
        "tools": {"load": [str(Path(conftest.__file__))]},
        "stdio": {"tenant": "acme", "subject": "alice"},
    }
    deployment.write()
    deployment.set("API_KEY", SECRET_VALUE, "acme")
    config = (deployment.folder / "gatepost.toml").read_text()

    with stdio_process(deployment.folder, config) as talk:
        text = answered_text(talk.of(talk.call("say", identity=1, text=f"it is {SECRET_VALUE}")))
        used = answered_text(talk.of(talk.call("use", identity=2, token="secret:API_KEY")))
        talk.of(talk.call("crash", identity=3, text=SECRET_VALUE))
        talk.hang_up()

        assert (text, used) == ("it is [REDACTED:API_KEY]", "[REDACTED:API_KEY] ")
        assert "only-tools" not in talk.output
        assert talk.output.count("[REDACTED:API_KEY]") > 5
