"""Where nobody asked for spans, nothing of them is there."""

import subprocess
import sys

from gatepost.outlet import Nowhere
from tests.support.idp import Idp
from tests.support.process import python_environment
from tests.tenancy.house import house, issuer

PROGRAM = """
import sys
import gatepost.serve, gatepost.commands.serve
unused = ("opentelemetry", "prometheus_client", "requests")
print([name for name in sys.modules if name.startswith(unused)])
"""


def test_a_server_without_a_collector_loads_nothing_of_it() -> None:
    """Neither the time to start nor the memory is anybody's who has not asked."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert ran.stdout.strip() == "[]"


def test_a_server_without_a_collector_traces_nowhere() -> None:
    """No tracer, so no stage and no endpoint that asks for one; nobody hears of the record."""
    with Idp() as idp, house(idp, [issuer(idp)], tenancy={"create_on_first_use": True}) as site:
        outlet = site.inside.services.outlet

        assert isinstance(outlet, Nowhere)
        assert outlet.tracer is None
        assert outlet.recorded not in site.inside.services.journal.listeners
