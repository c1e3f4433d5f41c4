"""
Where a result may be null although sqlc says it is not.

sqlc believes that a cast, a function, a scalar subquery, an aggregate and a column of a subselect
behind an outer join are never null. This module reads the statement again and finds a reason to
doubt; the author then says in `nullable:` which of the two is true. It doubts only what it can
name: what it does not understand it leaves to sqlc (and to the tests, which validate every row).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .sqltree import Group, Nodes, Token, find, is_call, parse, split, word

# Column name -> why it may be null, None if it seems never to be.
Columns: TypeAlias = Mapping[str, str | None]

_AGGREGATES = frozenset(
    {"min", "max", "sum", "avg", "array_agg", "string_agg", "json_agg", "jsonb_agg", "bool_and",
     "bool_or", "every", "json_object_agg", "jsonb_object_agg", "percentile_cont", "mode"}
)  # fmt: skip
_NEVER_NULL = frozenset(
    {"count", "exists", "array", "concat", "concat_ws", "jsonb_build_object", "json_build_object",
     "jsonb_build_array", "json_build_array", "row", "num_nulls", "num_nonnulls"}
)  # fmt: skip
_FIRST_NOT_NULL = frozenset({"coalesce", "greatest", "least"})
_OTHER_ROWS = frozenset({"lag", "lead", "nth_value"})
_JSON_PATHS = frozenset({"->", "->>", "#>", "#>>"})
_LONG_TYPES = frozenset({"precision", "varying", "with", "without", "time", "zone"})
_CLAUSES = (
    "where", "group", "having", "window", "order", "limit", "offset", "fetch", "for", "returning",
    "on", "set",
)  # fmt: skip
_JOINS = ("join", "left", "right", "full", "inner", "cross", "natural")
_UNIONS = ("union", "intersect", "except")


@dataclass(slots=True)
class _Level:
    """The sources one query level can name; a subquery also sees those of the levels around it."""

    tables: Mapping[tuple[str, str], Columns]
    params: frozenset[int]
    ctes: dict[str, Columns]
    outer: _Level | None = None
    sources: dict[str, Columns | None] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    grouped: bool = False

    def inner(self) -> _Level:
        return _Level(self.tables, self.params, dict(self.ctes), self)

    def column(self, source: str, name: str) -> str | None:
        level: _Level | None = self
        while level is not None:
            if source in level.sources:
                if source in level.optional:
                    return f"{source} is on the optional side of an outer join"
                return (level.sources[source] or {}).get(name)
            level = level.outer
        return None

    def bare(self, name: str) -> str | None:
        level: _Level | None = self
        while level is not None:
            for source, columns in level.sources.items():
                if columns is not None and name in columns:
                    return self.column(source, name)
            level = level.outer
        return None


def doubts(
    text: str, tables: Mapping[tuple[str, str], Columns], nullable_params: frozenset[int]
) -> list[tuple[str, str | None]]:
    """
    Read a statement and return (column name, why it may be null or None) for its result.

    `tables` gives each table's columns in the same form, by (schema, name); `nullable_params`
    the numbers of the parameters that may be NULL.
    """
    return _query(parse(text), _Level(tables, nullable_params, {}))


def _query(nodes: Nodes, level: _Level) -> list[tuple[str, str | None]]:
    nodes = _with(nodes, level)
    verb = word(nodes, 0)
    returning = find(nodes, "returning")
    if verb in ("insert", "update", "delete", "merge"):
        if returning == len(nodes):
            return []
        _read_target(nodes[:returning], level)
        return _items(nodes[returning + 1 :], level)
    merged: list[tuple[str, str | None]] = []
    for branch in split(nodes, *_UNIONS):
        if word(branch, 0) in ("all", "distinct"):
            branch = branch[1:]
        columns = _branch(branch, level)
        if not merged:
            merged = columns
        elif len(columns) == len(merged):
            merged = [(name, why or columns[at][1]) for at, (name, why) in enumerate(merged)]
    return merged


def _with(nodes: Nodes, level: _Level) -> Nodes:
    """Read the CTEs into the level and return the statement after them."""
    if word(nodes, 0) != "with":
        return nodes
    at = 2 if word(nodes, 1) == "recursive" else 1
    while at < len(nodes):
        name = nodes[at]
        body = find(nodes, "as", start=at) + 1
        while word(nodes, body) in ("not", "materialized"):
            body += 1
        group = nodes[body] if body < len(nodes) else None
        if not isinstance(name, Token) or not isinstance(group, Group):
            return nodes[len(nodes) :]
        columns = _query(group.items, level.inner())
        listed = nodes[at + 1]
        names = _names(listed) if isinstance(listed, Group) else [item[0] for item in columns]
        level.ctes[name.text] = _by_name(names, columns)
        if word(nodes, body + 1) != ",":
            return nodes[body + 1 :]
        at = body + 2
    return nodes[len(nodes) :]


def _names(group: Group) -> list[str]:
    return [
        part[0].text if part and isinstance(part[0], Token) else ""
        for part in split(group.items, ",")
    ]


def _by_name(names: list[str], columns: list[tuple[str, str | None]]) -> Columns:
    return {name: why for name, (_, why) in zip(names, columns, strict=False)}


def _branch(nodes: Nodes, outer: _Level) -> list[tuple[str, str | None]]:
    if len(nodes) == 1 and isinstance(nodes[0], Group):
        return _query(nodes[0].items, outer.inner())
    level = outer.inner()
    if word(nodes, 0) == "values" and len(nodes) > 1 and isinstance(nodes[1], Group):
        rows = [node for node in nodes[1:] if isinstance(node, Group)]
        width = len(split(rows[0].items, ","))
        whys: list[str | None] = [None] * width
        for row in rows:
            for at, part in enumerate(split(row.items, ",")[:width]):
                whys[at] = whys[at] or _why(part, level)
        return [(f"column{at + 1}", why) for at, why in enumerate(whys)]
    if word(nodes, 0) != "select":
        return []
    start = find(nodes, "from")
    level.grouped = find(nodes, "group") < len(nodes)
    _read_sources(nodes[start + 1 : find(nodes, *_ends(), start=start)], level)
    return _items(nodes[1 : min(start, find(nodes, *_ends()))], level)


def _ends() -> tuple[str, ...]:
    return tuple(clause for clause in _CLAUSES if clause != "on")


def _read_target(nodes: Nodes, level: _Level) -> None:
    """Read the table an insert, update or delete changes, and what it is joined with."""
    at = 2 if word(nodes, 0) in ("insert", "delete", "merge") else 1
    end = find(nodes, "set", "using", "where", "values", "select", "default", start=at)
    for stop, node in enumerate(nodes[at:end], at):
        if isinstance(node, Group):
            end = stop
            break
    _read_sources(nodes[at:end], level)
    more = find(nodes, "from", "using", start=end)
    _read_sources(nodes[more + 1 : find(nodes, "where", start=more)], level)


def _read_sources(nodes: Nodes, level: _Level) -> None:
    for part in split(nodes, ","):
        at = 0
        seen: list[str] = []
        while at < len(part):
            kind = ""
            while word(part, at) in (*_JOINS, "outer", "lateral", "only") and not is_call(part, at):
                joined = word(part, at)
                kind = joined if joined in ("left", "right", "full") else kind
                at += 1
            name, at = _read_source(part, at, level)
            if kind in ("right", "full"):
                level.optional.update(seen)
            if kind in ("left", "full"):
                level.optional.add(name)
            seen.append(name)
            at = find(part, *_JOINS, start=at)


def _read_source(nodes: Nodes, at: int, level: _Level) -> tuple[str, int]:
    """Read one table, CTE, subselect or function with its alias; returns (alias, next position)."""
    columns: Columns | None = None
    name = ""
    node = nodes[at] if at < len(nodes) else None
    if isinstance(node, Group):
        if word(node.items, 0) in ("select", "with", "values") or isinstance(
            node.items[0] if node.items else None, Group
        ):
            columns = dict(_query(node.items, level.inner()))
        else:
            _read_sources(node.items, level)  # a join in parentheses
        at += 1
    elif isinstance(node, Token):
        name = node.text
        if word(nodes, at + 1) == "." and isinstance(named := nodes[at + 2], Token):
            schema, name = name, named.text
            columns = level.tables.get((schema, name))
            at += 2
        else:
            columns = _cte(name, level)
        at += 1
        if at < len(nodes) and isinstance(nodes[at], Group):
            columns = None  # a function: its rows are taken as never null
            at += 1
    if word(nodes, at) == "as":
        at += 1
    alias = nodes[at] if at < len(nodes) else None
    if isinstance(alias, Token) and alias.is_name and alias.text not in (*_JOINS, "on", "using"):
        name = alias.text
        at += 1
        listed = nodes[at] if at < len(nodes) else None
        if isinstance(listed, Group):
            at += 1
            if columns is not None:
                columns = dict(zip(_names(listed), columns.values(), strict=False))
    level.sources[name] = columns
    return name, at


def _cte(name: str, level: _Level | None) -> Columns | None:
    while level is not None:
        if name in level.ctes:
            return level.ctes[name]
        level = level.outer
    return None


def _items(nodes: Nodes, level: _Level) -> list[tuple[str, str | None]]:
    if word(nodes, 0) in ("distinct", "all"):
        nodes = nodes[1:]
        if word(nodes, 0) == "on":
            nodes = nodes[2:]
    found = []
    for part in split(nodes, ","):
        if not part:
            continue
        named = find(part, "as")
        last = part[-1]
        name = last.text if isinstance(last, Token) and last.is_name else ""
        found.append((name, _why(part[:named], level)))
    return found


def _why(nodes: Nodes, level: _Level) -> str | None:
    """Why an expression may be null, None if no reason is seen."""
    if word(nodes, 0) == "case":
        end = find(nodes, "end")
        return _case(nodes[1:end], level) or _why(nodes[end + 1 :], level)
    for segment in split(nodes, "and", "or"):
        if find(segment, "is") < len(segment):
            continue  # a test for null has an answer
        if why := _operand(segment, level):
            return why
    return None


def _case(nodes: Nodes, level: _Level) -> str | None:
    otherwise = find(nodes, "else")
    if otherwise == len(nodes):
        return "a case without else"
    arms = split(nodes[:otherwise], "when")[1:]
    results = [nodes[otherwise + 1 :], *(arm[find(arm, "then") + 1 :] for arm in arms)]
    return next((why for result in results if (why := _why(result, level))), None)


def _operand(nodes: Nodes, level: _Level) -> str | None:
    at = 0
    while at < len(nodes):
        node = nodes[at]
        if isinstance(node, Group):
            why, at = _group(node, level), at + 1
        elif node.kind == "op" and node.text == "::":
            why, at = None, _after_type(nodes, at + 1)
        elif node.kind == "op" and node.text in _JSON_PATHS:
            return f"{node.text} finds nothing where the key is missing"
        elif node.kind == "op" and node.text == "[":
            why, at = None, find(nodes, "]", start=at) + 1
        elif node.kind == "param":
            why = "its parameter may be null" if int(node.text[1:]) in level.params else None
            at += 1
        elif node.text == "null" and node.kind == "word":
            return "a null literal"
        elif node.is_name:
            why, at = _named(nodes, at, level)
        else:
            why, at = None, at + 1
        if why:
            return why
    return None


def _group(group: Group, level: _Level) -> str | None:
    if word(group.items, 0) in ("select", "with"):
        return _scalar(group, level)
    parts = split(group.items, ",")
    return next((why for part in parts if (why := _why(part, level))), None)


def _scalar(group: Group, level: _Level) -> str | None:
    nodes = group.items
    always_one_row = find(nodes, "group", "having", "limit", "offset", *_UNIONS) == len(nodes) and (
        find(nodes, "from") == len(nodes) == find(nodes, "where") or _aggregates_only(nodes)
    )
    if not always_one_row:
        return "a scalar subquery may find no row"
    columns = _query(nodes, level.inner())
    return columns[0][1] if columns else None


def _aggregates_only(nodes: Nodes) -> bool:
    listed = nodes[1 : find(nodes, "from")]
    return any(
        word(listed, at) in (*_AGGREGATES, "count") and isinstance(listed[at + 1], Group)
        for at in range(len(listed) - 1)
    ) or any(isinstance(node, Group) and _aggregates_only((node, *node.items)) for node in listed)


def _named(nodes: Nodes, at: int, level: _Level) -> tuple[str | None, int]:
    """Judge a column or a function call; returns (why, next position)."""
    first = nodes[at]
    assert isinstance(first, Token)
    names = [first.text]
    at += 1
    while (
        word(nodes, at) == "."
        and at + 1 < len(nodes)
        and isinstance(following := nodes[at + 1], Token)
    ):
        names.append(following.text)
        at += 2
    if at < len(nodes) and isinstance(nodes[at], Group):
        arguments = nodes[at]
        assert isinstance(arguments, Group)
        why, at = _call(names[-1], arguments, nodes[at + 1 :], level), at + 1
        while word(nodes, at) in ("over", "filter", "within"):
            at += 3 if word(nodes, at) == "within" else 2
        return why, at
    if names[0] == "case" and len(names) == 1:
        end = find(nodes, "end", start=at)
        return _case(nodes[at:end], level), end + 1
    if names[0] == "array" and word(nodes, at) == "[":
        return None, find(nodes, "]", start=at) + 1
    return (level.bare(names[0]) if len(names) == 1 else level.column(*names[-2:])), at


def _call(name: str, arguments: Group, rest: Nodes, level: _Level) -> str | None:
    parts = split(arguments.items, ",") if arguments.items else []
    if name in _NEVER_NULL:
        return None
    if name in _FIRST_NOT_NULL:
        whys = [_why(part, level) for part in parts]
        return next(iter(whys), None) if all(whys) else None
    if name == "nullif":
        return "nullif is null where its arguments are equal"
    if name in _OTHER_ROWS and len(parts) < 3:
        return f"{name} finds no row at the edge"
    if name in _AGGREGATES and word(rest, 0) != "over":
        if word(rest, 0) == "filter":
            return f"{name} of no rows, where the filter takes none"
        if not level.grouped:
            return f"{name} of no rows is null"
    if name == "current_setting" and len(parts) == 2:
        return "current_setting is null where the setting is unknown"
    if name == "cast":
        parts = [parts[0][: find(parts[0], "as")]]
    return next((why for part in parts if (why := _why(part, level))), None)


def _after_type(nodes: Nodes, at: int) -> int:
    at += 1
    while word(nodes, at) == ".":
        at += 2
    while word(nodes, at) in _LONG_TYPES:
        at += 1
    if at < len(nodes) and isinstance(nodes[at], Group):
        at += 1
    while word(nodes, at) in _LONG_TYPES:
        at += 1
    while word(nodes, at) == "[":
        at = find(nodes, "]", start=at) + 1
    return at
