"""Packs of what an author has: an OpenAPI description, and a FastAPI app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import (
    APIRouter,
    Depends,
    FastAPI,
    Form,
    Header,
    HTTPException,
    Request,
    Response,
    UploadFile,
)
from pydantic import BaseModel

from gatepost import Pack
from gatepost.testing import CallRefused, serving
from gatepost_authz import TenantContext, caller_of

PIXEL = b"\x89PNG\r\n\x1a\n"
EVENTS: list[str] = []


class ItemOrder(BaseModel):
    """An order."""

    item: str
    count: int = 1


def caller(request: Request) -> TenantContext:
    return caller_of(request.scope)


Caller = Annotated[TenantContext, Depends(caller)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    EVENTS.append("open")
    yield
    EVENTS.append("closed")


app = FastAPI(lifespan=lifespan)


@app.get("/orders/{number}", tags=["orders"], operation_id="read_order")
async def read_order(number: int, who: Caller, verbose: bool = False) -> dict[str, Any]:
    """Read an order."""
    if number == 404:
        raise HTTPException(404, "There is no such order")
    if number == 500:
        raise RuntimeError("internal detail")
    return {"number": number, "tenant": who.tenant_id, "verbose": verbose}


@app.post("/orders", tags=["orders"], operation_id="place_order")
async def place_order(order: ItemOrder, who: Caller) -> ItemOrder:
    """Place an order."""
    return ItemOrder(item=f"{order.item} for {who.subject}", count=order.count)


@app.post("/files", tags=["files"], operation_id="upload")
async def upload(file: UploadFile, note: Annotated[str, Form()]) -> dict[str, Any]:
    """Upload a file."""
    return {"name": file.filename, "size": len(await file.read()), "note": note}


@app.get("/logo", tags=["files"], operation_id="logo", response_class=Response)
async def logo() -> Response:
    """Return the logo."""
    return Response(PIXEL, media_type="image/png")


@app.get("/secret", tags=["files"], operation_id="secret")
async def secret(x_tenant: Annotated[str, Header()] = "") -> str:
    """Return a header's value; a caller must not be able to forge the tenant with it."""
    return x_tenant


async def test_an_app_in_this_process_is_called_as_the_caller() -> None:
    """Arguments, failures, files and images as of any API; the app's lifespan runs."""
    EVENTS.clear()
    pack = Pack.from_fastapi(app, name="orders", scopes=("orders:use",), prefix="shop_")
    async with serving(pack) as server:
        client = server.client("globex", subject="bob", scopes={"orders:use"})
        assert EVENTS == ["open"]
        read = await client.call("shop_read_order", number=7, verbose=True)
        missing = await client.call("shop_read_order", number=404)
        broken = await client.call("shop_read_order", number=500)
        placed = await client.call("shop_place_order", item="tea", count=2)
        wrong = await client.call("shop_place_order", item=3)
        drawn = await client.call("shop_logo")
        file = {"filename": "a.txt", "data_base64": "aGk=", "content_type": "text/plain"}
        sent = await client.call("shop_upload", file=file, note="n")
        foreign = await client.call("shop_secret", **{"x-tenant": "ä"})
        with pytest.raises(CallRefused) as refused:
            await server.client().call("shop_logo")

    assert EVENTS == ["open", "closed"]
    assert '"tenant":"globex"' in read.text.replace(" ", "")
    assert '"verbose":true' in read.text.replace(" ", "")
    assert (missing.is_error, broken.is_error, wrong.is_error) == (True, True, True)
    assert "no such order" in missing.text
    assert "internal detail" not in broken.text
    assert placed.structured == {"item": "tea for bob", "count": 2}
    assert drawn.images == [PIXEL]
    assert '"size":2' in sent.text.replace(" ", "")
    assert "not ASCII" in foreign.text
    assert refused.value.scopes == {"orders:use"}


async def test_each_request_carries_its_own_caller() -> None:
    """Each request carries its own caller."""
    async with serving(Pack.from_fastapi(app, tags=("orders",))) as server:
        clients = [server.client(tenant) for tenant in ("acme", "globex")]
        names = {*await clients[0].tools()}
        answers = [
            await client.call("read_order", number=1) for client in clients for _ in range(3)
        ]

    assert names == {"place_order", "read_order"}
    assert [answer.text.count("acme") for answer in answers] == [1, 1, 1, 0, 0, 0]


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Status", "version": "1"},
    "servers": [{"url": "https://status.example.com"}],
    "paths": {"/status": {"get": {"operationId": "get_status", "responses": {}}}},
}


