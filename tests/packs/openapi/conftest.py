"""The petstore of Swagger's examples as a small server, and a Gatepost in front of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.support.issuers import AsgiServer

DOCUMENTS = Path(__file__).parent / "documents"
OLD = (DOCUMENTS / "petstore_2_0.json").read_bytes()
NEW = (DOCUMENTS / "petstore_3_0.yaml").read_bytes()
ECHO = (DOCUMENTS / "echo.json").read_bytes()
"""Each operation answers what it was asked, or what its name says."""


class Petstore(AsgiServer):
    """The running server: its pets, and every request that reached it."""

    def __init__(self) -> None:
        self.pets: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        super().__init__(self.app())

    def app(self) -> Starlette:
        pets = [
            Route("/pet", self._add, methods=["POST", "PUT"]),
            Route("/pet/findByStatus", self._by_status),
            Route("/pet/{id}/uploadImage", self._upload, methods=["POST"]),
            Route("/pet/{id}", self._pet, methods=["GET", "POST", "DELETE"]),
            Route("/store/inventory", self._inventory),
        ]
        return Starlette(
            routes=[
                Mount("/v2", routes=[Route("/swagger.json", served(OLD)), *pets]),
                Mount("/api/v3", routes=[Route("/openapi.yaml", served(NEW)), *pets]),
                Route("/echo.json", served(ECHO)),
                Route("/broken.json", served(b'{"openapi": [}')),
                Route("/echo/long", self._long),
                Route("/echo/words", self._words),
                Route("/echo/picture", self._picture),
                Route("/echo/moved", self._moved, methods=["GET", "POST"]),
                Route("/echo/nothing", self._nothing, methods=["DELETE"]),
                Route("/echo/broken", self._broken),
                Route("/{rest:path}", self._echo, methods=["GET", "POST", "PUT", "DELETE"]),
            ]
        )

    async def _add(self, request: Request) -> Response:
        self._note(request)
        pet = json.loads(await request.body())
        if "name" not in pet:
            return JSONResponse({"code": 405, "message": "a pet has a name"}, 405)
        pet.setdefault("id", len(self.pets) + 1)
        self.pets[str(pet["id"])] = pet
        return JSONResponse(pet)

    async def _by_status(self, request: Request) -> Response:
        self._note(request)
        wanted = request.query_params.getlist("status")
        return JSONResponse([pet for pet in self.pets.values() if pet.get("status") in wanted])

    async def _pet(self, request: Request) -> Response:
        self._note(request)
        pet = self.pets.get(request.path_params["id"])
        if pet is None:
            return JSONResponse({"code": 1, "type": "error", "message": "Pet not found"}, 404)
        if request.method == "DELETE":
            del self.pets[request.path_params["id"]]
        if request.method == "POST":
            async with request.form() as form:
                pet |= dict(form)
        return JSONResponse(pet)

    async def _upload(self, request: Request) -> Response:
        self._note(request)
        async with request.form() as form:
            file: Any = form["file"]
            told = f"{file.filename} {file.content_type} {len(await file.read())} bytes"
            more = form.get("additionalMetadata")
        return JSONResponse({"code": 200, "type": "unknown", "message": f"{more}: {told}"})

    async def _inventory(self, request: Request) -> Response:
        self._note(request)
        counted: dict[str, int] = {}
        for pet in self.pets.values():
            counted[pet.get("status", "")] = counted.get(pet.get("status", ""), 0) + 1
        return JSONResponse(counted)

    async def _long(self, _: Request) -> Response:
        return JSONResponse({"total": 3000, "items": [{"id": at} for at in range(3000)]})

    async def _words(self, _: Request) -> Response:
        return PlainTextResponse("Grüße " * 100)

    async def _picture(self, _: Request) -> Response:
        return Response(b"\x89PNG\0", media_type="image/png")

    async def _moved(self, request: Request) -> Response:
        self._note(request)
        return RedirectResponse("/echo/list?moved=1", 307)

    async def _nothing(self, _: Request) -> Response:
        return Response(status_code=204)

    async def _broken(self, _: Request) -> Response:
        return Response(b'{"half": ', media_type="application/json")

    async def _echo(self, request: Request) -> Response:
        self._note(request)
        return JSONResponse(
            {
                "method": request.method,
                "path": request.scope["raw_path"].decode(),
                "query": request.scope["query_string"].decode(),
                "headers": dict(request.headers),
                "body": (await request.body()).decode(),
            }
        )

    def _note(self, request: Request) -> None:
        self.asked.append({"path": request.url.path, "headers": dict(request.headers)})


def served(document: bytes) -> Any:
    """A route's function that answers these bytes."""

    async def answer(_: Request) -> Response:
        return Response(document, media_type="application/octet-stream")

    return answer


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


def load(agent: PackCaller, petstore: Petstore, name: str, **more: Any) -> Any:
    """One of the APIs of the petstore; Swagger's own host stands in the old description."""
    if name == "old":
        more.setdefault("base_url_override", f"{petstore.url}/v2")
    reply = agent.call("openapi_load", name=name, spec_url=petstore.url + APIS[name], **more)
    assert reply.failure is None, reply
    return reply.value


@pytest.fixture(scope="module")
def petstore() -> Iterator[Petstore]:
    """A petstore that no other module's tests touch."""
    with Petstore() as petstore:
        yield petstore


@pytest.fixture(scope="module")
def server(petstore: Petstore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """A server whose tools may reach the petstore, at a private address as it is."""
    folder = tmp_path_factory.mktemp("openapi")
    settings: Any = {"network": {"allow_hosts": [petstore.place]}}
    settings["packs"] = {"openapi": {"literals": True}}
    with open_server(folder, ["openapi"], **settings) as server:
        yield server
