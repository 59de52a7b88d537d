"""Decide in a pure function which arguments may run, before any file is touched."""

import re
import unicodedata
from collections.abc import Callable, Sequence

import msgspec

from gatepost_packs.git.permitted_commands import (
    REMOTE_NAME,
    RULES,
    ArgumentsRefused,
    CheckedArguments,
    CommandRule,
    configuration,
    reads_only,
    relative,
    remotes,
)
from gatepost_packs.git.url import RemoteUrl, problem_of, remote_of

SPECIAL = ";|&$`<>\\"
"""
Characters that shells interpret. No shell is involved; Octoprox refuses them, and so does Gatepost.
"""
COMMANDS = ("$(", "`")
"""The characters among them that are refused in messages as well."""
MAX_CHARACTERS = 4096
MAX_IN_MESSAGE = 32_768

REFSPEC = re.compile(r"\+?[^\s~^?\[\\:+-][^\s~^?\[\\:]*(?::[^\s~^?\[\\:+-][^\s~^?\[\\:]*)?")
DELETING = re.compile(r":[^\s~^?*\[\\:+-][^\s~^?*\[\\:]*")
FOLDER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", re.ASCII)


class GitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A permitted command, its arguments in an unambiguous form."""

    command: str
    folder: tuple[str, ...]
    """The working directory, below the workspace."""
    argv: tuple[str, ...]
    """Git's arguments, command included."""
    reads: bool
    """Whether it changes nothing, here or elsewhere."""
    network: bool
    remote: RemoteUrl | None = None
    """The remote that is given by its URL."""
    named: str | None = None
    """The remote that is given by its name."""
    urls: tuple[RemoteUrl, ...] = ()
    """Remotes that the configuration will hold."""
    target: tuple[str, ...] | None = None
    """Below *folder*: where a repository is created."""


def decide(args: Sequence[str]) -> ArgumentsRefused | GitPlan:
    """Return the plan for a call's arguments, or why they are refused."""
    folder: tuple[str, ...] = ()
    if args and args[0] == "-C":
        if len(args) < 2 or _character_problem(args[1]) is not None:
            return ArgumentsRefused("-C must be followed by a folder of the workspace.")
        relative_path = relative(args[1], ())
        if isinstance(relative_path, ArgumentsRefused):
            return relative_path
        folder, args = relative_path, args[2:]
    if not args:
        return ArgumentsRefused(f"Name a git command. Allowed are: {', '.join(RULES)}.")
    command, arguments = args[0], list(args[1:])
    rule = RULES.get(command)
    if rule is None:
        shown_command = command[:40].encode("unicode_escape").decode()
        return ArgumentsRefused(
            f"'{shown_command}' is not an allowed git command. Allowed are: {', '.join(RULES)}."
        )
    if len(arguments) > rule.max_arguments:
        return ArgumentsRefused(
            f"Too many arguments for git {command}: {len(arguments)}; "
            f"at most {rule.max_arguments} are allowed."
        )
    reading = _Reading(command, rule, folder)
    problem = reading.read(arguments)
    return problem if problem is not None else reading.plan()


def _character_problem(text: str, *, message: bool = False) -> str | None:
    """Return the problem with the characters of an argument."""
    max_chars = MAX_IN_MESSAGE if message else MAX_CHARACTERS
    if not text:
        return "is empty"
    if len(text) > max_chars:
        return f"is longer than {max_chars} characters"
    for character in text:
        if message and character in "\n\t":
            continue
        if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            return "contains invalid characters: a control character, or half a character"
    special = [c for c in (COMMANDS if message else SPECIAL) if c in text]
    if special:
        return f"contains invalid characters: {' '.join(special)}"
    return None