async def test_operations_can_have_their_own_scopes_and_approvals() -> None:
    """They are set by the tool's name, or by `*` for all others."""
    pack = Pack.from_fastapi(
        app,
        tags=("orders",),
        scopes={"place_order": {"orders:write"}, "*": {"orders:read"}},
        approval={"place_order"},
    )
    async with serving(pack) as server:
        client = server.client(scopes={"orders:read"})
        listed = await client.call("read_order", number=1)
        with pytest.raises(CallRefused) as refused:
            await client.call("place_order", item="tea")

    assert pack.name == "fastapi"
    assert not listed.is_error
    assert refused.value.scopes == {"orders:write"}
    assert {name: tool.approval for name, tool in pack.tools.items()} == {
        "place_order": True,
        "read_order": False,
    }


def nested() -> FastAPI:
    """Return an application with an included router; the description omits some of its routes."""
    router = APIRouter()

    @router.get("/me", include_in_schema=False)
    async def me() -> str:
        return "guarded"

    @router.get("/{number:int}", include_in_schema=False)
    async def numbered(number: int) -> str:
        return "guarded"

    @router.get("/{name}", operation_id="get_user")
    async def get_user(name: str) -> str:
        return f"user {name}"

    @router.get("/{name}/secret", operation_id="get_secret")
    async def get_secret(name: str) -> str:
        return "guarded"

    @router.get("/{name}/files/{place:path}", operation_id="get_file")
    async def get_file(name: str, place: str) -> str:
        return f"{place} of {name}"

    app = FastAPI()
    app.include_router(router, prefix="/users")
    inner = FastAPI()

    @inner.get("/{one:path}")
    async def get_mounted(one: str) -> str:
        return f"mounted {one}"

    app.mount("/mounted", inner)
    described = app.openapi()
    described["paths"]["/mounted/{one}"] = {
        "get": {
            "operationId": "get_mounted",
            "parameters": [
                {"name": "one", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            "responses": {},
        }
    }
    return app


async def test_a_path_argument_reaches_no_other_operation() -> None:
    """ASGI paths are decoded; `/` would reach a route with another scope, or a hidden one."""
    scopes = {"get_secret": {"users:secret"}, "*": ()}
    async with serving(Pack.from_fastapi(nested(), scopes=scopes)) as server:
        client = server.client(scopes=set())
        reached = [
            await client.call("get_user", name="al"),
            await client.call("get_user", name="al%2Fsecret"),
            await client.call("get_file", name="al", place="a/b"),
            await client.call("get_mounted", one="x"),
        ]
        refused = [
            await client.call(tool, **arguments)
            for tool, arguments in (
                ("get_user", {"name": "al/secret"}),
                ("get_user", {"name": "me"}),
                ("get_user", {"name": "7"}),
                ("get_file", {"name": "al/x", "place": "y"}),
                ("get_mounted", {"one": "x/y"}),
                ("get_mounted", {"one": "x\\y"}),
            )
        ]

    assert [answer.text for answer in reached] == [
        "user al",
        "user al%2Fsecret",
        "a/b of al",
        "mounted x",
    ]
    assert all(answer.is_error for answer in refused)
    assert [("path is not one of GET /" in answer.text) for answer in refused] == [True] * 6
    assert "With this value of `name`" in refused[0].text


def test_a_description_is_a_mapping_or_a_file(tmp_path: Path) -> None:
    """Loading a file fetches nothing; an invalid option is named."""
    (tmp_path / "status.yaml").write_text(
        "openapi: 3.1.0\ninfo: {title: Status, version: '1'}\n"
        "servers: [{url: 'https://status.example.com'}]\n"
        "paths: {/status: {get: {operationId: get_status, responses: {}}}}\n"
    )
    packs = [Pack.from_openapi(DOCUMENT), Pack.from_openapi(tmp_path / "status.yaml")]
    guarded = Pack.from_openapi(DOCUMENT, scopes=("status:read",), auth="secret:TOKEN")

    assert [(pack.name, set(pack.tools)) for pack in packs] == [("status", {"get_status"})] * 2
    assert guarded.tools["get_status"].scopes == {"status:read"}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"scope": ("x",)}, TypeError, "no option scope"),
        ({"scopes": "status:read"}, TypeError, "scopes and approval are collections"),
        ({"scopes": {"get_staus": ()}}, ValueError, "there is no get_staus; it has get_status"),
        ({"scopes": {}}, ValueError, "scopes leaves out get_status"),
        ({"scopes": ("two words",)}, ValueError, "two words"),
        ({"approval": {"get_staus"}}, ValueError, "there is no get_staus"),
        ({"auth": "literal-secret"}, ValueError, "no reference to a secret"),
        ({"paths": ("/other",)}, ValueError, "no operation"),
        ({"name": "No Name"}, ValueError, "pack name 'No Name'"),
    ]
    for options, kind, says in wrong:
        with pytest.raises(kind, match=says):
            Pack.from_openapi(DOCUMENT, **options)
    with pytest.raises(ValueError, match="nothing is fetched while a file loads"):
        Pack.from_openapi("https://status.example.com/openapi.json")
    with pytest.raises(ValueError, match="pass name="):
        Pack.from_openapi({**DOCUMENT, "info": {"title": "状態", "version": "1"}})
