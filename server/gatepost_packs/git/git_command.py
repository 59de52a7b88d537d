"""Run one git command from its plan to its answer: inspect, connect, run, count."""

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gatepost import CallContext, ToolFailure, Workspace, WorkspaceUsage
from gatepost.sandbox import SYSTEM, Confined, ProcessResult, run
from gatepost_packs.git import repository
from gatepost_packs.git.concurrency import limit, tenant_lock
from gatepost_packs.git.policy import GitPlan
from gatepost_packs.git.process_environment import GitDirectories, fixed, program, variables
from gatepost_packs.git.progress import GitProgress, without_progress
from gatepost_packs.git.remote_access import RemoteAccess, access_to, handed
from gatepost_packs.git.repository_configuration import Configuration
from gatepost_packs.git.settings import GitSettings
from gatepost_packs.git.url import RemoteUrl

AREA = "git"
MEMORY_BYTES = 2_000_000_000
LEFTOVER_S = 3600
STALE_S = 60.0
"""The age from which a lock counts as abandoned."""
LOOK_S = 1.0
"""Seconds between two counts of what a running command has written; more if counting takes long."""

TOO_LARGE = os.strerror(errno.EFBIG).encode()
"""Git's message when a file exceeds the free space."""

HINTS = {
    "could not read Username": (
        "This host requires a sign-in, and the tenant has none. An operator can name a secret "
        "in [packs.git] credentials; over SSH, the key of ssh_public_key signs in."
    ),
    "Authentication failed": "This host does not accept the tenant's secret.",
    "Permission denied (publickey)": (
        "Add the key that ssh_public_key shows to the account, or as a deploy key, at this host."
    ),
    "Host key verification failed": (
        "The host's key is unknown or differs from the known one. An operator can add hosts to "
        "[packs.ssh] known_hosts."
    ),
    "Another git process seems to be running": (
        "The lock of a stopped command is removed after a minute. Try again then."
    ),
    "error: 302": "Redirects are not followed. Use the current URL of the repository.",
    "error: 301": "Redirects are not followed. Use the current URL of the repository.",
}
"""Hints for a model, added to git's own message."""

CREATING = frozenset({"clone", "init"})


class GitResult(msgspec.Struct, frozen=True):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


async def perform(ctx: CallContext, plan: GitPlan, timeout_s: int) -> GitResult:
    """Run *plan* in the tenant's workspace; ToolFailure if it may not run or took too long."""
    async with limit(ctx.caller.tenant_id), _ground(ctx.workspace) as ground:
        if plan.reads:
            return await _Run(ctx, plan, ground, timeout_s).answer()
        async with tenant_lock(ground.home):
            return await _Run(ctx, plan, ground, timeout_s).answer()


@asynccontextmanager
async def _ground(workspace: Workspace) -> AsyncIterator[GitDirectories]:
    area = workspace.area(AREA)
    root, home = await workspace.real_path(), await area.real_path()
    if not (home / "gitconfig").exists():
        await area.write_new("gitconfig", FIRST_SETTINGS)
    for leftover in home.glob("run-*"):
        # Only a killed server leaves a lock, because no call takes that long.
        with contextlib.suppress(FileNotFoundError):  # that of a call that just ended
            if leftover.stat().st_mtime < time.time() - LEFTOVER_S:
                shutil.rmtree(leftover, ignore_errors=True)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=home))
    try:
        yield GitDirectories(root, home, run)
    finally:
        shutil.rmtree(run, ignore_errors=True)


FIRST_SETTINGS = b"""[init]
\tdefaultBranch = main
[user]
\tname = Gatepost
\temail = workspace@gatepost.invalid
"""
"""Makes a first commit work; `git config --global` changes them."""