class _Reading:
    """Takes the arguments of one command apart, and puts them together again."""

    def __init__(self, command: str, rule: CommandRule, folder: tuple[str, ...]) -> None:
        self.command, self.rule, self.folder = command, rule, folder
        self.options: list[str] = []
        self.operands: list[str] = []
        self.paths: list[str] | None = None
        self.judge: dict[str, Callable[[str], ArgumentsRefused | str]] = {
            "revision": self._revision,
            "path": self._path,
            "remote": self._remote,
            "refspec": self._refspec,
            "url": self._url,
            "folder": self._folder,
            "own": lambda text: text,
        }

    def read(self, arguments: list[str]) -> ArgumentsRefused | None:
        """Sort options, operands and paths; return the first refusal."""
        todo = arguments[::-1]
        while todo:
            argument = todo.pop()
            problem: ArgumentsRefused | None = None
            if self.paths is not None:
                problem = self._add_path(argument, self.paths)
            elif argument == "--" and self.rule.separator:
                self.paths = []
            elif argument.startswith("-"):
                problem = self._option(argument, todo)
            else:
                problem = self._operand(argument)
            if problem is not None:
                return problem
        return None

    def plan(self) -> ArgumentsRefused | GitPlan:
        """Return the plan; a command's own rules are applied last."""
        checked = self._checked_operands()
        if isinstance(checked, ArgumentsRefused):
            return checked
        argv = [self.command, *self.rule.forced, *self.options, *checked.operands]
        if self.paths is not None:
            argv += ["--", *self.paths]
        return GitPlan(
            command=self.command,
            folder=self.folder,
            argv=tuple(argv),
            reads=checked.reads,
            network=self.rule.network,
            remote=checked.remote,
            named=checked.named,
            urls=checked.urls,
            target=checked.target,
        )

    def _checked_operands(self) -> ArgumentsRefused | CheckedArguments:
        if self.command == "config":
            return configuration(self.options, self.operands)
        if self.command == "remote":
            return remotes(self.options, self.operands)
        # `-am` is among the options as `-a` and `-m`.
        if self.command == "commit" and not {"-m", "--dry-run", "--amend"} & set(self.options):
            return ArgumentsRefused(
                "No editor is available: pass the message, as in commit -m 'message'."
            )
        checked = CheckedArguments(
            tuple(self.operands), reads_only(self.command, self.rule, self.options, self.operands)
        )
        if self.command in ("clone", "init"):
            return self._with_target(checked)
        if self.rule.network and self.operands:
            remote = remote_of(self.operands[0])
            name = None if remote else self.operands[0]
            return msgspec.structs.replace(checked, remote=remote, named=name)
        return checked

    def _with_target(self, checked: CheckedArguments) -> ArgumentsRefused | CheckedArguments:
        """Return the target of a clone or a new repository, written out."""
        remote = None
        folders = list(self.operands)
        if self.command == "clone":
            if not folders:
                return ArgumentsRefused("git clone needs the URL of a repository.")
            remote = remote_of(folders.pop(0))
            if remote is not None and not folders:
                if not FOLDER.fullmatch(remote.folder) or remote.folder.startswith("."):
                    return ArgumentsRefused("Name the folder to clone into as the last argument.")
                folders = [remote.folder]
        target = relative(folders[0], self.folder) if folders else ()
        if isinstance(target, ArgumentsRefused):
            return target
        operands = ["/".join(target) or "."]
        if remote is not None:
            operands.insert(0, remote.url)
        return msgspec.structs.replace(
            checked, operands=("--", *operands), remote=remote, target=target
        )

    def _option(self, argument: str, todo: list[str]) -> ArgumentsRefused | None:
        name, equals, value = argument.partition("=")
        rule = self.rule
        if argument in rule.flags or (argument in rule.optional):
            self.options.append(argument)
            return None
        if argument in rule.message or (name == "--message" and equals and name in rule.message):
            return self._message(name, value if equals else None, todo)
        if argument.startswith("-m") and "-m" in rule.message:
            return self._message("-m", argument[2:], todo)
        pattern = rule.values.get(name) or (rule.optional.get(name) if equals else None)
        if pattern is not None and (not equals or name.startswith("--")):
            return self._value(name, pattern, value if equals else None, todo)
        digits = argument.lstrip("-nU")
        number = digits.isascii() and digits.isdigit() and len(digits) < 10
        if number and argument.removesuffix(digits) in rule.numbers:
            self.options.append(argument)
            return None
        return self._unknown(argument)

    def _unknown(self, name: str) -> ArgumentsRefused:
        if (problem := _character_problem(name)) is not None:
            return ArgumentsRefused(f"An argument {problem}.")
        shown_name, rule = name[:60], self.rule
        allowed_options = sorted({*rule.flags, *rule.values, *rule.optional, *rule.message})
        return ArgumentsRefused(
            f"`{shown_name}` is not an allowed option of git {self.command}. Write options in full "
            f"and separately. Allowed are: {' '.join(allowed_options)}"
        )

    def _message(self, name: str, text: str | None, todo: list[str]) -> ArgumentsRefused | None:
        if text is None:
            text = todo.pop() if todo else ""
        if (problem := _character_problem(text, message=True)) is not None:
            return ArgumentsRefused(f"The message {problem}.")
        self.options += ["-a", "-m", text] if name == "-am" else ["-m", text]
        return None

    def _value(
        self, name: str, pattern: re.Pattern[str], value: str | None, todo: list[str]
    ) -> ArgumentsRefused | None:
        if value is None:
            value = todo.pop() if todo else ""
        if (problem := _character_problem(value)) is not None:
            return ArgumentsRefused(f"The value of `{name}` {problem}.")
        if not pattern.fullmatch(value):
            return ArgumentsRefused(f"{value[:60]!r} is not a valid value of `{name}`.")
        self.options += [f"{name}={value}"] if name.startswith("--") else [name, value]
        return None

    def _operand(self, argument: str) -> ArgumentsRefused | None:
        if (problem := _character_problem(argument)) is not None:
            return ArgumentsRefused(f"An argument {problem}.")
        rule, at = self.rule, len(self.operands)
        if not rule.kinds or at >= rule.operands:
            return ArgumentsRefused(
                f"git {self.command} takes no argument like {argument[:60]!r} here."
            )
        judgement = self.judge[rule.kinds[min(at, len(rule.kinds) - 1)]](argument)
        if isinstance(judgement, ArgumentsRefused):
            return judgement
        self.operands.append(judgement)
        return None

    def _add_path(self, argument: str, paths: list[str]) -> ArgumentsRefused | None:
        if (problem := _character_problem(argument)) is not None:
            return ArgumentsRefused(f"An argument {problem}.")
        judgement = self._path(argument)
        if isinstance(judgement, ArgumentsRefused):
            return judgement
        paths.append(judgement)
        return None

    def _path(self, text: str) -> ArgumentsRefused | str:
        if text.startswith(":"):
            return ArgumentsRefused(
                f"{text[:60]!r}: a path must not begin with `:` (pathspec magic)."
            )
        parts = relative(text, self.folder, pattern=True)
        return parts if isinstance(parts, ArgumentsRefused) else "/".join(parts) or "."

    def _revision(self, text: str) -> ArgumentsRefused | str:
        if text.startswith("/") or text.startswith("./"):
            return self._path(text)
        if text.startswith(":"):
            return ArgumentsRefused(f"{text[:60]!r}: a revision or path must not begin with `:`.")
        if ".." in re.split(r"[/:]", text) or re.search(r":/", text):
            return ArgumentsRefused(
                f"{text[:60]!r} leads out of the workspace: it must not hold `..`."
            )
        return text

    def _remote(self, text: str) -> ArgumentsRefused | str:
        if REMOTE_NAME.fullmatch(text) or remote_of(text) is not None:
            return text
        return ArgumentsRefused(problem_of(text))

    def _url(self, text: str) -> ArgumentsRefused | str:
        return text if remote_of(text) is not None else ArgumentsRefused(problem_of(text))

    def _refspec(self, text: str) -> ArgumentsRefused | str:
        deletes = self.command == "push" and DELETING.fullmatch(text)
        if not deletes and not REFSPEC.fullmatch(text):
            return ArgumentsRefused(f"{text[:60]!r} is not a branch, tag or refspec.")
        if ".." in text:
            return ArgumentsRefused(f"{text[:60]!r} holds `..`, which no branch or tag can hold.")
        return text

    def _folder(self, text: str) -> ArgumentsRefused | str:
        judgement = relative(text, self.folder)
        return judgement if isinstance(judgement, ArgumentsRefused) else text
