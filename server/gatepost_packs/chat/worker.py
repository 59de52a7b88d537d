"""
Send one message through Apprise; runs in a child process (`gatepost_packs.child`).

Apprise and its hundred providers open connections with libraries of their own. Here they get only
connections that the server has checked, opened and handed over (`ConnectionClient`). An interpreter
hook refuses every other connection, file and program. The kernel's sandbox, if there is one,
refuses the same again.
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
# Exceptions of a provider's code for unexpected answers.
PROVIDER_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class ConnectionClient:
    """The only way out: asks the server for connections, over the socket that it handed over."""

    def __init__(self, handle: int) -> None:
        self._server = socket.socket(fileno=handle)
        self._lock = threading.Lock()
        self.scheme = "https"

    def connect(self, connection: socket.socket, address: Any) -> None:
        """Replace `socket.connect`: *connection* becomes the connection that the server opened."""
        host, port = address[0], int(address[1])
        with self._lock:
            target = {"scheme": self.scheme, "host": host, "port": port}
            self._server.sendall(json.dumps(target).encode())
            space = socket.CMSG_LEN(array.array("i").itemsize)
            status, carried, _, _ = self._server.recvmsg(1, space)
        if status != b"+" or not carried:
            raise ConnectionRefusedError("the server does not connect there")
        handles = array.array("i")
        handles.frombytes(carried[0][2][: handles.itemsize])
        os.dup2(handles[0], connection.fileno())
        os.close(handles[0])
        connection.settimeout(
            connection.gettimeout()
        )  # blocking is a property of the handed-over socket


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """
    Send `body` and `title` to `url`; return `service`, `parts` sent, their number `of`, and
    `status`.

    Return `problem` instead: "url" for a URL that Apprise does not know, "long" for more than
    `max_parts` messages. `handle` is the socket that connections come from, `ca` further trusted
    certificates.
    """
    client, statuses = ConnectionClient(request["handle"]), StatusHandler()
    use_connections(client, request["ca"])
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
    plugin = apprise.Apprise.instantiate(request["url"], asset=asset)
    if plugin is None:
        return {"problem": "url"}
    client.scheme = scheme_of(plugin)
    forbid()
    service = str(plugin.service_name)
    messages = messages_of(plugin, asset, request)
    if len(messages) > request["max_parts"]:
        return {"problem": "long", "service": service, "of": len(messages)}
    parts_sent = 0
    for message in messages:
        if not delivered(plugin, message):
            break
        parts_sent += 1
    return {"service": service, "parts": parts_sent, "of": len(messages), "status": statuses.status}


class StatusHandler(logging.Handler):
    """Keeps the status of the provider's response, and nothing else that Apprise logs."""

    def __init__(self) -> None:
        super().__init__()
        self.status: int | None = None
        logger = logging.getLogger("apprise")
        logger.addHandler(self)
        logger.setLevel(logging.WARNING)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last one."""
        if match := STATUS.search(record.getMessage()):
            self.status = int(match[1])


def scheme_of(plugin: Any) -> str:
    """
    Return the scheme of its connections for the server's rules: unencrypted ones have their own.
    """
    mode = getattr(plugin, "secure_mode", None)
    if mode is not None and hasattr(plugin, "smtp_host"):
        return "http" if str(getattr(mode, "value", mode)) == "insecure" else "smtp"
    return "https" if plugin.secure else "http"


def messages_of(plugin: Any, asset: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages as the provider takes them: converted, and split if too long."""
    messages: list[dict[str, Any]] = []
    if "overflow=" not in request["url"]:
        plugin.overflow_mode = apprise.OverflowMode.SPLIT

    def collect(**message: Any) -> bool:
        messages.append(message)
        return True

    plugin.send = collect
    sender = apprise.Apprise(asset=asset)
    sender.add(plugin)
    # As text: the agent writes neither markup nor emoji names.
    sender.notify(
        body=request["body"], title=request["title"], body_format=apprise.NotifyFormat.TEXT
    )
    del plugin.send
    return messages


def delivered(plugin: Any, message: dict[str, Any]) -> bool:
    """Return whether the provider took it."""
    try:
        return bool(plugin.send(**message))
    except PROVIDER_ERRORS:
        return False


def use_connections(client: ConnectionClient, ca: str) -> None:
    """Make everything that connects use *client*, by host name, and trust *ca* as well."""

    def resolve(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else str(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, int(port)))]

    def connect(connection: socket.socket, address: Any) -> None:
        client.connect(connection, address)

    def connect_ex(connection: socket.socket, address: Any) -> int:
        try:
            client.connect(connection, address)
        except OSError as error:
            return error.errno or 111
        return 0

    wrap = ssl.SSLContext.wrap_socket

    def wrap_socket(context: ssl.SSLContext, *arguments: Any, **options: Any) -> Any:
        if ca:
            context.load_verify_locations(cadata=ca)
        return wrap(context, *arguments, **options)

    replaced: list[tuple[Any, str, Any]] = [
        (socket, "getaddrinfo", resolve),
        (socket, "getfqdn", lambda name="": "localhost.localdomain"),  # not our host name
        (socket.socket, "connect", connect),
        (socket.socket, "connect_ex", connect_ex),
        (ssl.SSLContext, "wrap_socket", wrap_socket),
    ]
    for owner, name, replacement in replaced:
        setattr(owner, name, replacement)


def forbid() -> None:
    """
    Forbid programs, foreign connections and files that are not Python's own, from now on.
    """
    readable = tuple(os.path.realpath(path) + os.sep for path in (*sys.path, sys.base_prefix))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and not allowed(arguments):
            raise PermissionError("this file is not available to messages")

    def allowed(arguments: tuple[Any, ...]) -> bool:
        path, mode, flags = arguments
        if isinstance(path, int):
            return True
        if set(str(mode or "r")) & set("wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
            return False
        return os.path.realpath(os.fsdecode(path)).startswith(readable)

    sys.addaudithook(hook)
