"""docs/errors.md has a section for every code, and none for a code that does not exist."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest

import jobs
from jobs import errors, faults
from jobs.errors import JobsError
from tests.lint import tree

_SECTION = re.compile(r"^## (?P<code>\S+)\n(?P<body>.*?)(?=^## |\Z)", re.M | re.S)
_EXAMPLE = re.compile(r"^```\n(?P<message>[^\n]+)\n```$", re.M)


def kinds() -> list[type[JobsError]]:
    """Every error class of the library."""
    found = [
        kind
        for kind in (vars(errors) | vars(faults)).values()
        if inspect.isclass(kind) and issubclass(kind, JobsError)
    ]
    assert JobsError in found
    return found


def problems(text: str, classes: list[type[JobsError]]) -> list[str]:
    """What is missing from the document, superfluous in it, or in no good form."""
    listed = [(match["code"], match["body"]) for match in _SECTION.finditer(text)]
    sections = dict(listed)
    known = {kind.code: kind for kind in classes}
    found = [f"{code}: two sections" for code, n in Counter(c for c, _ in listed).items() if n > 1]
    found += [f"{code}: no section" for code in known if code not in sections]
    found += [f"{code}: no such code" for code in sections if code not in known]
    for code in sorted(known.keys() & sections.keys()):
        found += [f"{code}: {problem}" for problem in _problems_of(known[code], sections[code])]
    return found


def _problems_of(kind: type[JobsError], body: str) -> list[str]:
    found = []
    if not body.lstrip().startswith(f"`{kind.__name__}`"):
        found.append(f"does not begin with its class, {kind.__name__}")
    found += [
        f"has no {part}" for part in ("When", "Cause", "Fix") if f"\n- **{part}:** " not in body
    ]
    examples = _EXAMPLE.findall(body)
    if len(examples) != 1:
        return [*found, "has not exactly one example message"]
    shown = re.fullmatch(r".+ \[(\w+)\] Fix: (.+)", examples[0])
    if shown is None:
        found.append("its example is no message of ours")
    elif not kind.__subclasses__() and shown[1] != kind.code:
        found.append("its example has another code")
    return found


def test_every_code_has_its_section() -> None:
    (path,) = tree.files("docs/errors.md")
    assert problems(tree.read(path), kinds()) == []


def test_the_overview_names_every_code_that_is_raised() -> None:
    (path,) = tree.files("docs/errors.md")
    overview = tree.read(path).partition("\n## ")[0]
    named = set(re.findall(r"`((?:JOB|OUTBOX)_\w+)`", overview))
    bases = {"JOBS_ERROR", "JOB_ENQUEUE_FAILED", "JOB_RESULT_UNAVAILABLE"}
    assert named == {kind.code for kind in kinds()} - bases


def test_codes_are_unique_and_every_error_is_public() -> None:
    assert [n for n in Counter(kind.code for kind in kinds()).values() if n > 1] == []
    assert [
        kind.__name__ for kind in kinds() if getattr(jobs, kind.__name__, None) is not kind
    ] == []
    assert [kind.__name__ for kind in kinds() if kind.__name__ not in jobs.__all__] == []
    assert [kind.__name__ for kind in kinds() if not kind.fix.endswith(".")] == []


class SampleError(JobsError):
    """Raised when a test needs one."""

    code = "JOB_SAMPLE"
    fix = "Do it."


GOOD = """# Errors

## JOB_SAMPLE

`SampleError`.

- **When:** w
- **Cause:** c
- **Fix:** f

```
it went wrong [JOB_SAMPLE] Fix: Do it.
```
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("## JOB_SAMPLE", "## JOB_SAMPEL", "JOB_SAMPLE: no section"),
        ("## JOB_SAMPLE", "## JOB_SAMPEL", "JOB_SAMPEL: no such code"),
        ("# Errors", GOOD, "two sections"),
        ("`SampleError`", "`Other`", "its class"),
        ("- **When:** w\n", "", "no When"),
        ("- **Cause:** c\n", "", "no Cause"),
        ("- **Fix:** f\n", "", "no Fix"),
        ("```\nit went wrong [JOB_SAMPLE] Fix: Do it.\n```\n", "", "exactly one example"),
        ("[JOB_SAMPLE]", "[JOB_OTHER]", "another code"),
        (" Fix: Do it.", "", "no message of ours"),
    ],
)
def test_a_wrong_document_is_told(old: str, new: str, says: str) -> None:
    assert problems(GOOD, [SampleError]) == []
    assert says in "\n".join(problems(GOOD.replace(old, new, 1), [SampleError]))
