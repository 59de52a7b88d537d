"""
Give up every right that a program does not need, and then execute the program.

This runs in a process of its own, started as a file by `python -I -S`: for one program, or with
`--serve DESCRIPTOR MARK` for one after another (`fork_loop`). It imports only the standard library,
and little of it, because a program waits for the imports. To do the same in a process that the
server forked would run Python between fork and exec, which may deadlock in a process with threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys

# The same as in `typing`, whose import takes 10 milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

# Since 5.13; the same numbers on every architecture (landlock(7)).
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
PATH_BENEATH, NET_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FIRST = (1 << 13) - 1
"""All rights of the first version, including those for devices, sockets, pipes and links."""
ADDED_RIGHTS = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1

ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ_RIGHTS = READ_FILE | READ_DIR
RUN_RIGHTS = READ_RIGHTS | EXECUTE
WRITES = (
    READ_RIGHTS | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
)
"""Without links and devices, and without the right to execute what was written."""

NOT_STARTED = 126
"""The exit code if the program could not be started, as in a shell."""
NEW_NETWORK = 0x40000000
NO_NEW_PRIVS, DEATH_SIGNAL, SIGKILL, SIGPIPE = 38, 1, 9, 13
SECCOMP, FILTER, AF_UNIX = 22, 2, 1
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""By machine: how the kernel names its calls (seccomp(2))."""
CALLS = {
    "socket": {"x86_64": 41, "aarch64": 198},
    "prlimit64": {"x86_64": 302, "aarch64": 261},
    "setrlimit": {"x86_64": 160, "aarch64": 164},
    "setpriority": {"x86_64": 141, "aarch64": 140},
    "ioprio_set": {"x86_64": 251, "aarch64": 30},
    "sched_setparam": {"x86_64": 142, "aarch64": 118},
    "sched_setscheduler": {"x86_64": 144, "aarch64": 119},
    "sched_setaffinity": {"x86_64": 203, "aarch64": 122},
    "sched_setattr": {"x86_64": 314, "aarch64": 274},
}
STARTS_OF_PROCESSES = {"x86_64": (56, 57, 58, 435), "aarch64": (220, 435)}
"""clone, fork, vfork and clone3."""
SETUP_OF_URING, OTHER_CALLS = 425, 0x40000000
"""io_uring makes sockets too, and x86-64 has a second number for each call (x32)."""
LOAD, EQUALS, GREATER_OR_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
CALL, ARCHITECTURE, ARGUMENTS = 0, 4, 16
STEP_BYTES = 8
"""The size of a step of a filter."""
ALLOWED, MISSING = 0x7FFF0000, 0x00050000 | errno.ENOSYS
DENIED, FORBIDDEN = 0x00050000 | errno.EACCES, 0x00050000 | errno.EPERM
MARK_LIMIT = 10
"""
RLIMIT_LOCKS, which limits nothing since Linux 2.4.25. Children inherit its value, and the filter
refuses to change it: so it shows which program a process belongs to.
"""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


_libc = ctypes.CDLL(None, use_errno=True)
_filters: dict[bool, bytes] = {}
"""The filters of calls, for programs with and without networks."""


def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(int(_libc.syscall(CREATE_RULESET, None, 0, VERSION_FLAG)), 0)


def handled(version: int) -> tuple[int, int, int]:
    """Return what a version can restrict: files, TCP ports, and access beyond the sandbox."""
    files = FIRST
    for since, right in ADDED_RIGHTS.items():
        files |= right if version >= since else 0
    net = BIND_TCP | CONNECT_TCP if version >= 4 else 0
    scoped = ABSTRACT_SOCKETS | SIGNALS if version >= 6 else 0
    return files, net, scoped


def confine(paths: Mapping[int, Iterable[str]], ports: Iterable[int] | None) -> None:
    """
    Restrict the process to *paths*, each list with its rights, and to TCP connections to *ports*.

    With None, TCP connections are not restricted. Raises OSError if the kernel refuses. A path that
    does not exist is skipped.
    """
    version = landlock_version()
    files, net, scoped = handled(version)
    net = 0 if ports is None else net
    rules = _ruleset(version, files, net, scoped)
    for rights, folders in paths.items():
        for path in folders:
            _allow(rules, path, rights & files)
    if net and ports is not None:
        for port in ports:
            _call(ADD_RULE, rules, NET_PORT, _number(CONNECT_TCP) + _number(port), 0)
    _call(RESTRICT_SELF, rules, 0)
    os.close(rules)


