"""
Entry point of a worker: one request from stdin, its answer to stdout, both JSON.

Run by path, `python -I start.py WORKER.py SECONDS`, so that it imports nothing of the server.
WORKER.py defines `answer(request)`.
"""

import json
import os
import runpy
import signal
import sys


def main(worker: str, seconds: int) -> None:
    """Answer one request."""
    signal.alarm(seconds)  # on systems where nothing else ends the worker of a killed server
    # Text that a library prints must not be taken for the answer.
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    request = json.load(sys.stdin.buffer)
    sys.path[:] = request["path"]
    answer = runpy.run_path(worker)["answer"](request["request"])
    data = memoryview(json.dumps(answer, ensure_ascii=False).encode(errors="replace"))
    while data:
        data = data[os.write(answers, data) :]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
