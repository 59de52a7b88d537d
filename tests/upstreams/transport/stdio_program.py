"""
A stdio server that needs nothing but Python, and behaves as its argument says.

It answers `tools/call` by the name of the tool: `CALLS`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BEHAVIOUR = json.loads(sys.argv[1])
LOCK = threading.Lock()


def say(**message: object) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value: object) -> dict[str, object]:
    return {"content": [{"type": "text", "text": json.dumps(value)}]}


def child(*options: object) -> int:
    """Start a process that outlives this one: it leaves the group, or ignores the signal."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    started = subprocess.Popen(
        [sys.executable, "-I", "-c", code], start_new_session="leave" in options
    )
    return started.pid


def tried(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"


def connect() -> None:
    socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), timeout=5).close()


def datagram() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))


def memory() -> str:
    try:
        bytearray(600_000_000)
    except MemoryError:
        return "MemoryError"
    return "done"


def printed() -> str:
    sys.stdout.write("Debug: hello\n{not json}\n" + "x" * 200_000 + "\n")
    return "printed"


def logged(line: str) -> str:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    return "logged"


def changed() -> str:
    say(method="notifications/tools/list_changed")
    return "changed"


def crash() -> None:
    os._exit(3)


CALLS: dict[str, Any] = {
    "pid": os.getpid,
    "environment": lambda: dict(os.environ),
    "children": lambda: [child(), child("leave")],
    "reach": lambda: [tried(connect), tried(datagram)],
    "read": lambda path: tried(lambda: open(path).close()),
    "run": lambda argv: tried(lambda: subprocess.run(argv, check=False)),
    "memory": memory,
    "crash": crash,
    "print": printed,
    "large": lambda: "x" * 3_000_000,
    "log": logged,
    "change": changed,
}


def call(identity: object, name: str, arguments: dict[str, Any]) -> None:
    """Do what the tool's name says; an unknown one says its own name."""
    if name == "silence":
        return
    if name == "ask":
        say(id=f"q{identity}", method="elicitation/create", params={"message": "?"})
        WAITING_CALLS.append(identity)
    elif name == "slow":
        answer = {"id": identity, "result": text("slow")}
        threading.Timer(0.5, say, (), answer).start()
    else:
        say(id=identity, result=text(CALLS.get(name, lambda: name)(**arguments)))


WAITING_CALLS: list[object] = []


def take(message: dict[str, Any]) -> None:
    method, identity = message.get("method"), message.get("id")
    if method == "server/discover":
        if "dies early" in BEHAVIOUR:
            os._exit(1)
        if "modern" in BEHAVIOUR:
            say(id=identity, result={"supportedVersions": ["2026-07-28"], "capabilities": {}})
        else:
            say(id=identity, error={"code": -32601, "message": "Method not found"})
    elif method == "initialize":
        if "never starts" in BEHAVIOUR:
            os._exit(1)
        version = "2025-06-18"
        info = {"name": "program", "version": "1"}
        say(
            id=identity, result={"protocolVersion": version, "capabilities": {}, "serverInfo": info}
        )
    elif method == "tools/call":
        params = message["params"]
        call(identity, params["name"], params["arguments"])
    elif method == "notifications/cancelled":
        sys.stderr.write(f"cancelled {message['params']['requestId']}\n")
        sys.stderr.flush()
    elif method is None and WAITING_CALLS:
        outcome = message.get("result") or message.get("error")
        say(id=WAITING_CALLS.pop(0), result=text(outcome))


def main() -> None:
    if "ignores SIGTERM" in BEHAVIOUR:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        take(json.loads(line))
    if "ignores SIGTERM" in BEHAVIOUR:
        while True:
            time.sleep(60)


main()
