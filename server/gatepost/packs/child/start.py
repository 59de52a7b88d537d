"""
Where a worker begins: one question from stdin, its answer to stdout, both JSON.

Run by path, `python -I start.py WORKER.py SECONDS`, so that nothing of the server is imported.
WORKER.py defines `answer(question)`.
"""

import json
import os
import runpy
import signal
import sys


def main(worker: str, seconds: int) -> None:
    """Answer one question."""
    signal.alarm(seconds)  # where nothing else ends what a killed server leaves behind
    # What a library prints must not be taken for the answer.
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    asked = json.load(sys.stdin.buffer)
    sys.path[:] = asked["path"]
    answer = runpy.run_path(worker)["answer"](asked["question"])
    data = memoryview(json.dumps(answer).encode())
    while data:
        data = data[os.write(answers, data) :]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
