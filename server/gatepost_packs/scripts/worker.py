"""
The program of a worker process: it runs one script and exits.

Started by path (`python -I -S worker.py FOLDER…`, with the folders of starlark and of the sandbox's
`launch.py`) and without an environment, so it imports only files of the sandbox, which need nothing
else. With `--serve DESCRIPTOR` before the folders, it forks a process for each script that the
server announces there. Its messages are frames: four bytes of length, then JSON. The server trusts
none of them: a script may have found a hole in its interpreter.
"""

import json
import os
import resource
import signal
import struct
import sys
from typing import Any, NoReturn

READ, WRITE = 0, 1
STEPS_A_CHECK = 1_000
"""How often the interpreter asks whether to stop; measured, because it is not documented."""
MAX_STACK = 200
LINES_A_FRAME = 100
MAX_MESSAGE = 4_000
MEANINGS = {
    "Operation `serde::serialize`": "value",
    "Maximum depth of ": "depth",
    "Cycle detected ": "value",
    "out of memory": "memory",
    "AlignedSize must not exceed ": "memory",
}
"""
Beginnings of interpreter messages that concern no line of the script.

starlark-pyo3 has one class for all errors and no codes. The first three texts are those of
starlark-rust and anyhow, which it formats; the last two are panics of its allocator.
"""
HOST_FUNCTIONS = ("print", "call", "try_call")


class LimitReached(Exception):
    """A script reached a limit; its interpreter turns this into an error."""


class CallFailed(Exception):
    """A tool that a script called failed."""


class NoFunction(Exception):
    """The script does not have the named function."""


class Worker:
    """One run of one script."""

    def __init__(self, starlark: Any, work: dict[str, Any]) -> None:
        self.starlark = starlark
        self.work = work
        self.limits: dict[str, Any] = work["limits"]
        self.reason = "script"
        self._steps = self._printed = 0
        self._unsent: list[str] = []
        self._ground = resident_bytes()

    def run(self) -> object:
        """Return the value of the script, or of the named function."""
        starlark, work = self.starlark, self.work
        dialect = starlark.Dialect.extended()
        dialect.enable_f_strings = True
        dialect.enable_load = False
        library = starlark.LibraryExtension
        extended_globals = starlark.Globals.extended_by(
            [library.Json, library.StructType, library.Map, library.Filter, library.Partial]
        )
        options = starlark.EvalOptions(check_cancelled=self._is_over, max_callstack_size=MAX_STACK)
        module = starlark.Module()
        for name in HOST_FUNCTIONS:
            module.add_callable(name, getattr(self, name))
        parsed = starlark.parse(work["file"], work["code"], dialect)
        result = starlark.eval_with(options, module, parsed, extended_globals)
        if work["function"] is None:
            return result.value
        if not self._exports(module, work["function"]):
            raise NoFunction
        return module.freeze().call_with(options, work["function"], *work["args"]).value

    def _exports(self, module: Any, name: str) -> bool:
        """Return whether a module exports a name for something other than None."""
        try:
            return module[name] is not None
        except self.starlark.StarlarkError:
            return True  # a function, which has no value here

    def print(self, *values: object, sep: str = " ") -> None:
        """Print as a script does."""
        text = str(sep).join(map(print_form, values)) + "\n"
        self._printed += len(text.encode())
        if self._printed > self.limits["output"]:
            self.stop("output")
        self._unsent.append(text)
        if len(self._unsent) >= LINES_A_FRAME:
            self.flush()

    def flush(self) -> None:
        """Send the printed text in blocks; single lines would cost the server too much."""
        if self._unsent:
            send({"type": "print", "text": "".join(self._unsent)})
            self._unsent.clear()

    def call(self, tool: str, **arguments: object) -> object:
        """Call a tool as `call` of a script: return the tool's result, or end the script."""
        answer = self.try_call(tool, **arguments)
        if "error" in answer:
            raise CallFailed(f"{tool}: {answer['error']}")
        return answer["ok"]

    def try_call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Call a tool as `try_call` of a script: return {"ok": …} or {"error": …, "kind": …}."""
        self.flush()
        send({"type": "call", "tool": tool, "arguments": arguments})
        answer: dict[str, Any] = receive()
        return answer

    def stop(self, reason: str) -> NoReturn:
        """End the script at a limit."""
        self.reason = reason
        raise LimitReached(reason)

    def _is_over(self) -> bool:
        self._steps += STEPS_A_CHECK
        self.flush()
        if self._steps > self.limits["steps"]:
            self.reason = "steps"
        elif resident_bytes() - self._ground > self.limits["memory"]:
            self.reason = "memory"
        else:
            return False
        return True


def print_form(value: object) -> str:
    """Return a value as `print` writes it."""
    return value if isinstance(value, str) else repr(value)


def resident_bytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def confine(limits: dict[str, Any], launch: Any, memory: int | None) -> None:
    """
    Forbid files, sockets and processes, and limit memory and time, from now on.

    *memory* is what the process has mapped so far.

    Two measures: Landlock takes the rights where the kernel has it, and resource limits make them
    unavailable on other systems as well.
    """
    # Calls that wait for the server take precedence.
    os.nice(10)
    # If the server vanishes, the kernel ends this process at once, or else at this time.
    signal.setitimer(signal.ITIMER_REAL, limits["wall_s"] + 1)
    launch.forbid_new_rights()
    launch.forbid_processes()
    if launch.landlock_version():
        launch.confine({}, ())
    # At the first limit a signal gives the reason; at the second the kernel kills the process.
    lower(resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1)
    if memory is not None:
        lower(resource.RLIMIT_AS, memory + limits["memory"])
    # The last limits descriptor numbers: the two open pipes stay, and nothing new can be opened.
    for kind in (
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_CORE,
        resource.RLIMIT_NPROC,
        resource.RLIMIT_NOFILE,
    ):
        lower(kind, 0)


def mapped_bytes() -> int | None:
    """Return the memory that this process has mapped so far; None if that is unknown."""
    if not os.path.exists("/proc/self/statm"):
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def lower(kind: int, value: int, last: int | None = None) -> None:
    """Lower a resource limit, the hard limit to *last*; never raise one."""
    hard = resource.getrlimit(kind)[1]
    limit = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    last = min(value if last is None else last, limit)
    try:
        resource.setrlimit(kind, (min(value, last), last))
    except (ValueError, OSError):
        # macOS knows some limits and refuses to set them.
        if sys.platform != "darwin":
            raise


def receive() -> Any:
    """Return the next frame; end the process if there is none."""
    (size,) = struct.unpack(">I", exactly(4))
    return json.loads(exactly(size))


def exactly(size: int) -> bytes:
    """Return exactly *size* bytes."""
    pieces: list[bytes] = []
    while size:
        piece = os.read(READ, min(size, 1 << 20))
        if not piece:
            os._exit(0)
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def send(frame: dict[str, Any]) -> None:
    """Write one frame."""
    data = json.dumps(frame, ensure_ascii=False, allow_nan=False).encode()
    write(struct.pack(">I", len(data)) + data)


def write(data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(WRITE, view) :]


def failed(reason: str, message: str) -> None:
    """Report why there is no value; a long message keeps its beginning and its end."""
    if len(message) > MAX_MESSAGE:
        half = MAX_MESSAGE // 2
        message = f"{message[:half]}\n…\n{message[-half:]}"
    send({"type": "failed", "reason": reason, "message": message})


def reason_of(message: str, reason: str) -> str:
    """Return the meaning of an interpreter's message (MEANINGS), or *reason* for any other."""
    for beginning, meaning in MEANINGS.items():
        if message.startswith(beginning):
            return meaning
    return reason


