"""Read MCP servers from `mcpServers` files and from the server.json of a registry."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gatepost.config.upstreams import UpstreamSettings, UpstreamsFile
from gatepost.secrets.names import NAME
from gatepost.upstreams.fields import InvalidField, checked_header, checked_name
from gatepost_authz.strict_json import StrictJsonError, loads_object

MAX_BYTES, MAX_DEPTH = 4_000_000, 64
SECTIONS = ("mcpServers", "servers", "context_servers")
"""The member that contains the servers: of Claude Desktop and Cursor, of VS Code, and of Zed."""
PLACEHOLDER = re.compile(r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\}")
REFERENCE = re.compile(r"(?:secret|env|file):\S+")
BEARER = re.compile(r"bearer\s+(?P<value>\S.*)", re.IGNORECASE)
HTTP_TYPES = frozenset({"http", "streamable-http", "streamableHttp"})
RUNNERS = {"npm": ("npx", "-y"), "pypi": ("uvx",), "oci": ("docker", "run", "-i", "--rm")}
"""How a package of each registry is run, if it does not say so itself."""


class ImportProblem(ValueError):
    """A file or an entry cannot be imported; the message is a sentence and contains no secret."""


class ImportedServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server of another program's file, as a table of the configuration."""

    settings: UpstreamSettings
    notes: tuple[str, ...] = ()
    """The steps that are needed before it works, such as setting a secret."""
    values: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Literal secrets of the file by the name of the secret that replaces each of them."""

    def __repr__(self) -> str:
        return f"<ImportedServer {self.settings.name}>"


def settings_of_file(file: UpstreamsFile) -> tuple[UpstreamSettings, ...]:
    """Return the tables of the servers of `[upstreams_file]`; raises ImportProblem."""
    imported_servers = servers_of(read_document(Path(file.path)))
    for imported in imported_servers:
        if imported.values:
            raise ImportProblem(
                f"the server {imported.settings.name!r} has a secret as text: write a reference, "
                f"such as ${{input:{next(iter(imported.values)).lower()}}}"
            )
    return tuple(
        msgspec.structs.replace(imported.settings, tenants=file.tenants)
        for imported in imported_servers
    )


def read_document(path: Path) -> Mapping[str, Any]:
    """Read a JSON object, with the comments that editors allow; raises ImportProblem."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImportProblem(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ImportProblem(f"{path} has more than {MAX_BYTES} bytes")
    try:
        without_remarks = without_comments(data.decode("utf-8-sig")).encode()
        return loads_object(without_remarks, max_depth=MAX_DEPTH, max_bytes=MAX_BYTES)
    except StrictJsonError as error:
        raise ImportProblem(f"{path} is not a JSON object that can be read: {error}") from None
    except ValueError:
        raise ImportProblem(f"{path} is not UTF-8") from None


