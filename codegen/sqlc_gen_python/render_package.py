"""The files beside the modules: registry, enums, package file and the runtime helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from . import naming
from .literals import string
from .model import Statement, Value
from .request import Enum

REGISTRY_HEAD = '''
"""Every statement of the package with what is known about it, for tools and tests."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

{imported}

__all__ = ["STATEMENTS", "Column", "Parameter", "Statement"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """
    A parameter: `$number` in the text, `argument` in Python. `nullable`: None is accepted and sent
    as NULL; `null_elements`: it is an array and its elements may be None.
    """

    name: str
    argument: str
    number: int
    sql_type: str
    nullable: bool
    null_elements: bool


@dataclass(frozen=True, slots=True)
class Column:
    """A result column: its SQL name, the row's field, its SQL type, whether it may be NULL."""

    name: str
    field: str
    sql_type: str
    nullable: bool
    null_elements: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """
    A statement: `module` and `function` say where it can be called (`async_function` likewise).

    `text` is what is sent (for `:copyfrom` the COPY), `header` the reviewed comment by key,
    `params` in order of first appearance, `columns` in result order (empty where the function
    returns no rows), `source` the query file and `sha256` that of its bytes.
    """

    name: str
    module: str
    function: str
    async_function: str
    command: str
    text: str
    header: Mapping[str, str]
    params: tuple[Parameter, ...]
    columns: tuple[Column, ...]
    source: str
    sha256: str


STATEMENTS: Final[dict[str, Statement]] = {{
'''


def registry(banner: str, statements: Sequence[Statement], digests: Mapping[str, str]) -> str:
    """The source of `_registry.py`."""
    modules = sorted({statement.module for statement in statements})
    head = REGISTRY_HEAD.lstrip("\n").format(imported=_imported(modules))
    lines = [f"{banner}\n{head.rstrip()}"]
    for item in sorted(statements, key=lambda statement: statement.name):
        lines += [
            f"    {string(item.name)}: Statement(",
            f"        name={string(item.name)},",
            f"        module={string(item.module)},",
            f"        function={string(item.function)},",
            f"        async_function={string(item.async_function)},",
            f"        command={string(item.command)},",
            f"        text={item.module}.{item.constant},",
            "        header={",
            *(f"            {string(key)}: {string(text)}," for key, text in item.header.items()),
            "        },",
            *_tuple("params", [_parameter(value) for value in item.params]),
            *_tuple("columns", [_column(value) for value in item.columns]),
            f"        source={string(item.source)},",
            f"        sha256={string(digests[item.module])},",
            "    ),",
        ]
    return "\n".join([*lines, "}"]) + "\n"


def _tuple(name: str, items: list[str]) -> list[str]:
    if not items:
        return [f"        {name}=(),"]
    return [f"        {name}=(", *items, "        ),"]


def _parameter(value: Value) -> str:
    return _record(
        "Parameter",
        name=string(value.name),
        argument=string(value.python),
        number=str(value.number),
        sql_type=string(value.sql),
        nullable=str(value.nullable),
        null_elements=str(value.is_array and value.null_elements),
    )


def _column(value: Value) -> str:
    return _record(
        "Column",
        name=string(value.name),
        field=string(value.python),
        sql_type=string(value.sql),
        nullable=str(value.nullable),
        null_elements=str(value.is_array and value.null_elements),
    )


def _record(kind: str, **fields: str) -> str:
    inner = "".join(f"                {name}={value},\n" for name, value in fields.items())
    return f"            {kind}(\n{inner}            ),"


def enums(banner: str, kinds: Mapping[Enum, str]) -> str:
    """The source of `enums.py`."""
    lines = [
        f'{banner}\n"""The enum types of the schema."""\n',
        "from __future__ import annotations\n",
        "from enum import StrEnum\n",
        "__all__ = [",
        *(f"    {string(name)}," for name in sorted(kinds.values())),
        "]",
    ]
    for kind, name in sorted(kinds.items(), key=lambda item: item[1]):
        about = kind.comment or f"The values of {kind.schema}.{kind.name}."
        members = _members(kind)
        lines += ["", "", f"class {name}(StrEnum):", f'    """{about}"""', ""]
        lines += [f"    {member} = {string(value)}" for member, value in members.items()]
    return "\n".join(lines) + "\n"


def _members(kind: Enum) -> dict[str, str]:
    members: dict[str, str] = {}
    for value in kind.values:
        name = naming.enum_member(value)
        if name in members:
            # Two values that spell alike: the code points of what is no letter tell them apart,
            # else all of them.
            odd = [char for char in value if not char.isalnum()]
            points = "_".join(f"U{ord(char):04X}" for char in odd)
            name = f"{name}_{points}"
            if not odd or name in members:
                name = "VALUE_" + "_".join(f"U{ord(char):04X}" for char in value)
        members[name] = value
    return members


def package(banner: str, modules: Sequence[str]) -> str:
    """The source of the package file."""
    names = sorted(modules)
    exported = "".join(f"    {string(name)},\n" for name in names)
    return (
        f'{banner}\n"""\nThe statements of queries/ as typed functions, compiled by codegen/.\n\n'
        'Needs psycopg only. The schema they expect is in the data folder `schema`.\n"""\n\n'
        f"{_imported(names)}\n\n__all__ = [\n{exported}]\n"
    )


def _imported(modules: Sequence[str]) -> str:
    line = f"from . import {', '.join(modules)}"
    if len(line) <= 100:
        return line
    return "from . import (\n" + "".join(f"    {name},\n" for name in modules) + ")"


def runtime(banner: str, name: str) -> str:
    """The source of a runtime helper (`encode`, `rows`, `copying`), copied as it is."""
    source = resources.files(__package__).joinpath("runtime", f"{name}.py").read_text("utf-8")
    return f"{banner}\n{source}"


JSON = '''"""The type of a decoded json or jsonb value."""

from __future__ import annotations

from typing import TypeAlias

# Any JSON value; the json value `null` reads as None, as an SQL null does.
Json: TypeAlias = object
'''