class _Run:
    """One command; its caller holds the lock and the semaphores."""

    def __init__(
        self, ctx: CallContext, plan: GitPlan, ground: GitDirectories, timeout_s: int
    ) -> None:
        self.ctx, self.plan, self.ground, self.timeout_s = ctx, plan, ground, timeout_s
        self.folder = ground.root.joinpath(*plan.folder)
        self.target = None if plan.target is None else self.folder.joinpath(*plan.target)
        self.existed = self.filled = False
        """Whether the target of a clone existed before, and whether it was empty."""
        self.began = 0.0
        self.over = False

    async def answer(self) -> GitResult:
        """Run the command as `perform` describes."""
        try:
            configuration = await asyncio.to_thread(self._looked_at)
        except (FileNotFoundError, NotADirectoryError):
            # A tool deleted it meanwhile, or a file is where a folder should be.
            message = "The target is not a folder, or is being changed. List it, and try again."
            raise ToolFailure("conflict", message, field="args") from None
        if not self.plan.reads:
            # If a server is killed, its git dies as well, and the lock remains. No other tool
            # writes at the same time, and a person who works here by hand has finished by then.
            git, until = self.folder / repository.GIT, time.time() - STALE_S
            await asyncio.to_thread(repository.unlocked, git, 0.0, until)
        remotes = self._remotes(configuration)
        quota = await self._quota()
        access = await access_to(self.ctx, remotes, self.ground) if remotes else RemoteAccess()
        self.began = time.time()
        process: ProcessResult | None = None
        try:
            with handed(access.secret) as (settings, handles):
                process = await self._watched(self._program(access, settings, handles, quota))
            return self._result(process)
        except TimeoutError:
            raise self._timeout() from None
        finally:
            if not self.plan.reads and (process is None or process.code != 0):
                await self._undo(stopped=process is None)

    async def _undo(self, *, stopped: bool) -> None:
        """Remove what a failed or stopped command must not leave behind."""
        if self.plan.command == "clone" and self.target is not None:
            if not self.filled:
                await asyncio.shield(
                    asyncio.to_thread(repository.emptied, self.target, self.existed)
                )
                await self.ctx.workspace.usage()
        elif stopped:
            git = self.folder / repository.GIT
            await asyncio.shield(asyncio.to_thread(repository.unlocked, git, self.began))

    def _looked_at(self) -> Configuration | None:
        """Return the repository's configuration after inspecting all that git will read."""
        plan = self.plan
        target = (*plan.folder, *(plan.target or ()))
        repository.require_plain(self.ground.root, target)
        if not self.folder.is_dir():
            shown_path = "/".join(("/workspace", *plan.folder))
            raise ToolFailure("not_found", f"There is no folder {shown_path}.", field="args")
        configuration = repository.configuration_at(self.folder)
        if self.target is not None and self.target.exists():
            if not self.target.is_dir():
                message = f"{'/'.join(('/workspace', *target))} is a file, not a folder."
                raise ToolFailure("validation", message, field="args")
            self.existed, self.filled = True, any(self.target.iterdir())
            if self.target != self.folder:
                repository.configuration_at(self.target)
            if "--bare" in plan.argv:
                repository.require_empty(self.target)
        if configuration is None and not self._anywhere():
            raise repository.missing(self.ground.root, plan.folder)
        return configuration

    def _anywhere(self) -> bool:
        """Return whether it needs no repository."""
        return self.plan.command in CREATING or (
            self.plan.command == "config" and "--global" in self.plan.argv
        )

    def _remotes(self, configuration: Configuration | None) -> list[RemoteUrl]:
        """Return all remotes that the command may use."""
        plan = self.plan
        if not plan.network:
            return []
        if plan.remote is not None:
            return [plan.remote]
        if configuration is None:
            return []
        if plan.named is None:
            every = [url for urls in configuration.remotes.values() for url in urls]
            if not every:
                message = "There is no remote yet: remote add origin URL."
                raise ToolFailure("not_found", message, field="args")
            return list(dict.fromkeys((*every, *configuration.other_urls)))
        remote_urls = configuration.remotes.get(plan.named, ())
        if not remote_urls:
            names = ", ".join(configuration.remotes) or "none yet"
            message = f"There is no remote {plan.named!r}. There are: {names}."
            raise ToolFailure("not_found", message, field="args")
        return list(dict.fromkeys(remote_urls))

    async def _quota(self) -> WorkspaceUsage:
        """
        Return the bytes that may still be written; in a full workspace no writing command starts.
        """
        if self.plan.reads:
            return WorkspaceUsage(0, 0)
        quota = await self.ctx.workspace.room()
        if quota.bytes <= 0 or quota.files <= 0:
            raise ToolFailure("denied", "The workspace is full. Delete something first.")
        return quota

    def _program(
        self,
        access: RemoteAccess,
        credentials: dict[str, str],
        handles: tuple[tuple[int, int], ...],
        quota: WorkspaceUsage,
    ) -> Confined:
        plan, ground = self.plan, self.ground
        git = program()
        if git is None:
            message = "git is not installed on the server. The operator can install it."
            raise ToolFailure("upstream_unavailable", message)
        settings = {} if plan.command == "config" else fixed() | access.settings | credentials
        env = variables(
            ground,
            work_tree=not self._anywhere(),
            protocols=access.protocols,
            reads=plan.reads,
            settings=settings,
        )
        argv = list(plan.argv)
        if plan.network:
            argv.insert(1, "--progress")
        where = (str(ground.root), str(ground.home))
        limits = {"CPU": self.timeout_s + 5, "AS": MEMORY_BYTES, "NOFILE": 1024, "NPROC": 8192}
        if not plan.reads:
            limits["FSIZE"] = quota.bytes
        return Confined(
            argv=(git, "--no-pager", *argv),
            env=env | access.env,
            root=str(ground.root),
            folder=plan.folder,
            reads=(*access.reads, *(where if plan.reads else ())),
            writes=(str(ground.run),) if plan.reads else where,
            ports=access.ports,
            limits=limits,
            handles=handles,
            runs=(*SYSTEM, str(Path(git).resolve().parents[1])),
        )

    async def _watched(self, confined: Confined) -> ProcessResult:
        """Run it, report progress, and stop it when it writes more than there is room for."""
        progress = GitProgress(self.ctx.progress)
        running = asyncio.create_task(
            run(
                confined,
                timeout_s=self.timeout_s,
                max_bytes=self.ctx.settings(GitSettings).max_output_bytes,
                on_stderr=progress.receive,
            )
        )
        reporting = asyncio.create_task(progress.report())
        counting = asyncio.create_task(self._count())
        try:
            await asyncio.wait({running, counting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, reporting, counting):
                task.cancel()
            # The command is over only when the program and its children have ended.
            await asyncio.gather(running, reporting, counting, return_exceptions=True)
        if self.over:
            raise self._full()
        process = running.result()
        if not self.plan.reads:
            self.over = await self._is_over() or (process.code != 0 and TOO_LARGE in process.err)
            if self.over:
                raise self._full()
        return process

    async def _count(self) -> None:
        """Return when too much has been written."""
        if self.plan.reads:
            await asyncio.Event().wait()
        while not self.over:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            self.over = await self._is_over()
            await asyncio.sleep(4 * (time.monotonic() - began - LOOK_S))

    async def _is_over(self) -> bool:
        quota = await self.ctx.workspace.room()
        return quota.bytes < 0 or quota.files < 0

    def _full(self) -> ToolFailure:
        message = f"git {self.plan.command} would need more room than the workspace has. "
        if self.plan.command == "clone":
            message += "Nothing of it was kept. Try --depth=1 --single-branch, or make room."
        else:
            message += "It was stopped or finished part way. Delete files that you do not need."
        return ToolFailure("denied", message)

    def _timeout(self) -> ToolFailure:
        message = (
            f"git {self.plan.command} did not finish within {self.timeout_s} seconds (timeout_s) "
            "and was stopped. "
        )
        if self.timeout_s < 300:
            message += "Call again with a larger timeout_s, at most 300"
        else:
            message += "Do less at once"
        return ToolFailure(
            "timeout", message + (", or with --depth=1." if self.plan.network else ".")
        )

    def _result(self, process: ProcessResult) -> GitResult:
        err = without_progress(self._output_text(process.err, process.cut[1]))
        if process.code != 0:
            err += "".join(f"hint: {hint}\n" for phrase, hint in HINTS.items() if phrase in err)
        return GitResult(process.code, self._output_text(process.out, process.cut[0]), err)

    def _output_text(self, data: bytes, cut: bool) -> str:
        text = data.decode("utf-8", "ignore" if cut else "replace")
        for real, shown_path in ((self.ground.root, "/workspace"), (self.ground.home, "~")):
            text = text.replace(str(real), shown_path)
        if cut:
            text += (
                f"\n[Cut: these are the first {len(data)} bytes. Ask for less: --max-count, "
                "--stat, --name-only, or a path.]"
            )
        return text
