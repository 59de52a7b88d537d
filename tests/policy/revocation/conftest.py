"""Two replicas on one PostgreSQL, with a Valkey between them that a test may stop."""

from collections.abc import Iterator

import pytest

from tests.policy.servers import RevocationReplicas
from tests.support.issuers import Idp
from tests.support.stores import Postgres, Valkey


@pytest.fixture(scope="package")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


@pytest.fixture(scope="package")
def replicas(
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
) -> Iterator[RevocationReplicas]:
    folder = tmp_path_factory.mktemp("cutoff")
    with (
        Valkey.running() as relay,
        postgres_server.database(like=postgres_template) as database,
    ):
        replicas = RevocationReplicas(
            idp, folder, {"database": database, "shared": relay.url()}, relay
        )
        with replicas.running():
            yield replicas
