"""One command from its plan to its answer: look, reach, run, count."""

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

from gatepost.packs.git import repository
from gatepost.packs.git.configuration import Configuration
from gatepost.packs.git.environment import Ground, fixed, program, variables
from gatepost.packs.git.policy import Plan
from gatepost.packs.git.progress import Progress, without
from gatepost.packs.git.road import Road, handed, road_to
from gatepost.packs.git.settings import GitSettings
from gatepost.packs.git.turn import place, turn
from gatepost.packs.git.url import Remote
from gatepost.sandbox.child import SYSTEM, Confined, Ended, run
from gatepost.tools.api import CallContext, ToolFailure
from gatepost.tools.surroundings import Usage, Workspace

AREA = "git"
MEMORY_BYTES = 2_000_000_000
LEFT_S = 3600
LOOK_S = 1.0
"""Seconds between two looks at how much a running command has written; longer where they are."""

TOO_LARGE = os.strerror(errno.EFBIG).encode()
"""As git tells it: a file grew beyond the room there was."""

HINTS = {
    "could not read Username": (
        "This host wants a sign-in, and there is none for this tenant. An operator names a secret "
        "in [packs.git] credentials; by SSH, the key of ssh_public_key signs in."
    ),
    "Authentication failed": "The tenant's secret for this host is not accepted there.",
    "Permission denied (publickey)": (
        "Add the key that ssh_public_key shows to the account, or as a deploy key, at this host."
    ),
    "Host key verification failed": (
        "The key of this host is not the known one, or none is known. An operator adds hosts to "
        "[packs.ssh] known_hosts."
    ),
    "error: 302": "Redirects are not followed. Use the URL that the repository has now.",
    "error: 301": "Redirects are not followed. Use the URL that the repository has now.",
}
"""What a model can do about git's words, beside them."""

NEW = frozenset({"clone", "init"})


class Done(msgspec.Struct, frozen=True):
    """What a command answered."""

    returncode: int
    stdout: str
    stderr: str


async def perform(ctx: CallContext, plan: Plan, timeout_s: int) -> Done:
    """Run *plan* in the tenant's workspace; ToolFailure when it may not, or took too long."""
    async with place(ctx.caller.tenant_id), _ground(ctx.workspace) as ground:
        if plan.reads:
            return await _Run(ctx, plan, ground, timeout_s).answer()
        async with turn(ground.home):
            return await _Run(ctx, plan, ground, timeout_s).answer()


@asynccontextmanager
async def _ground(workspace: Workspace) -> AsyncIterator[Ground]:
    area = workspace.area(AREA)
    root, home = await workspace.place(), await area.place()
    if not (home / "gitconfig").exists():
        await area.write_new("gitconfig", FIRST_SETTINGS)
    for left in home.glob("run-*"):
        # Only a server that was killed leaves one: no call takes that long.
        with contextlib.suppress(FileNotFoundError):  # that of a call that just ended
            if left.stat().st_mtime < time.time() - LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=home))
    try:
        yield Ground(root, home, run)
    finally:
        shutil.rmtree(run, ignore_errors=True)


FIRST_SETTINGS = b"""[init]
\tdefaultBranch = main
[user]
\tname = Gatepost
\temail = workspace@gatepost.invalid
"""
"""So that a first commit works; `git config --global` changes them."""


