"""The APIs of the petstore, and how agents load them."""

from typing import Any

from tests.packs.office import Worker
from tests.packs.openapi.conftest import Shop

INLINE = """
openapi: 3.0.0
info:
  title: My API
  version: 1.0.0
servers:
  - url: https://api.example.com
paths:
  /users:
    get:
      summary: List users
"""
APIS = {"old": "/v2/swagger.json", "new": "/api/v3/openapi.yaml", "echo": "/echo.json"}


def load(worker: Worker, shop: Shop, name: str, **more: Any) -> Any:
    """One of the APIs of the petstore; Swagger's own host stands in the old description."""
    if name == "old":
        more.setdefault("base_url_override", f"{shop.url}/v2")
    heard = worker.call("openapi_load", name=name, spec_url=shop.url + APIS[name], **more)
    assert heard.failure is None, heard
    return heard.value
