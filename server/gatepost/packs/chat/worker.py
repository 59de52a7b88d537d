"""
Sends one message through Apprise; runs in a child process (see `packs.child`).

Apprise and its hundred providers open connections as they please, by libraries of their own. Here
they get only connections that the server has checked, opened and handed over (`Road`); a hook of
the interpreter refuses every other one, and files, and programs. Where the kernel can, the sandbox
refuses the same once more.
"""

import array
import json
import logging
import os
import re
import socket
import ssl
import sys
import threading
from typing import Any

import apprise

FORBIDDEN = (
    *("ctypes.dlopen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"),
    *("os.startfile", "os.system", "pty.spawn", "subprocess.Popen"),
    *("socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"),
    *("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
)
STATUS = re.compile(r"error=([1-5][0-9][0-9])\b")
# What a provider's code raises when an answer is not what it expects.
ODD = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class Road:
    """The only way out: asks the server for connections, on the socket that it handed over."""

    def __init__(self, handle: int) -> None:
        self._server = socket.socket(fileno=handle)
        self._turn = threading.Lock()
        self.scheme = "https"

    def connect(self, ours: socket.socket, address: Any) -> None:
        """In place of `socket.connect`: *ours* becomes what the server has opened."""
        host, port = address[0], int(address[1])
        with self._turn:
            wanted = {"scheme": self.scheme, "host": host, "port": port}
            self._server.sendall(json.dumps(wanted).encode())
            space = socket.CMSG_LEN(array.array("i").itemsize)
            said, carried, _, _ = self._server.recvmsg(1, space)
        if said != b"+" or not carried:
            raise ConnectionRefusedError("the server does not connect there")
        handles = array.array("i")
        handles.frombytes(carried[0][2][: handles.itemsize])
        os.dup2(handles[0], ours.fileno())
        os.close(handles[0])
        ours.settimeout(ours.gettimeout())  # what blocks is a property of what was handed over


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """
    What came of `body` and `title` at `url`: `service`, `parts` sent `of` all, and `status`.

    Instead of these `problem`: "url" for one that Apprise does not know, "long" for a message of
    more than `max_parts`. `handle` is where connections come from, `ca` more trusted certificates.
    """
    road, heard = Road(question["handle"]), Heard()
    take_the_road(road, question["ca"])
    asset = apprise.AppriseAsset(
        app_id="Gatepost",
        app_desc="A message from an agent",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        image_path_mask="",
        async_mode=False,
        http_redirects=False,
        interpret_escapes=False,
        storage_mode="memory",
        allow_templates=False,
        pgp_autogen=False,
        pem_autogen=False,
    )
    plugin = apprise.Apprise.instantiate(question["url"], asset=asset)
    if plugin is None:
        return {"problem": "url"}
    road.scheme = scheme_of(plugin)
    forbid()
    service = str(plugin.service_name)
    messages = drafted(plugin, asset, question)
    if len(messages) > question["max_parts"]:
        return {"problem": "long", "service": service, "of": len(messages)}
    sent = 0
    for message in messages:
        if not delivered(plugin, message):
            break
        sent += 1
    return {"service": service, "parts": sent, "of": len(messages), "status": heard.status}


class Heard(logging.Handler):
    """The status that a provider answered with: all that is kept of what Apprise logs."""

    def __init__(self) -> None:
        super().__init__()
        self.status: int | None = None
        logger = logging.getLogger("apprise")
        logger.addHandler(self)
        logger.setLevel(logging.WARNING)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the last one."""
        if found := STATUS.search(record.getMessage()):
            self.status = int(found[1])


def scheme_of(plugin: Any) -> str:
    """What its connections are, for the server's rules: unencrypted ones have their own."""
    mode = getattr(plugin, "secure_mode", None)
    if mode is not None and hasattr(plugin, "smtp_host"):
        return "http" if str(getattr(mode, "value", mode)) == "insecure" else "smtp"
    return "https" if plugin.secure else "http"


def drafted(plugin: Any, asset: Any, question: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages as the provider takes them: converted, and split where they are too long."""
    messages: list[dict[str, Any]] = []
    if "overflow=" not in question["url"]:
        plugin.overflow_mode = apprise.OverflowMode.SPLIT

    def keep(**message: Any) -> bool:
        messages.append(message)
        return True

    plugin.send = keep
    sender = apprise.Apprise(asset=asset)
    sender.add(plugin)
    # As text: what an agent writes is no markup, and no name of an emoji.
    sender.notify(
        body=question["body"], title=question["title"], body_format=apprise.NotifyFormat.TEXT
    )
    del plugin.send
    return messages


def delivered(plugin: Any, message: dict[str, Any]) -> bool:
    """Whether the provider took it."""
    try:
        return bool(plugin.send(**message))
    except ODD:
        return False


def take_the_road(road: Road, ca: str) -> None:
    """Let everything that connects do so by *road*, by name, and trust *ca* too."""

    def named(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else str(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, int(port)))]

    def connect(ours: socket.socket, address: Any) -> None:
        road.connect(ours, address)

    def connect_ex(ours: socket.socket, address: Any) -> int:
        try:
            road.connect(ours, address)
        except OSError as error:
            return error.errno or 111
        return 0

    wrap = ssl.SSLContext.wrap_socket

    def wrap_socket(context: ssl.SSLContext, *arguments: Any, **options: Any) -> Any:
        if ca:
            context.load_verify_locations(cadata=ca)
        return wrap(context, *arguments, **options)

    replaced: list[tuple[Any, str, Any]] = [
        (socket, "getaddrinfo", named),
        (socket, "getfqdn", lambda name="": "localhost.localdomain"),  # no host name of ours
        (socket.socket, "connect", connect),
        (socket.socket, "connect_ex", connect_ex),
        (ssl.SSLContext, "wrap_socket", wrap_socket),
    ]
    for owner, name, replacement in replaced:
        setattr(owner, name, replacement)


def forbid() -> None:
    """From here on: no connection but by the road, no program, no file but Python's own."""
    readable = tuple(os.path.realpath(path) + os.sep for path in (*sys.path, sys.base_prefix))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and not allowed(arguments):
            raise PermissionError("this file is not for messages")

    def allowed(arguments: tuple[Any, ...]) -> bool:
        path, mode, flags = arguments
        if isinstance(path, int):
            return True
        if set(str(mode or "r")) & set("wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
            return False
        return os.path.realpath(os.fsdecode(path)).startswith(readable)

    sys.addaudithook(hook)
