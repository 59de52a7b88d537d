"""Two servers on one PostgreSQL and one Valkey, behind a balancer that remembers no client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.issuers import Idp
from tests.support.replicas import BalancedReplicas
from tests.support.stores import Postgres, Valkey


@pytest.fixture(scope="module")
def replicas(
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> Iterator[BalancedReplicas]:
    folder: Path = tmp_path_factory.mktemp("replicas")
    with postgres_server.database(like=postgres_template) as database:
        storage = {"database": database, "shared": valkey_server.url()}
        replicas = BalancedReplicas(idp, folder, storage)
        with replicas.running():
            yield replicas