class _Run:
    """One command; its turn and its places are held by whoever makes it."""

    def __init__(self, ctx: CallContext, plan: Plan, ground: Ground, timeout_s: int) -> None:
        self.ctx, self.plan, self.ground, self.timeout_s = ctx, plan, ground, timeout_s
        self.folder = ground.root.joinpath(*plan.folder)
        self.made = None if plan.target is None else self.folder.joinpath(*plan.target)
        self.kept = self.filled = False
        """Whether the place of a clone was there before, and whether anything was in it."""
        self.began = 0.0
        self.over = False

    async def answer(self) -> Done:
        """See `perform`."""
        try:
            configuration = await asyncio.to_thread(self._looked_at)
        except (FileNotFoundError, NotADirectoryError):
            # Somebody deletes it meanwhile, or a file stands where a folder should be.
            message = "What stands there is no folder, or is being changed. List it, and try again."
            raise ToolFailure("conflict", message, field="args") from None
        remotes = self._remotes(configuration)
        room = await self._room()
        road = await road_to(self.ctx, remotes, self.ground) if remotes else Road()
        self.began = time.time()
        ended: Ended | None = None
        try:
            with handed(road.secret) as (settings, handles):
                ended = await self._watched(self._program(road, settings, handles, room))
            return self._done(ended)
        except TimeoutError:
            raise self._late() from None
        finally:
            if not self.plan.reads and (ended is None or ended.code != 0):
                await self._undo(stopped=ended is None)

    async def _undo(self, *, stopped: bool) -> None:
        """What a command that failed or was stopped must not leave behind."""
        if self.plan.command == "clone" and self.made is not None:
            if not self.filled:
                await asyncio.shield(asyncio.to_thread(repository.emptied, self.made, self.kept))
                await self.ctx.workspace.usage()
        elif stopped:
            git = self.folder / repository.GIT
            await asyncio.shield(asyncio.to_thread(repository.unlocked, git, self.began))

    def _looked_at(self) -> Configuration | None:
        """The repository's configuration, with everything looked at that git will read."""
        plan = self.plan
        repository.require_plain(self.ground.root, (*plan.folder, *(plan.target or ())))
        if not self.folder.is_dir():
            shown = "/".join(("/workspace", *plan.folder))
            raise ToolFailure("not_found", f"There is no folder {shown}.", field="args")
        found = repository.configuration_at(self.folder)
        if self.made is not None and self.made.exists():
            if not self.made.is_dir():
                shown = "/".join(("/workspace", *plan.folder, *(plan.target or ())))
                raise ToolFailure("validation", f"{shown} is a file, no folder.", field="args")
            self.kept, self.filled = True, any(list(self.made.iterdir()))
            if self.made != self.folder:
                repository.configuration_at(self.made)
            if "--bare" in plan.argv:
                repository.require_empty(self.made)
        if found is None and not self._anywhere():
            raise repository.missing(self.ground.root, plan.folder)
        return found

    def _anywhere(self) -> bool:
        """Whether it needs no repository."""
        return self.plan.command in NEW or (
            self.plan.command == "config" and "--global" in self.plan.argv
        )

    def _remotes(self, configuration: Configuration | None) -> list[Remote]:
        """All that the command may turn to."""
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
            return list(dict.fromkeys((*every, *configuration.others)))
        found = configuration.remotes.get(plan.named, ())
        if not found:
            names = ", ".join(configuration.remotes) or "none yet"
            message = f"There is no remote {plan.named!r}; there are: {names}."
            raise ToolFailure("not_found", message, field="args")
        return list(dict.fromkeys(found))

    async def _room(self) -> Usage:
        """What may still be written; a full workspace begins nothing that writes."""
        if self.plan.reads:
            return Usage(0, 0)
        room = await self.ctx.workspace.room()
        if room.bytes <= 0 or room.files <= 0:
            raise ToolFailure("denied", "The workspace is full. Delete something first.")
        return room

    def _program(
        self,
        road: Road,
        credentials: dict[str, str],
        handles: tuple[tuple[int, int], ...],
        room: Usage,
    ) -> Confined:
        plan, ground = self.plan, self.ground
        git = program()
        if git is None:
            message = "git is not installed where the server runs. The operator can change that."
            raise ToolFailure("upstream_unavailable", message)
        settings = {} if plan.command == "config" else fixed() | road.settings | credentials
        env = variables(
            ground,
            work_tree=not self._anywhere(),
            protocols=road.protocols,
            reads=plan.reads,
            settings=settings,
        )
        argv = list(plan.argv)
        if plan.network:
            argv.insert(1, "--progress")
        where = (str(ground.root), str(ground.home))
        limits = {"CPU": self.timeout_s + 5, "AS": MEMORY_BYTES, "NOFILE": 1024, "NPROC": 8192}
        if not plan.reads:
            limits["FSIZE"] = room.bytes
        return Confined(
            argv=(git, "--no-pager", *argv),
            env=env | road.env,
            root=str(ground.root),
            folder=plan.folder,
            reads=(*road.reads, *(where if plan.reads else ())),
            writes=(str(ground.run),) if plan.reads else where,
            ports=road.ports,
            limits=limits,
            handles=handles,
            runs=(*SYSTEM, str(Path(git).resolve().parents[1])),
        )

    async def _watched(self, confined: Confined) -> Ended:
        """Run it, tell how far it is, and stop it when it writes more than there is room for."""
        progress = Progress(self.ctx.progress)
        running = asyncio.create_task(
            run(
                confined,
                timeout_s=self.timeout_s,
                most=self.ctx.settings(GitSettings).max_output_bytes,
                heard=progress.hear,
            )
        )
        telling = asyncio.create_task(progress.report())
        counting = asyncio.create_task(self._count())
        try:
            await asyncio.wait({running, counting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, telling, counting):
                task.cancel()
            # Only when the program and its children are gone is this over.
            await asyncio.gather(running, telling, counting, return_exceptions=True)
        if self.over:
            raise self._full()
        ended = running.result()
        if not self.plan.reads:
            self.over = await self._is_over() or (ended.code != 0 and TOO_LARGE in ended.err)
            if self.over:
                raise self._full()
        return ended

    async def _count(self) -> None:
        """Return when too much is there."""
        if self.plan.reads:
            await asyncio.Event().wait()
        while not self.over:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            self.over = await self._is_over()
            await asyncio.sleep(4 * (time.monotonic() - began - LOOK_S))

    async def _is_over(self) -> bool:
        room = await self.ctx.workspace.room()
        return room.bytes < 0 or room.files < 0

    def _full(self) -> ToolFailure:
        message = f"git {self.plan.command} would keep more than the workspace has room for. "
        if self.plan.command == "clone":
            message += "Nothing of it was kept. Try --depth=1 --single-branch, or make room."
        else:
            message += "It was stopped, or is done as far as it went. Delete what is not needed."
        return ToolFailure("denied", message)

    def _late(self) -> ToolFailure:
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

    def _done(self, ended: Ended) -> Done:
        err = without(self._shown(ended.err, ended.cut[1]))
        if ended.code != 0:
            err += "".join(f"hint: {hint}\n" for said, hint in HINTS.items() if said in err)
        return Done(ended.code, self._shown(ended.out, ended.cut[0]), err)

    def _shown(self, data: bytes, cut: bool) -> str:
        text = data.decode("utf-8", "ignore" if cut else "replace")
        for real, shown in ((self.ground.root, "/workspace"), (self.ground.home, "~")):
            text = text.replace(str(real), shown)
        if cut:
            text += (
                f"\n[Cut: these are the first {len(data)} bytes. Ask for less: --max-count, "
                "--stat, --name-only, or a path.]"
            )
        return text
