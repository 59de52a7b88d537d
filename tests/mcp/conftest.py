"""Whole servers in this process for the rows that only these can prove."""

from tests.tenancy.conftest import elsewhere, idp

__all__ = ["elsewhere", "idp"]
