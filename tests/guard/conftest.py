"""The guard is tried at the same houses as tenancy."""

from tests.tenancy.conftest import elsewhere, idp

__all__ = ["elsewhere", "idp"]
