"""An issuer that is asked about tokens, and who asks it, for the tests of that."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.authz.office import Office
from tests.support.idp import Idp


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as running:
        yield running


@pytest.fixture
async def office(idp: Idp) -> AsyncIterator[Office]:
    made = Office(idp)
    yield made
    made.desk.open.set()
    await made.verifier.aclose()
    await made.introspectors.aclose()
    await made.fetcher.aclose()
