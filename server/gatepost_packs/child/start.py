"""
Entry point of a worker: requests from standard input, answers to standard output, both JSON.

Run by path, so that it imports nothing of the server:

- `python -I start.py WORKER.py SECONDS` answers one request.
- `python -I start.py --serve WORKER.py DESCRIPTOR FOLDER` imports the worker, and forks a process
  for each request that the server announces on a socket. FOLDER has `fork_loop.py` and `launch.py`.

WORKER.py defines `answer(request)`, and for the second `SAMPLE`, a request that is answered first:
what the worker imports and prepares only then, the processes have already.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def main(worker: str, seconds: int) -> None:
    """Answer one request."""
    signal.alarm(seconds)  # on systems where nothing else ends the worker of a killed server
    answers = silenced()
    request = json.load(sys.stdin.buffer)
    sys.path[:] = request["path"]
    write(answers, runpy.run_path(worker)["answer"](request["request"]))


def serve(worker: str, descriptor: int, folder: str) -> None:
    """Answer each request in a process of its own, which nothing of the others reaches."""
    os.close(silenced())
    sys.path[:] = json.load(sys.stdin.buffer)["path"]
    program = runpy.run_path(worker)
    launch = runpy.run_path(os.path.join(folder, "launch.py"))
    program["answer"](program["SAMPLE"])

    def answer_one(request: Mapping[str, Any], _descriptors: Sequence[int]) -> None:
        answers, seconds = silenced(), request["seconds"]
        launch["forbid_new_rights"]()  # and end with this process
        launch["separate"]()
        launch["forbid_processes"]()  # which could outlive this one
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(seconds)
        with open(0, "rb", closefd=False) as requests:
            write(answers, program["answer"](json.load(requests)["request"]))

    runpy.run_path(os.path.join(folder, "fork_loop.py"))["serve"](descriptor, answer_one)


def silenced() -> int:
    """Return a copy of standard output, where no text of a library must be taken for the answer."""
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.close(silence)
    return answers


def write(answers: int, answer: Any) -> None:
    """Write an answer."""
    data = memoryview(json.dumps(answer, ensure_ascii=False).encode(errors="replace"))
    while data:
        data = data[os.write(answers, data) :]


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1], int(sys.argv[2]))
