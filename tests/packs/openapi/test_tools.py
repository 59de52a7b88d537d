"""Each tool of the pack answers and refuses what its page says, by both protocols."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.support.issuers import AsgiServer

DOCUMENTS = Path(__file__).parent / "documents"
PETSTORE_2 = (DOCUMENTS / "petstore_2_0.json").read_bytes()
PETSTORE_3 = (DOCUMENTS / "petstore_3_0.yaml").read_bytes()
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
                Mount("/v2", routes=[Route("/swagger.json", served(PETSTORE_2)), *pets]),
                Mount("/api/v3", routes=[Route("/openapi.yaml", served(PETSTORE_3)), *pets]),
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
        statuses = request.query_params.getlist("status")
        return JSONResponse([pet for pet in self.pets.values() if pet.get("status") in statuses])

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
            text = f"{file.filename} {file.content_type} {len(await file.read())} bytes"
            more = form.get("additionalMetadata")
        return JSONResponse({"code": 200, "type": "unknown", "message": f"{more}: {text}"})

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
    """Return an endpoint that answers these bytes."""

    async def answer(_: Request) -> Response:
        return Response(document, media_type="application/octet-stream")

    return answer


INLINE_DOCUMENT = """
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
    """Load one of the petstore's APIs; the old description names the host of Swagger."""
    if name == "old":
        more.setdefault("base_url_override", f"{petstore.url}/v2")
    reply = agent.call("openapi_load", name=name, spec_url=petstore.url + APIS[name], **more)
    assert reply.failure is None, reply
    return reply.value


@pytest.fixture(scope="module")
def petstore() -> Iterator[Petstore]:
    """Yield a petstore for the tests of one module."""
    with Petstore() as petstore:
        yield petstore