def panicked(kind: type[BaseException], error: BaseException, _: object) -> None:
    """Report a panic of the interpreter, which is not an Exception and arrives here."""
    failed(reason_of(str(error), "crash"), f"{kind.__name__}: {error}")


def answer(worker: Worker) -> None:
    """Run the script and report how it ended."""
    try:
        try:
            value = worker.run()
        finally:
            worker.flush()
        data = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except worker.starlark.StarlarkError as error:
        failed(reason_of(str(error), worker.reason), str(error))
    except NoFunction:
        failed("function", "")
    except RecursionError:
        failed("depth", "")
    except MemoryError:
        failed("memory", "")
    except (TypeError, ValueError, OverflowError) as error:
        failed("value", str(error))
    else:
        if len(data) > worker.limits["output"]:
            failed("output", "")
        else:
            write(struct.pack(">I", len(data) + 26) + b'{"type":"done","value":' + data + b"  }")


def run(starlark: Any, launch: Any, memory: int | None) -> None:
    """Read the work, confine the process, and run the work."""
    work = receive()
    sys.excepthook = panicked
    worker = Worker(starlark, work)
    confine(worker.limits, launch, memory)
    answer(worker)


def serve(descriptor: int, starlark: Any, launch: Any) -> None:
    """Fork a process for each script."""
    # What the interpreter prepares for its first script, the processes have already.
    limits = {"steps": 1_000_000, "output": 1_000, "memory": 1 << 30}
    sample: dict[str, Any] = {"file": "", "code": "[json.encode({})]", "function": None, "args": []}
    Worker(starlark, sample | {"limits": limits}).run()
    memory = mapped_bytes()  # of each of them, too, which may not read it
    __import__("fork_loop").serve(descriptor, lambda *_: run(starlark, launch, memory))


def main() -> None:
    """Run one script, or serve."""
    # The paths are arguments, because this process has no installed packages.
    serves = sys.argv[1] == "--serve"
    sys.path += sys.argv[3 if serves else 1 :]
    starlark, launch = __import__("starlark"), __import__("launch")
    if serves:
        serve(int(sys.argv[2]), starlark, launch)
    else:
        run(starlark, launch, mapped_bytes())


if __name__ == "__main__":
    main()
