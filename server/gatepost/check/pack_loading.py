"""Load the packs of a configuration: built-in packs, files and modules."""

import difflib
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from gatepost.check.remote_documents import RemoteDocuments
from gatepost.config.pack_registration import LOADING_ERRORS, registrations
from gatepost.config.packs import Packs, tables
from gatepost.config.settings import ToolsSettings
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.offers.offer import WORDS, Offer, Tool
from gatepost_authz.config import Network, Problem

NO_TABLES = Packs()
NO_NETWORK = Network()


class Toolbox(msgspec.Struct, frozen=True):
    """The enabled packs, and the reasons why others could not be loaded."""

    packs: tuple[Pack, ...]
    problems: tuple[Problem, ...]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return every tool of every pack."""
        return tuple(tool for pack in self.packs for tool in pack.tools.values())

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Return every offer of every pack."""
        return tuple(offer for pack in self.packs for offer in pack.offers)

    @property
    def declared_scopes(self) -> frozenset[str]:
        """Return all scopes that any offer declares."""
        return frozenset[str]().union(*(offer.scopes for offer in self.offers))


def load(
    settings: ToolsSettings,
    config: Packs = NO_TABLES,
    network: Network = NO_NETWORK,
) -> Toolbox:
    """
    Load every pack that the settings name, and the packs made from the tables of *config*.

    A disabled pack is not imported. What a table names by URL is fetched by the rules of *network*.
    """
    packs: list[Pack] = []
    problems = [*_unregistered()]
    for at, name in enumerate(settings.packs):
        _add_registered(packs, problems, name, f"tools.packs[{at}]")
    for at, source in enumerate(settings.load):
        _add(packs, problems, source, f"tools.load[{at}]")
    _make(packs, problems, config, network)
    problems += _doubled(packs)
    return Toolbox(tuple(packs), tuple(problems))


def _unregistered() -> Iterator[Problem]:
    for fault in registrations().faults:
        yield Problem(
            "config.E061",
            f"the packs of {fault.distribution} cannot be used: {fault.message}",
            f"install {fault.distribution} again, another version of it, or remove it",
            setting="tools.packs",
        )


def _add_registered(packs: list[Pack], problems: list[Problem], name: str, setting: str) -> None:
    registered = registrations().packs
    if name in registered:
        pack = registered[name]
        extra = pack.registration.extra
        requirement = None if extra is None else f"{pack.distribution}[{extra}]"
        _add(packs, problems, pack.registration.source, setting, requirement)
        return
    similar = difflib.get_close_matches(name, registered, n=1, cutoff=0.5)
    hint = (
        f"did you mean {similar[0]!r}?" if similar else f"available packs: {', '.join(registered)}"
    )
    problems.append(
        Problem("config.E010", f"{name!r} is not a registered pack", hint, setting=setting)
    )


def _add(
    packs: list[Pack],
    problems: list[Problem],
    source: str,
    setting: str,
    extra: str | None = None,
) -> None:
    try:
        module = _module(source)
    except ModuleNotFoundError as error:
        if extra is None:
            _refuse(problems, source, setting, error)
            return
        # Disabling the pack extends no access, and the other packs are served.
        message = (
            f"the pack needs the module {error.name}, which is not installed, so it is disabled"
        )
        hint = f"pip install '{extra}'"
        problems.append(Problem("config.W004", message, hint, "warning", setting))
        return
    except LOADING_ERRORS as error:
        _refuse(problems, source, setting, error)
        return
    defined = list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, Pack)))
    if not defined:
        problems.append(
            Problem(
                "config.E011",
                f"{source} defines no pack",
                'define `pack = Pack("name")` and decorate its functions with `@pack.tool()`',
                setting=setting,
            )
        )
    packs += [pack for pack in defined if pack not in packs]


def _make(packs: list[Pack], problems: list[Problem], config: Packs, network: Network) -> None:
    remote = RemoteDocuments(network)
    for name, table in tables(config):
        if not table.makes_packs:
            continue
        maker = importlib.import_module(registrations().packs[name].registration.maker)
        for pack in maker.packs_from(table, remote):
            if isinstance(pack, Pack):
                packs.append(pack)
                continue
            setting = f"packs.{name}.{pack.setting}"
            problems.append(Problem("config.E060", pack.message, pack.hint, setting=setting))


def _refuse(problems: list[Problem], source: str, setting: str, error: BaseException) -> None:
    message = f"{source} cannot be loaded: {type(error).__name__}: {error}"
    problems.append(Problem("config.E011", message, _position(error, source), setting=setting))


def _module(source: str) -> ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"the file {path} does not exist")
    spec = importlib.util.spec_from_file_location(f"gatepost_tools_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # pydantic looks up argument types in their module, which must be importable by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _position(error: BaseException, source: str) -> str:
    """Return where in the author's file the error occurred."""
    traceback = error.__traceback__
    line = None
    while traceback is not None:
        if Path(traceback.tb_frame.f_code.co_filename).name == Path(source).name:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f"look at line {line} of {source}" if line is not None else ""


def _doubled(packs: list[Pack]) -> Iterator[Problem]:
    holders = [(offer.kind, offer.key, pack.name) for pack in packs for offer in pack.offers]
    for (kind, key), count in Counter((kind, key) for kind, key, _ in holders).items():
        if count > 1:
            owners = ", ".join(name for *owner, name in holders if owner == [kind, key])
            relation, option = ("at", "uri") if kind == "document" else ("named", "name")
            yield Problem(
                "config.E012",
                f"several {WORDS[kind]}s are {relation} {key!r} (packs {owners})",
                f"change one: @pack.{WORDS[kind]}({option}=...)",
                setting="tools",
            )
