"""The load: wrk, driven by a generated script, its account read back."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.process import Cores
from bench.workload import CONNECTIONS, BenchEndpoint, Workload

MISSING = (
    "wrk, the load generator, is not installed: `apt-get install wrk` on Debian and Ubuntu, "
    "`dnf install wrk` on Fedora, `brew install wrk` on macOS"
)

SCRIPT = """\
local before = {before}
local after = {after}
local tokens = {{}}
local turn = 0
reused = 0
local threads = {{}}

function setup(thread)
  thread:set("place", #threads)
  threads[#threads + 1] = thread
  for _, each in ipairs(threads) do each:set("crew", #threads) end
end

function init(_)
  local path = {path}
  if path == "" then tokens = {{""}} return end
  local line_number = 0
  for line in io.lines(path) do
    -- Each thread has its own share, so that no token is sent twice before all were sent once.
    if line_number % crew == place then tokens[#tokens + 1] = line end
    line_number = line_number + 1
  end
  if #tokens == 0 then error("no tokens in " .. path) end
end

function request()
  turn = turn + 1
  if turn > #tokens then
    turn = 1
    reused = reused + 1
  end
  return before .. tokens[turn] .. after
end
"""

ACCOUNT_SCRIPT = """\
function done(summary, latency, _)
  local rounds = 0
  for _, thread in ipairs(threads) do rounds = rounds + (thread:get("reused") or 0) end
  local errors = summary.errors
  io.write(string.format(
    "bench requests=%d duration_us=%d bytes=%d p50_us=%d p99_us=%d " ..
    "refused=%d failed=%d reused=%d\\n",
    summary.requests, summary.duration, summary.bytes,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, rounds))
end
"""
"""What every script ends with, after a table `threads` of the threads."""

ACCOUNT = re.compile(r"^bench ((?:\w+=\d+ ?)+)$", re.MULTILINE)


class LoadError(Exception):
    """wrk could not be run, or what it reports cannot be used."""


@dataclass(frozen=True)
class Account:
    """What wrk counted over one interval; times in microseconds."""

    requests: int
    duration_us: int
    bytes: int
    p50_us: int
    p99_us: int
    refused: int
    """Answers with a status above 399."""
    failed: int
    """Connections that broke, and answers that never came."""
    reused: int
    """How often a thread started over with its tokens."""

    @property
    def rate(self) -> float:
        """Return the answers a second."""
        return self.requests / (self.duration_us / 1e6) if self.duration_us else 0.0


def quoted(text: str) -> str:
    """Return a Lua string of a JSON-safe text (Lua 5.1 reads the escapes that JSON writes here)."""
    return json.dumps(text)


def script(workload: Workload, endpoint: BenchEndpoint, tokens: Path | None) -> str:
    """Return the Lua script that sends one workload, cycling through a file of tokens."""
    lines = [f"POST {endpoint.path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in workload.headers(endpoint).items()]
    lines.append(f"Content-Length: {len(workload.body)}")
    head = "\r\n".join(lines)
    body = f"\r\n\r\n{workload.body.decode()}"
    if tokens is None:
        return cycling(head, body, None)
    return cycling(f"{head}\r\nAuthorization: Bearer ", body, tokens)


def cycling(before: str, after: str, path: Path | None) -> str:
    """Return the script that sends the lines of a file in turn, with a text before and after."""
    file = quoted("" if path is None else str(path))
    return SCRIPT.format(before=quoted(before), after=quoted(after), path=file) + ACCOUNT_SCRIPT


def parse(output: str) -> Account:
    """Parse the account in wrk's output; raise LoadError when there is none."""
    match = ACCOUNT.search(output)
    if not match:
        raise LoadError(f"wrk reported nothing: {output.strip()[-300:]}")
    return Account(**{k: int(v) for k, v in (pair.split("=") for pair in match[1].split())})


def program() -> str:
    """Return where wrk is; raise LoadError with how to install it."""
    path = shutil.which("wrk")
    if path is None:
        raise LoadError(MISSING)
    return path


def load(
    url: str,
    path: Path,
    *,
    seconds: int,
    cores: Cores,
    connections: int = CONNECTIONS,
    threads: int = 1,
) -> Account:
    """Run a script against a URL for a number of whole seconds, pinned to the load's core."""
    sizes = [f"-t{threads}", f"-c{connections}", f"-d{seconds}s"]
    command = [program(), *sizes, "-s", str(path), url]
    # The pipe is read by communicate(); wrk prints a dozen lines.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    cores.pin_load(process.pid)
    output, _ = process.communicate(timeout=seconds + 60)
    if process.returncode:
        raise LoadError(f"wrk ended with {process.returncode}: {output.strip()[-300:]}")
    return parse(output)