@pytest.fixture(scope="module")
def server(petstore: Petstore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """Yield a server whose tools may use the petstore's private address."""
    folder = tmp_path_factory.mktemp("openapi")
    settings: Any = {"network": {"allow_hosts": [petstore.place]}}
    settings["packs"] = {"openapi": {"literals": True}}
    with open_server(folder, ["openapi"], **settings) as server:
        yield server


pytestmark = pytest.mark.requirement("X7")


@pytest.fixture
def loaded(agent: PackCaller, petstore: Petstore) -> PackCaller:
    """Return an agent whose tenant has all three APIs."""
    for name in APIS:
        load(agent, petstore, name)
    return agent


def test_apis_are_loaded_and_listed(loaded: PackCaller, petstore: Petstore) -> None:
    """Swagger 2.0 as JSON, 3.0 as YAML, 3.1; a second load replaces the first."""
    answer = load(loaded, petstore, "old")
    inline = loaded.call("openapi_load", name="inline", spec_content=INLINE_DOCUMENT).value
    apis = loaded.call("openapi_list_apis").value["apis"]

    assert answer == {
        "name": "old",
        "title": "Swagger Petstore",
        "version": "1.0.7",
        "endpoint_count": 20,
    }
    assert inline["endpoint_count"] == 1
    assert [(api["name"], api["endpoint_count"]) for api in apis] == [
        ("echo", 13),
        ("inline", 1),
        ("new", 19),
        ("old", 20),
    ]


def test_endpoints_are_filtered_and_paged(loaded: PackCaller) -> None:
    """Filters are a part of the path and a tag; `total` counts all matches."""
    answer = loaded.call("openapi_list_endpoints", name="old", filter="PETID", tag="pet", limit=2)
    rest = loaded.call("openapi_list_endpoints", name="old", filter="petId", offset=2).value

    assert answer.value["total"] == 4
    assert (answer.value["offset"], answer.value["limit"]) == (0, 2)
    assert answer.value["entries"][0] == {
        "path": "/pet/{petId}",
        "method": "GET",
        "summary": "Find pet by ID",
        "tags": ["pet"],
    }
    assert [entry["method"] for entry in rest["entries"]] == ["DELETE", "POST"]
    assert loaded.call("openapi_list_endpoints", name="old", tag="Pet").value["total"] == 0
    assert loaded.call("openapi_list_endpoints", name="new").value["total"] == 19


@pytest.mark.parametrize("api", ["old", "new"])
def test_an_operation_is_described_with_everything_it_refers_to(
    loaded: PackCaller, api: str
) -> None:
    """Path and method come first, and all references are resolved."""
    arguments = {"name": api, "path": "/pet/{petId}", "method": "get"}
    operation = loaded.call("openapi_get_operation", **arguments).value
    answer = operation["responses"]["200"]
    schema = answer["schema"] if api == "old" else answer["content"]["application/json"]["schema"]

    assert list(operation)[:2] == ["path", "method"]
    assert (operation["path"], operation["method"]) == ("/pet/{petId}", "GET")
    assert operation["operationId"] == "getPetById"
    assert operation["description"] == "Returns a single pet"
    assert operation["parameters"][0]["name"] == "petId"
    assert schema["properties"]["category"]["properties"]["name"] == {"type": "string"}
    assert "$ref" not in json.dumps(operation)


@pytest.mark.parametrize("api", ["old", "new"])
def test_an_api_is_called(loaded: PackCaller, petstore: Petstore, api: str) -> None:
    """Path, query, JSON, form and file; the API's own refusal is an answer with its status."""

    def call(method: str, path: str, **more: Any) -> Any:
        reply = loaded.call("openapi_call", name=api, path=path, method=method, **more)
        assert reply.failure is None, reply
        return reply.value

    pet = {"id": 7, "name": "Fluffy", "photoUrls": [], "status": "available"}
    seven = {"petId": 7}
    added = call("POST", "/pet", body=pet)
    answer = call("GET", "/pet/findByStatus", query_params={"status": ["available", "sold"]})
    renamed = call("POST", "/pet/{petId}", path_params=seven, body={"name": "Bello & Co"})
    sent = {"filename": "a.png", "data_base64": "iVBO\nRw==", "content_type": "image/png"}
    upload = call(
        "POST",
        "/pet/{petId}/uploadImage",
        path_params=seven,
        body={"additionalMetadata": "photo", "file": sent},
    )
    deleted = call("DELETE", "/pet/{petId}", path_params=seven, headers={"api_key": "k"})
    missing = call("GET", "/pet/{petId}", path_params=seven)

    assert added["status"] == 200
    assert added["body"] == pet
    assert added["headers"]["content-type"] == "application/json"
    assert added["truncated"] is False
    assert answer["body"] == [pet]
    assert renamed["body"]["name"] == "Bello & Co"
    assert upload["body"]["message"] == "photo: a.png image/png 4 bytes"
    assert deleted["status"] == 200
    assert (missing["status"], missing["body"]["message"]) == (404, "Pet not found")


class Echo(NamedTuple):
    """A call of the echo, and a part of what it heard."""

    method: str
    path: str
    given: dict[str, Any]
    reply: dict[str, Any]


ECHO_CASES = [
    Echo(
        "GET",
        "/list",
        {"query_params": {"many": ["a b", "c&d"]}},
        {"query": "many=a%20b&many=c%26d"},
    ),
    Echo("GET", "/list", {"query_params": {"one": [1, 2]}}, {"query": "one=1,2"}),
    Echo("GET", "/list", {"query_params": {"bar": ["a", "b"]}}, {"query": "bar=a%7Cb"}),
    Echo("GET", "/list", {"query_params": {"gap": ["a", "b"]}}, {"query": "gap=a%20b"}),
    Echo(
        "GET",
        "/list",
        {"query_params": {"deep": {"a": 1, "b": [2, 3]}}},
        {"query": "deep%5Ba%5D=1&deep%5Bb%5D=2&deep%5Bb%5D=3"},
    ),
    Echo("GET", "/list", {"query_params": {"flat": {"a": True}}}, {"query": "a=true"}),
    Echo(
        "GET",
        "/list",
        {"query_params": {"json": {"a": [1]}}},
        {"query": "json=%7B%22a%22%3A%5B1%5D%7D"},
    ),
    Echo("GET", "/list", {"query_params": {"free": "x", "none": None}}, {"query": "free=x"}),
    Echo(
        "GET",
        "/things/{id}/parts/{part}",
        {"path_params": {"id": "a/b?c#d", "part": "ü"}},
        {"path": "/echo/things/a%2Fb%3Fc%23d/parts/%C3%BC"},
    ),
    Echo(
        "GET",
        "/things/{id}/parts/{part}",
        {"path_params": {"id": [1, 2], "part": 1.5}},
        {"path": "/echo/things/1,2/parts/1.5"},
    ),
    Echo(
        "GET", "/matrix/{point}", {"path_params": {"point": "x"}}, {"path": "/echo/matrix/;point=x"}
    ),
    Echo("POST", "/form", {"body": {"a": "1 2", "b": [3, 4]}}, {"body": "a=1%202&b=3&b=4"}),
    Echo("POST", "/text", {"body": "Grüße"}, {"body": "Grüße"}),
    Echo("POST", "/moved", {"body": {"a": 1}}, {}),
]


@pytest.mark.parametrize(
    "case", ECHO_CASES, ids=lambda case: f"{case.path} {list(case.given.values())}"
)
def test_arguments_are_written_as_the_description_wants_them(
    loaded: PackCaller, case: Echo
) -> None:
    """All styles of OpenAPI 3; no character of a value acts as a separator."""
    answer = loaded.call(
        "openapi_call", name="echo", path=case.path, method=case.method, **case.given
    ).value

    assert case.reply.items() <= (answer["body"] or {}).items()


def test_headers_are_sent_to_the_api(loaded: PackCaller) -> None:
    """The API gets each header that a caller may set, once."""
    answer = loaded.call(
        "openapi_call",
        name="echo",
        path="/list",
        method="GET",
        headers={"X-Custom-Header": "value", "X-List": ["a", "b"], "ACCEPT": "text/csv"},
    ).value
    reply = answer["body"]["headers"]

    assert (reply["x-custom-header"], reply["x-list"]) == ("value", "a,b")
    assert reply["accept"] == "text/csv"


def test_a_long_answer_is_cut_and_stays_valid(loaded: PackCaller) -> None:
    """JSON stays valid with its small members, and text ends with a whole character."""

    def call(path: str, most: int) -> Any:
        return loaded.call(
            "openapi_call", name="echo", path=path, method="GET", max_response_bytes=most
        ).value

    items, words, picture = call("/long", 1000), call("/words", 100), call("/picture", 4)

    assert items["truncated"] is True
    assert items["body"]["total"] == 3000
    assert items["body"]["items"][:2] == [{"id": 0}, {"id": 1}]
    assert 50 < len(items["body"]["items"]) < 110
    assert words["body"].startswith("Grüße Grüße")
    assert words["truncated"] is True
    assert len(words["body"].encode()) <= 100
    assert picture == {**picture, "body": {"base64": "iVBO"}, "truncated": True}
    assert call("/long", 100_000)["truncated"] is False
    assert call("/broken", 100)["body"] == '{"half": '


def test_redirects_are_followed_for_get_only(loaded: PackCaller) -> None:
    """A redirected POST is answered with the redirect."""
    read = loaded.call("openapi_call", name="echo", path="/moved", method="GET").value
    wrote = loaded.call("openapi_call", name="echo", path="/moved", method="POST").value
    nothing = loaded.call("openapi_call", name="echo", path="/nothing", method="DELETE").value

    assert read["body"]["query"] == "moved=1"
    assert (wrote["status"], wrote["headers"]["location"]) == (307, "/echo/list?moved=1")
    assert (nothing["status"], nothing["body"]) == (204, None)
