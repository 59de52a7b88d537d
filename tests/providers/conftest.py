"""Each real provider with a Gatepost that trusts it, started once for the whole run."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.keys.conftest import SECRET
from tests.providers.provider import READ, IdentityProvider, ProviderSite
from tests.providers.providers import PROVIDERS
from tests.support import commands
from tests.support.client import ResourceClient
from tests.support.commands import Gatepost, toml
from tests.support.processes import free_port
from tests.support.proxies import CertificateAuthority

ENVIRONMENT = {"TEST_SECRET": SECRET, **commands.HURRIED}


class Pairing(NamedTuple):
    """A provider, and the Gatepost that accepts its tokens."""

    provider: IdentityProvider
    gatepost: Gatepost
    client: ResourceClient
    metrics: str
    """Where the Gatepost tells its counters."""

    def refusals(self) -> Counter[str]:
        """How many tokens were refused so far, by the reason in the log."""
        text = httpx2.get(self.metrics).text
        found = re.findall(
            r'^gatepost_tokens_refused_total\{.*reason="(\w+)".*\} (\d+)', text, re.M
        )
        return Counter({reason: int(float(count)) for reason, count in found if float(count)})


def configuration(
    provider: IdentityProvider, *, ca_bundle: str = "", **changes: Any
) -> dict[str, Any]:
    """Return Gatepost's settings for *provider*; *changes* are made to its `[[issuers]]`."""
    site = provider.site
    issuer = {"issuer": provider.issuer, "leeway_s": 0, "dashboard": provider.dashboard()}
    return {
        "resource": site.resource,
        "mode": "development",
        "listen": {"port": int(site.resource.rpartition(":")[2].partition("/")[0])},
        "network": {"ca_bundle": ca_bundle},
        "issuers": [issuer | provider.table() | changes],
        "scopes": {"baseline": [READ]},
        "tools": {"packs": ["demo"]},
        "storage": {"database": "sqlite:///gatepost.db"},
    }


def written(settings: dict[str, Any]) -> str:
    """Return settings as the text of a configuration file."""
    return "\n".join(f"{name} = {toml(value)}" for name, value in settings.items())


@pytest.fixture(scope="session")
def pairings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pairing]]:
    """Answers a running pair by its provider's name; it is started when first asked for."""
    known: dict[str, Pairing] = {}
    with ExitStack() as stack:

        def pairing(name: str) -> Pairing:
            if name not in known:
                known[name] = _paired(PROVIDERS[name], tmp_path_factory.mktemp(name), stack)
            return known[name]

        yield pairing


def _paired(kind: type[IdentityProvider], folder: Path, stack: ExitStack) -> Pairing:
    if lacking := kind.missing():
        pytest.skip(lacking)
    company = CertificateAuthority(folder)
    site = ProviderSite(folder, company, f"http://127.0.0.1:{free_port()}/mcp", free_port())
    provider = kind(site)
    stack.callback(provider.stop)
    provider.start()
    config = written(configuration(provider, ca_bundle=str(company.bundle)))
    metrics = f"127.0.0.1:{free_port()}"
    told = ENVIRONMENT | {"GATEPOST_LISTEN__METRICS": metrics}
    gatepost = stack.enter_context(commands.serve(config, folder, env=told))
    return Pairing(provider, gatepost, ResourceClient(site.resource), f"http://{metrics}/metrics")


@pytest.fixture(params=sorted(PROVIDERS))
def pair(request: pytest.FixtureRequest, pairings: Callable[[str], Pairing]) -> Pairing:
    """One provider after the other, or those that a test names."""
    return pairings(request.param)
