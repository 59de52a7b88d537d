"""An issuer that is asked about tokens, and who asks it, for the tests of that."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.authz.verifiers import OpaqueTokenGate
from tests.support.issuers import Idp


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as running:
        yield running


@pytest.fixture
async def opaque_gate(idp: Idp) -> AsyncIterator[OpaqueTokenGate]:
    made = OpaqueTokenGate(idp)
    yield made
    made.endpoint.open.set()
    await made.verifier.aclose()
    await made.introspectors.aclose()
    await made.fetcher.aclose()
