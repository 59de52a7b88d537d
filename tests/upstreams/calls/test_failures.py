"""What callers hear of an upstream's JSON-RPC errors."""

from typing import Any

import pytest

from gatepost.tools.client import MissingCapability, ProtocolError
from gatepost.upstreams.calls.failures import MISSING_CAPABILITY, errored
from gatepost.upstreams.calls.machine import Errored
from gatepost.upstreams.upstream_server import UpstreamServer

SERVER = UpstreamServer(id="1", tenant="acme", name="crm", allow=("sampling",))
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def heard(required: Any, declared: dict[str, Any]) -> Exception:
    """What the caller hears when the upstream says that it needs these capabilities."""
    data = {"requiredCapabilities": required}
    return errored(SERVER, Errored(MISSING_CAPABILITY, "no", data), declared=declared)


@pytest.mark.parametrize("required", [{"sampling": {}}, TASKS])
def test_a_caller_learns_which_capability_is_missing(required: Any) -> None:
    """It learns it if its client lacks the capability, so that declaring it would help."""
    missing = heard(required, {})

    assert isinstance(missing, MissingCapability)
    assert missing.required == required


@pytest.mark.parametrize(
    ("required", "declared"),
    [
        ({"sampling": {}}, {"sampling": {}}),  # declared already
        ({"roots": {}}, {}),  # the registration does not allow it
        ({"admin": {}}, {}),  # no capability of the protocol
        ("sampling", {}),
    ],
)
def test_what_the_caller_cannot_help_is_an_internal_error(required: Any, declared: Any) -> None:
    """An upstream cannot make a client declare anything else."""
    error = heard(required, declared)

    assert isinstance(error, ProtocolError)
    assert error.code == -32603