def separate() -> None:
    """
    Keep a confined process from signalling and tracing others that have the same rules.

    Further rules make a domain of its own (landlock(7)). They leave it what it may read.
    """
    if version := landlock_version():
        files, _, scoped = handled(version)
        rules = _ruleset(version, files & ~READ_RIGHTS, 0, scoped)
        _call(RESTRICT_SELF, rules, 0)
        os.close(rules)


def _ruleset(version: int, files: int, net: int, scoped: int) -> int:
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    handled_rights = b"".join(_number(word) for word in (files, net, scoped))
    return _call(CREATE_RULESET, handled_rights[:size], size, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= ON_FILES
        _call(ADD_RULE, rules, PATH_BENEATH, _number(rights) + _number(handle, 4), 0)
    finally:
        os.close(handle)


def _number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, sys.byteorder)


def _call(number: int, *arguments: int | bytes) -> int:
    c_arguments = [
        ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments
    ]
    result = int(_libc.syscall(ctypes.c_long(number), *c_arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def forbid_new_rights() -> None:
    """Keep the process and its programs from gaining rights, and end them with the server."""
    if sys.platform == "linux":
        _libc.prctl(DEATH_SIGNAL, SIGKILL, 0, 0, 0)
        if _libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")


def end_first() -> None:
    """
    Have the kernel end this program before the server if the machine has no memory left.

    Memory that processes share counts against no limit of a process.
    """
    try:
        # As text, it would import an encoding.
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
            score.write(b"1000")
    except OSError:
        return  # not Linux, or not shown


def leave_network() -> None:
    """Move into a network without interfaces, if the server has the right to do so."""
    if sys.platform == "linux":
        _libc.unshare(NEW_NETWORK)


def filter_calls(*, offline: bool) -> None:
    """
    Refuse calls that change other processes, and with *offline* sockets of every network.

    The programs of a server run as its user, who may limit and slow down all its processes, the
    server too; Landlock knows TCP alone, and leaving the network takes rights that a server should
    not have. A kernel or a machine that cannot do this leaves what there is (seccomp(2)).
    """
    _add_filter(filter_of(offline=offline))


def forbid_processes() -> None:
    """Refuse to start processes and threads; as a limit, this would not hold for root."""
    machine = os.uname().machine
    if sys.platform == "linux" and machine in ARCHITECTURES:
        steps = _first_steps(machine)
        for number in STARTS_OF_PROCESSES[machine]:
            steps += [(EQUALS, 0, 1, number), (RETURN, 0, 0, FORBIDDEN)]
        _add_filter(_packed([*steps, (RETURN, 0, 0, ALLOWED)]))


def _add_filter(steps: bytes) -> None:
    if steps:
        code = ctypes.create_string_buffer(steps)
        program = struct.pack("@HP", len(steps) // STEP_BYTES, ctypes.addressof(code))
        _libc.prctl(SECCOMP, FILTER, ctypes.c_char_p(program), 0, 0)


def filter_of(*, offline: bool) -> bytes:
    """Return the steps of that filter, which are kept; none where its numbers are not known."""
    machine = os.uname().machine
    if sys.platform == "linux" and machine in ARCHITECTURES and offline not in _filters:
        _filters[offline] = _filter(machine, offline=offline)
    return _filters.get(offline, b"")


def _first_steps(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the steps that refuse calls by other numbers, and load the number."""
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUALS, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, MISSING),
        (LOAD, 0, 0, CALL),
        (GREATER_OR_EQUAL, 0, 1, OTHER_CALLS),
        (RETURN, 0, 0, MISSING),
    ]


def _packed(steps: Iterable[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _filter(machine: str, *, offline: bool) -> bytes:
    steps = _first_steps(machine)
    # Argument 0 is which process or group; of those with two, 0 is whether it is a whole user.
    steps += _only(machine, "prlimit64", FORBIDDEN, argument=0, allowed=(0,))
    for name in ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        steps += _only(machine, name, FORBIDDEN, argument=0, allowed=(0,))
    for name, itself in (("setpriority", (0, 1)), ("ioprio_set", (1, 2))):
        steps += _only(machine, name, FORBIDDEN, argument=0, allowed=itself)
        steps += _only(machine, name, FORBIDDEN, argument=1, allowed=(0,))
    steps += _refuse_value(machine, "prlimit64", FORBIDDEN, argument=1, refused=MARK_LIMIT)
    steps += _refuse_value(machine, "setrlimit", FORBIDDEN, argument=0, refused=MARK_LIMIT)
    if offline:
        steps += [(EQUALS, 0, 1, SETUP_OF_URING), (RETURN, 0, 0, MISSING)]
        steps += _only(machine, "socket", DENIED, argument=0, allowed=(AF_UNIX,))
    return _packed([*steps, (RETURN, 0, 0, ALLOWED)])


def _only(
    machine: str, name: str, refusal: int, *, argument: int, allowed: tuple[int, ...]
) -> list[tuple[int, int, int, int]]:
    """Return the steps that refuse a call unless an argument has one of the allowed values."""
    tests = [(EQUALS, len(allowed) - at, 0, value) for at, value in enumerate(allowed)]
    inner = [(LOAD, 0, 0, ARGUMENTS + 8 * argument), *tests, (RETURN, 0, 0, refusal)]
    return _skip_unless(machine, name, inner)


def _refuse_value(
    machine: str, name: str, refusal: int, *, argument: int, refused: int
) -> list[tuple[int, int, int, int]]:
    """Return the steps that refuse a call if an argument has a value."""
    inner = [
        (LOAD, 0, 0, ARGUMENTS + 8 * argument),
        (EQUALS, 0, 1, refused),
        (RETURN, 0, 0, refusal),
    ]
    return _skip_unless(machine, name, inner)


def _skip_unless(
    machine: str, name: str, inner: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return steps that count for one call alone, and leave its number in the register."""
    return [(EQUALS, 0, len(inner) + 1, CALLS[name][machine]), *inner, (LOAD, 0, 0, CALL)]


def _limit(limits: Mapping[str, int]) -> None:
    for name, limit in {"CORE": 0, **limits}.items():
        kind = MARK_LIMIT if name == "LOCKS" else getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            continue  # macOS has some limits that it refuses to set


def _enter_folder(root: str, folder: Sequence[str]) -> None:
    """Enter the folder name by name, without following a link that replaced a checked folder."""
    handle = os.open(root, DIRECTORY)
    for name in folder:
        subfolder = os.open(name, DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = subfolder
    os.fchdir(handle)
    os.close(handle)


def execute(words: Sequence[str], env: Mapping[str, str]) -> None:
    """
    Execute a program: *words* are `name=value`, repeated if needed, then `--` and the command.

    The names are those of `Confined`; values of `handles` and `limits` contain a colon.
    """
    separator = list(words).index("--")
    settings: dict[str, list[str]] = {}
    for word in words[:separator]:
        name, _, value = word.partition("=")
        settings.setdefault(name, []).append(value)
    os.umask(0o077)
    for descriptor, known_as in _pairs(settings.get("handles", ())):
        if descriptor != known_as:
            os.dup2(int(descriptor), int(known_as))
            os.close(int(descriptor))
    _enter_folder(settings["root"][0], settings.get("folder", ()))
    _limit({name: int(limit) for name, limit in _pairs(settings.get("limits", ()))})
    # Python ignores SIGPIPE, and a program would go on after its reader is gone.
    _libc.signal(SIGPIPE, None)
    if "offline" in settings:
        leave_network()
    end_first()
    forbid_new_rights()
    filter_calls(offline="offline" in settings)
    if "confine" in settings:
        paths = {
            RUN_RIGHTS: settings.get("runs", ()),
            READ_RIGHTS: settings.get("reads", ()),
            WRITES: settings.get("writes", ()),
            READ_FILE | WRITE_FILE: settings.get("devices", ()),
        }
        ports = [int(port) for port in settings.get("ports", ())]
        confine(paths, None if "network" in settings else ports)
    argv = list(words[separator + 1 :])
    os.execve(argv[0], argv, env)  # noqa: S606 - there is no shell to leave out


def _pairs(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    for value in values:
        left, _, right = value.partition(":")
        yield left, right


def _serve(descriptor: int, mark: int) -> None:
    """Execute programs that the server asks for; they share what is done here, and the mark."""

    def start(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        handles = zip(descriptors, request["handles"], strict=True)
        words = [f"handles={inherited}:{known_as}" for inherited, known_as in handles]
        execute([*words, *request["words"]], request["env"])

    for offline in (False, True):
        filter_of(offline=offline)
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    process_mark, fork_loop = __import__("process_mark"), __import__("fork_loop")
    _limit({"LOCKS": mark})
    try:
        fork_loop.serve(descriptor, start)
    finally:
        # Those that have left the groups of their programs, or were started by forks of them.
        process_mark.kill_marked(mark)


if __name__ == "__main__":
    try:
        if sys.argv[1] == "--serve":
            _serve(int(sys.argv[2]), int(sys.argv[3]))
        else:
            execute(sys.argv[1:], os.environ)
    except OSError as failure:
        # One line, as a shell prints it, without the path of this file.
        sys.stderr.write(f"cannot start: {failure.strerror}\n")
        sys.exit(NOT_STARTED)