def without_comments(text: str) -> str:
    """Return JSON without `//` and `/* */` comments and without commas before a closing bracket."""
    uncommented = re.sub(
        r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda m: m[1] or " ", text, flags=re.DOTALL
    )
    return re.sub(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', lambda m: m[1] or "", uncommented)


def servers_of(document: Mapping[str, Any]) -> tuple[ImportedServer, ...]:
    """Return the servers of an `mcpServers` or `servers` object; raises ImportProblem."""
    nested = document.get("mcp")
    containers = [document, *([nested] if isinstance(nested, dict) else [])]
    for container in containers:
        for section in SECTIONS:
            servers = container.get(section)
            if isinstance(servers, dict):
                return tuple(_server(name, entry) for name, entry in servers.items())
    raise ImportProblem("there is neither `mcpServers` nor `servers` in it")


def _server(name: str, entry: Any) -> ImportedServer:
    if not isinstance(entry, dict):
        raise ImportProblem(f"the server {name!r} is not an object")
    try:
        checked_name(name)
    except InvalidField as invalid:
        raise ImportProblem(f"the server {name[:80]!r} cannot be used: {invalid.message}") from None
    imported = _ServerFields(name)
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        if entry.get("type") == "sse":
            imported.notes.append(
                "its type is sse, the transport of 2024-11-05, which Gatepost does not speak: "
                "use the server's Streamable HTTP endpoint"
            )
        imported.fields["url"] = imported.text(url, "url")
        imported.headers(_strings(name, entry, "headers"))
    elif isinstance(entry.get("command"), str):
        imported.fields["command"] = imported.text(entry["command"], "command")
        arguments = entry.get("args", [])
        if not isinstance(arguments, list) or not all(
            isinstance(argument, str) for argument in arguments
        ):
            raise ImportProblem(f"`args` of the server {name!r} is not a list of texts")
        imported.fields["args"] = tuple(imported.text(argument, "args") for argument in arguments)
        imported.environment(_strings(name, entry, "env"))
        imported.confinement(entry)
    else:
        raise ImportProblem(f"the server {name!r} has neither `url` nor `command`")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        imported.fields["status"] = "disabled"
    return imported.server()


def _strings(name: str, entry: Mapping[str, Any], member: str) -> dict[str, str]:
    strings = entry.get(member) or {}
    if not isinstance(strings, dict) or not all(
        isinstance(string, str) for string in strings.values()
    ):
        raise ImportProblem(f"`{member}` of the server {name!r} is not an object of texts")
    return strings


class _ServerFields:
    """Collects the table of one server, and the new names of its secrets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, Any] = {}
        self.notes: list[str] = []
        self.values: dict[str, str] = {}

    def server(self) -> ImportedServer:
        settings = UpstreamSettings(name=self.name, **self.fields)
        return ImportedServer(settings=settings, notes=tuple(self.notes), values=self.values)

    def text(self, value: str, member: str) -> str:
        """Return a text without placeholders, which Gatepost does not replace inside of texts."""
        if PLACEHOLDER.search(value):
            raise ImportProblem(
                f"`{member}` of the server {self.name!r} contains a placeholder: write the value"
            )
        return value

    def headers(self, headers: Mapping[str, str]) -> None:
        references = {}
        for name, value in headers.items():
            if name.lower() == "authorization":
                bearer = BEARER.fullmatch(value)
                if bearer is None:
                    raise ImportProblem(
                        f"the server {self.name!r} sends an Authorization header that is no "
                        "bearer token"
                    )
                self.fields["api_key"] = self.reference(bearer["value"], "api_key")
                continue
            try:
                checked_header(name)
            except InvalidField as invalid:
                message = f"the server {self.name!r} cannot be used: {invalid.message}"
                raise ImportProblem(message) from None
            references[name] = self.reference(value, name)
        if references:
            self.fields["headers"] = references

    def environment(self, variables: Mapping[str, str]) -> None:
        env = {}
        for name, value in variables.items():
            placeholder = PLACEHOLDER.fullmatch(value)
            if placeholder is None and not looks_secret(name):
                env[name] = self.text(value, "env")
            else:
                env[name] = self.reference(value, name, always_secret=True)
        if env:
            self.fields["env"] = env

    def confinement(self, entry: Mapping[str, Any]) -> None:
        """Take up what the program may use: `reads`, `writes` and `network`, as in a table."""
        for member in ("reads", "writes"):
            paths = entry.get(member, [])
            if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
                raise ImportProblem(f"`{member}` of the server {self.name!r} is no list of texts")
            self.fields[member] = tuple(self.text(path, member) for path in paths)
        network = entry.get("network", False)
        if not isinstance(network, bool):
            raise ImportProblem(f"`network` of the server {self.name!r} is neither true nor false")
        self.fields["network"] = network

    def reference(self, value: str, member: str, *, always_secret: bool = False) -> str:
        """Return a reference in place of a value, which may be a placeholder or a secret itself."""
        placeholder = PLACEHOLDER.fullmatch(value)
        if placeholder is None and REFERENCE.fullmatch(value):
            return value
        if placeholder is None and PLACEHOLDER.search(value):
            raise ImportProblem(
                f"{member} of the server {self.name!r} mixes text and a placeholder: put the "
                "whole value into one secret"
            )
        if placeholder is not None and placeholder["kind"] != "input" and not always_secret:
            return f"env:{placeholder['name']}"
        name = secret_name(placeholder["name"] if placeholder else f"{self.name}_{member}")
        if placeholder is None:
            self.values[name] = value
        self.notes.append(f"set the secret: gatepost secrets set {name} --tenant TENANT")
        return f"secret:{name}"


def looks_secret(variable: str) -> bool:
    """Return whether an environment variable's name says that its value is a secret."""
    words = set(re.split(r"[^a-z]+", variable.lower()))
    return bool(words & {"key", "token", "secret", "password", "passwd", "pat", "credentials"})


def secret_name(text: str) -> str:
    """Return the name of a secret that resembles *text*."""
    name = re.sub(r"[^A-Z0-9]+", "_", text.upper()).strip("_")
    name = name if name[:1].isalpha() else f"S_{name}"
    return name[:64] if NAME.fullmatch(name[:64]) else "SECRET"


def is_server_document(document: Mapping[str, Any]) -> bool:
    """Return whether *document* is the server.json of an MCP registry."""
    return isinstance(document.get("name"), str) and (
        isinstance(document.get("packages"), list) or isinstance(document.get("remotes"), list)
    )


def servers_of_registry(document: Mapping[str, Any]) -> tuple[ImportedServer, ...]:
    """Return the remotes and packages of a server.json, remotes first; raises ImportProblem."""
    name = str(document["name"]).rpartition("/")[2]
    description = document.get("description")
    servers = []
    for entry in (*_objects(document, "remotes"), *_objects(document, "packages")):
        imported = _ServerFields(name)
        if isinstance(description, str) and description:
            imported.fields["description"] = description
        kind = entry.get("type", entry.get("transport_type"))
        if isinstance(entry.get("url"), str):
            if kind not in HTTP_TYPES:
                continue
            imported.fields["url"] = imported.text(entry["url"], "url")
            imported.headers(dict(_named(entry, "headers")))
        elif not _packaged(imported, entry):
            continue
        servers.append(imported.server())
    if not servers:
        raise ImportProblem(f"{name!r} has no remote by Streamable HTTP and no stdio package")
    return tuple(servers)


def _packaged(imported: _ServerFields, entry: Mapping[str, Any]) -> bool:
    """Fill in the program of a package; return False if it cannot be run over stdio."""
    kind = entry.get("registryType", entry.get("registry_type", entry.get("registry_name")))
    identifier = entry.get("identifier", entry.get("name"))
    transport = entry.get("transport", {})
    transport_type = transport.get("type", "stdio") if isinstance(transport, dict) else "stdio"
    if kind not in RUNNERS or not isinstance(identifier, str) or transport_type != "stdio":
        return False
    version = entry.get("version")
    if isinstance(version, str) and version and kind != "oci":
        identifier = f"{identifier}{'@' if kind == 'npm' else '=='}{version}"
    elif isinstance(version, str) and version and ":" not in identifier.rpartition("/")[2]:
        identifier = f"{identifier}:{version}"
    hint = entry.get("runtimeHint", entry.get("runtime_hint"))
    command, *before = RUNNERS[kind]
    listed_arguments = entry.get("packageArguments", entry.get("package_arguments", []))
    package_arguments = [
        *_arguments(listed_arguments if isinstance(listed_arguments, list) else [])
    ]
    imported.fields |= {
        "command": hint if isinstance(hint, str) and hint else command,
        "args": (*before, identifier, *package_arguments),
    }
    names = "environmentVariables" if "environmentVariables" in entry else "environment_variables"
    imported.environment(dict(_named(entry, names)))
    return True


def _arguments(entries: list[Any]) -> Iterator[str]:
    for argument in entries:
        if isinstance(argument, dict):
            name, value = argument.get("name"), argument.get("value", argument.get("default"))
            if argument.get("type") == "named" and isinstance(name, str):
                yield name
            if isinstance(value, str):
                yield value


def _named(entry: Mapping[str, Any], member: str) -> Iterator[tuple[str, str]]:
    """
    Yield headers or variables; a secret that the file leaves open becomes a placeholder.

    So does a reference: the document is untrusted, and must not choose which of this machine's
    environment and files its server gets.
    """
    for variable in _objects(entry, member):
        name, value = variable.get("name"), variable.get("value", variable.get("default"))
        if not isinstance(name, str):
            continue
        is_secret = variable.get("isSecret") or variable.get("is_secret")
        if is_secret or not isinstance(value, str) or _refers(value):
            cleaned = re.sub(r"[^A-Za-z0-9_]", "_", name)
            bearer = name.lower() == "authorization"
            value = f"{'Bearer ' if bearer else ''}${{input:{cleaned.strip('_') or 'secret'}}}"
        yield name, value


def _refers(value: str) -> bool:
    return bool(PLACEHOLDER.search(value) or REFERENCE.search(value))


def _objects(entry: Mapping[str, Any], member: str) -> Iterator[Mapping[str, Any]]:
    items = entry.get(member)
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield item


def as_toml(settings: UpstreamSettings, *, tenants: tuple[str, ...] = ()) -> str:
    """Return the `[[upstreams]]` table of a server as TOML; JSON strings and lists are TOML too."""
    settings = msgspec.structs.replace(settings, tenants=tenants or settings.tenants)
    lines = ["[[upstreams]]"]
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if value == field.default or (not value and field.default_factory is dict):
            continue
        lines.append(f"{field.name} = {_toml(value)}")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
