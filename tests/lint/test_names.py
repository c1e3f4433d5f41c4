"""Names that must be unique over all files, and numbers that must follow each other."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from codegen.sqlc_gen_python.naming import snake
from tests.lint import sql, tree

# Released schema files never change: `sha256  name`, one a line, appended by each release.
SHIPPED = tree.ROOT / "tests" / "lint" / "shipped.sha256"


def repeated(words: Iterable[str]) -> list[str]:
    """Words that occur more than once."""
    return sorted(word for word, times in Counter(words).items() if times > 1)


def bad_modules(paths: Iterable[Path]) -> list[str]:
    """Query files whose module would hide another one, or cannot be imported."""
    stems = [path.stem for path in paths]
    taken = {"schema", "py", "init"}
    bad = {stem for stem in stems if not stem.isidentifier() or keyword.iskeyword(stem)}
    return sorted({*repeated(stems), *bad, *taken.intersection(stems)})


def bad_numbers(names: Iterable[str]) -> list[str]:
    """Schema files that do not follow the one before, from 0000 on.

    A gap would be a file that was lost, or one that a later release fills in behind its back.
    """
    bad, expected = [], 0
    for name in sorted(names):
        if not re.match(rf"{expected:04}_", name):
            bad.append(name)
        if re.match(r"\d{4}_", name):
            expected = int(name[:4]) + 1
    return bad


def changed(shipped: str, files: Mapping[str, bytes]) -> list[str]:
    """Released files that are gone, or are not what was released."""
    entries = [line.split() for line in shipped.splitlines() if line and line[0] != "#"]
    return [
        name
        for digest, name in entries
        if hashlib.sha256(files.get(name, b"")).hexdigest() != digest
    ]


def test_statement_names_are_unique() -> None:
    texts = [tree.read(path) for path in tree.files("queries/**/*.sql")]
    names = [statement.name for text in texts for statement in sql.statements(text)]
    assert names
    assert repeated(names) == []
    assert repeated(snake(name) for name in names) == []


def test_query_files_make_distinct_modules() -> None:
    assert bad_modules(tree.files("queries/**/*.sql")) == []


def test_schema_files_are_numbered() -> None:
    assert bad_numbers(path.name for path in tree.files("schema/*")) == []


def test_shipped_schema_files_are_unchanged() -> None:
    files = {path.name: path.read_bytes() for path in tree.files("schema/*.sql")}
    assert changed(SHIPPED.read_text("utf-8"), files) == []


def test_the_package_ships_the_schema() -> None:
    """Byte for byte, since checksums of what was sent are recorded."""
    copies = {path.name: path.read_bytes() for path in tree.files("generated/jobs_sql/schema/*")}
    assert copies == {path.name: path.read_bytes() for path in tree.files("schema/*")}


def test_runtime_holds_no_sql_file() -> None:
    assert tree.files("jobs/**/*.sql") == ()


@pytest.mark.parametrize(
    ("names", "bad"),
    [
        (["claim.sql", "more/claim.sql"], ["claim"]),
        (
            ["class.sql", "two-words.sql", "schema.sql", "fine.sql"],
            ["class", "schema", "two-words"],
        ),
    ],
)
def test_bad_modules_are_found(names: list[str], bad: list[str]) -> None:
    assert bad_modules(Path(name) for name in names) == bad


def test_other_bad_names_are_found() -> None:
    assert repeated(["a", "b", "a"]) == ["a"]
    assert bad_numbers(["0000_a.sql", "0001_b.sql"]) == []
    assert bad_numbers(["0000_a.sql", "0002_b.sql", "0003_c.sql"]) == ["0002_b.sql"]
    assert bad_numbers(["0001_a.sql"]) == ["0001_a.sql"]
    assert bad_numbers(["0000_a.sql", "001_b.sql"]) == ["001_b.sql"]
    assert bad_numbers(["0000_a.sql", "0001_b.sql", "0001_c.sql"]) == ["0001_c.sql"]
    released = f"# 1.0\n{hashlib.sha256(b'x').hexdigest()}  0000_a.sql\n"
    assert changed(released, {"0000_a.sql": b"x", "0001_b.sql": b"y"}) == []
    assert changed(released, {"0000_a.sql": b"x "}) == ["0000_a.sql"]
    assert changed(released, {}) == ["0000_a.sql"]
