"""Loads the packs that a configuration names: built-in ones, files and modules."""

import difflib
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from gatepost.config.remote import Remote
from gatepost.packs import BUILT_IN
from gatepost.packs.settings import Packs
from gatepost.settings import ToolsSettings
from gatepost.tools.api import WORDS, Offer, Tool
from gatepost.tools.pack import Pack
from gatepost_authz.config import Network, Problem

NO_TABLES = Packs()
NO_NETWORK = Network()

# What an author's module raises while it loads, which is anything, `sys.exit()` included; each
# becomes a sentence that names the file.
LOADING_ERRORS = (Exception, SystemExit)


class Toolbox(msgspec.Struct, frozen=True):
    """The enabled packs, and what kept others from loading."""

    packs: tuple[Pack, ...]
    problems: tuple[Problem, ...]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Every tool of every pack."""
        return tuple(tool for pack in self.packs for tool in pack.tools.values())

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Everything of every pack."""
        return tuple(offer for pack in self.packs for offer in pack.offers)

    @property
    def declared_scopes(self) -> frozenset[str]:
        """All scopes that something asks for."""
        return frozenset[str]().union(*(offer.scopes for offer in self.offers))


def load(
    settings: ToolsSettings,
    tables: Packs = NO_TABLES,
    network: Network = NO_NETWORK,
) -> Toolbox:
    """
    Load every pack that the settings name, and those that are made of packs' *tables*.

    A pack that is off is not even imported. What a table names by URL is fetched, by the rules of
    *network*.
    """
    packs: list[Pack] = []
    problems: list[Problem] = []
    for at, name in enumerate(settings.packs):
        setting = f"tools.packs[{at}]"
        if name in BUILT_IN:
            _add(packs, problems, BUILT_IN[name].place, setting, BUILT_IN[name].extra)
        else:
            near = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(BUILT_IN)}"
            problems.append(
                Problem("config.E010", f"{name!r} is not a built-in pack", hint, setting=setting)
            )
    for at, source in enumerate(settings.load):
        _add(packs, problems, source, f"tools.load[{at}]")
    _make(packs, problems, tables, network)
    problems += _doubled(packs)
    return Toolbox(tuple(packs), tuple(problems))


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
        # The pack stays out, which widens nothing, and the others are served.
        message = f"the pack needs what is not installed ({error.name}), so it is left out"
        hint = f"pip install 'gatepost[{extra}]'"
        problems.append(Problem("config.W004", message, hint, "warning", setting))
        return
    except LOADING_ERRORS as error:
        _refuse(problems, source, setting, error)
        return
    found = list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, Pack)))
    if not found:
        problems.append(
            Problem(
                "config.E011",
                f"{source} holds no pack",
                'write `pack = Pack("name")` at its top and `@pack.tool()` on its functions',
                setting=setting,
            )
        )
    packs += [pack for pack in found if pack not in packs]


def _make(packs: list[Pack], problems: list[Problem], tables: Packs, network: Network) -> None:
    remote = Remote(network)
    for name, table in tables.tables():
        if not table.makes_packs:
            continue
        for made in importlib.import_module(BUILT_IN[name].maker).packs_from(table, remote):
            if isinstance(made, Pack):
                packs.append(made)
                continue
            setting = f"packs.{name}.{made.setting}"
            problems.append(Problem("config.E060", made.message, made.hint, setting=setting))


def _refuse(problems: list[Problem], source: str, setting: str, error: BaseException) -> None:
    message = f"{source} cannot be loaded: {type(error).__name__}: {error}"
    problems.append(Problem("config.E011", message, _place(error, source), setting=setting))


def _module(source: str) -> ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"gatepost_tools_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # pydantic looks an argument's type up in its module, which must be findable by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _place(error: BaseException, source: str) -> str:
    """Where in the author's file it went wrong."""
    place = error.__traceback__
    line = None
    while place is not None:
        if Path(place.tb_frame.f_code.co_filename).name == Path(source).name:
            line = place.tb_lineno
        place = place.tb_next
    return f"look at line {line} of {source}" if line is not None else ""


def _doubled(packs: list[Pack]) -> Iterator[Problem]:
    holders = [(offer.kind, offer.key, pack.name) for pack in packs for offer in pack.offers]
    for (kind, key), count in Counter((kind, key) for kind, key, _ in holders).items():
        if count > 1:
            owners = ", ".join(name for *what, name in holders if what == [kind, key])
            place = kind == "document"
            yield Problem(
                "config.E012",
                f"several {WORDS[kind]}s are {'at' if place else 'named'} {key!r} (packs {owners})",
                f"change one: @pack.{WORDS[kind]}({'uri' if place else 'name'}=...)",
                setting="tools",
            )
