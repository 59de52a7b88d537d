"""Programs on the providers' interpreter, served over TLS until standard input ends."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server


def settings() -> dict[str, Any]:
    """Return what the program was started with."""
    return dict(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def serve(app: Any, given: dict[str, Any]) -> None:
    """Serve *app*; prints one line once it listens."""
    server = make_server(
        given["host"],
        given["port"],
        app,
        threaded=True,
        ssl_context=(given["certificate"], given["key"]),
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
