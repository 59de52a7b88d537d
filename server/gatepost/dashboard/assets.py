"""Static files of the dashboard, served under content-addressed paths that browsers can cache."""

import hashlib
from collections.abc import Mapping
from importlib import resources

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost.http.edge import respond

MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
MEDIA_TYPES |= {"svg": "image/svg+xml"}
FOLDER = "/static"
# One year, because a changed file has another path (RFC 9111 section 5.2.2.1, RFC 8246).
CACHE_CONTROL = (b"cache-control", b"public, max-age=31536000, immutable")


class AssetFile(msgspec.Struct, frozen=True):
    """One static file as it is sent."""

    body: bytes
    kind: bytes
    digest: str


class Assets:
    """
    Serve the files of the folder `static`, which are read once.

    An ASGI app for ``{base}/static/{digest}/{name}``. The files are public. An unknown name or a
    wrong digest is answered with 404, because browsers cache the content of a path for a year.
    """

    def __init__(self) -> None:
        folder = resources.files("gatepost.dashboard").joinpath("static")
        self.files: Mapping[str, AssetFile] = {
            path.name: _file(path.read_bytes(), MEDIA_TYPES[path.name.rpartition(".")[2]])
            for path in folder.iterdir()
            if path.name.rpartition(".")[2] in MEDIA_TYPES
        }

    def path(self, base: str, name: str) -> str:
        """
        Return the path of the file *name* for the dashboard at *base*; KeyError for an unknown
        name.
        """
        return f"{base}{FOLDER}/{self.files[name].digest}/{name}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        params = scope["path_params"]
        file = self.files.get(params["name"])
        if scope["method"] not in {"GET", "HEAD"}:
            allow = ((b"allow", b"GET, HEAD"),)
            await respond(send, 405, b'{"error":"method_not_allowed"}', allow)
            return
        if file is None or file.digest != params["digest"]:
            await respond(send, 404, b'{"error":"not_found"}')
            return
        size = (b"content-length", str(len(file.body)).encode("ascii"))
        headers = [(b"content-type", file.kind), size, CACHE_CONTROL]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = file.body if scope["method"] == "GET" else b""
        await send({"type": "http.response.body", "body": body})


def _file(body: bytes, kind: str) -> AssetFile:
    return AssetFile(body, kind.encode("ascii"), hashlib.sha256(body).hexdigest()[:16])
