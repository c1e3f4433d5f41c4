"""The run: request in, files out, every problem told at once."""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from . import VERSION, headers, naming, render_docs, render_module, render_package
from .errors import GenerationError, GenerationErrors
from .model import Statement, resolve
from .request import Enum, Request, parse
from .types import TypeTable

RUNTIME = ("adapt", "copying", "encode", "rows")
# Names the package or its modules use themselves.
TAKEN_STEMS = frozenset({"dataclass", "enums", "schema"})
TAKEN_CONSTANTS = frozenset({"UUID"})


def main() -> int:
    """Answer one request of sqlc; returns the exit code (1: problems, printed to stderr)."""
    request = parse(json.load(sys.stdin))
    try:
        files = generate(request, read_sources(request.query_paths))
    except GenerationErrors as problems:
        print(problems, file=sys.stderr)  # noqa: T201  (sqlc shows a plugin's stderr)
        return 1
    json.dump(
        {
            "files": [
                {"name": name, "contents": base64.b64encode(text.encode()).decode()}
                for name, text in sorted(files.items())
            ]
        },
        sys.stdout,
    )
    return 0


def read_sources(paths: tuple[str, ...]) -> dict[str, bytes]:
    """Read the query files sqlc read: base name -> bytes. Paths are relative to sqlc's folder."""
    found: dict[str, bytes] = {}
    for pattern in paths:
        for path in sorted(glob.glob(pattern)):
            entry = Path(path)
            for file in sorted(entry.glob("*.sql")) if entry.is_dir() else [entry]:
                found[file.name] = file.read_bytes()
    return found


def generate(request: Request, sources: Mapping[str, bytes]) -> dict[str, str]:
    """
    Compile a request.

    `sources` are the query files by base name. Returns file name -> text: the package, or with
    the plugin option `emit: docs` the page `sql.md`. Raises GenerationErrors with all problems.
    """
    errors: list[GenerationError] = []
    kinds = _enum_classes(request, errors)
    statements, digests = _statements(request, sources, kinds, errors)
    _refuse_clashes(statements, errors)
    if errors:
        raise GenerationErrors(errors)
    if request.options.get("emit") == "docs":
        return {"sql.md": render_docs.page(statements)}
    return _package(request, statements, digests, kinds)


def _statements(
    request: Request,
    sources: Mapping[str, bytes],
    kinds: Mapping[Enum, str],
    errors: list[GenerationError],
) -> tuple[list[Statement], dict[str, str]]:
    table = TypeTable(kinds)
    tables = {
        name: {
            column.name: None if column.not_null else f"{'.'.join(name)}.{column.name} may be null"
            for column in columns
        }
        for name, columns in request.tables.items()
    }
    parsed = {name: headers.parse_source(text.decode()) for name, text in sources.items()}
    statements: list[Statement] = []
    digests: dict[str, str] = {}
    for query in request.queries:
        line, header_lines = parsed.get(query.filename, {}).get(query.name, (0, []))
        where = f"queries/{query.filename}:{line}: {query.name}"
        stem = query.filename.removesuffix(".sql")
        try:
            _check_names(where, stem, query.name)
            header = headers.parse_header(where, header_lines)
            statements.append(resolve(query, header, table, tables, where))
            digests[stem] = hashlib.sha256(sources[query.filename]).hexdigest()
        except GenerationError as error:
            errors.append(error)
    return statements, digests


def _check_names(where: str, stem: str, name: str) -> None:
    if naming.field(stem) != stem or stem in TAKEN_STEMS:
        raise GenerationError(where, f"{stem!r} cannot be a module name", "rename the query file")
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or name.upper() in TAKEN_CONSTANTS:
        raise GenerationError(
            where, f"{name!r} cannot be a statement name", "use CamelCase: verb, noun, guard"
        )


def _enum_classes(request: Request, errors: list[GenerationError]) -> dict[Enum, str]:
    kinds: dict[Enum, str] = {}
    for kind in request.enums:
        where, name = f"enum type {kind.schema}.{kind.name}", naming.camel(kind.name)
        if not naming.is_plain(name):
            errors.append(GenerationError(where, "makes no class name", "rename the type"))
        elif name in kinds.values():
            errors.append(
                GenerationError(
                    where, f"makes the class {name}, as another does", "rename one of the types"
                )
            )
        kinds[kind] = name
    return kinds


def _refuse_clashes(statements: list[Statement], errors: list[GenerationError]) -> None:
    seen: dict[str, Statement] = {}
    for statement in statements:
        for name in statement.public_names:
            if name in seen:
                errors.append(
                    GenerationError(
                        f"{statement.source}: {statement.name}",
                        f"makes the Python name {name}, as {seen[name].source}: "
                        f"{seen[name].name} does",
                        "rename one of the two statements",
                    )
                )
                break
            seen[name] = statement


def _package(
    request: Request,
    statements: list[Statement],
    digests: Mapping[str, str],
    kinds: Mapping[Enum, str],
) -> dict[str, str]:
    made = (
        f"# Code generated by sqlc {request.sqlc_version} and sqlc-gen-python {VERSION}. "
        "DO NOT EDIT."
    )
    files = {f"_{name}.py": render_package.runtime(made, name) for name in RUNTIME}
    files["_json.py"] = f"{made}\n{render_package.JSON}"
    for stem in digests:
        banner = f"{made}\n# Source: queries/{stem}.sql\n# sha256: {digests[stem]}"
        own = [statement for statement in statements if statement.module == stem]
        files[f"{stem}.py"] = render_module.module(banner, own)
    names = list(digests)
    if kinds:
        files["enums.py"] = render_package.enums(made, kinds)
        names.append("enums")
    files["_registry.py"] = render_package.registry(made, statements, digests)
    files["__init__.py"] = render_package.package(made, names)
    return files
