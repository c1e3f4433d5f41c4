"""Registries: which handles they take from modules, in which order, and what they refuse."""

from __future__ import annotations

import locale
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

import jobs
from jobs.errors import ConfigError, DeclarationError, DuplicateName, ModuleShadowed
from jobs.registry import Registry, find_shadowed, load
from tests.support.server import ROOT


class Input(BaseModel):
    value: int = 0


def declare(function: str, **changes: Any) -> jobs.JobHandle[Any]:
    def fn(input: Input) -> None: ...

    fn.__name__ = fn.__qualname__ = function
    settings: dict[str, Any] = {"tenant": jobs.NO_TENANT, "idempotency_key": jobs.NO_KEY}
    return jobs.job(**settings | changes)(fn)


def module(name: str = "app", /, **exports: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(exports)
    return made


def test_jobs_are_found_by_name_and_the_rest_is_ignored() -> None:
    send, drop = declare("send"), declare("drop")
    lookalike = SimpleNamespace(**{name: getattr(send, name) for name in ("name", "queue", "fn")})
    registry = Registry.of(
        module(send=send, drop=drop, lookalike=lookalike, Input=Input, fn=send.fn, jobs=jobs, x=1)
    )
    assert registry.get("send") is send
    assert registry.get("drop") is drop
    assert registry.get("lookalike") is None
    assert len(registry) == 2
    assert "send" in registry
    assert "fn" not in registry
    assert repr(registry) == "<Registry of drop, send>"


def test_no_modules_or_modules_without_jobs_make_an_empty_registry() -> None:
    assert len(Registry.of()) == 0
    assert list(Registry.of(module(), module())) == []


def test_order_is_by_code_point_whatever_the_locale() -> None:
    names = ["b", "B", "a", "ä", "z", "_c", "a1", "\U0001f600", "\uffff"]
    exports: dict[str, object] = {
        f"export_{index}": declare(name) for index, name in enumerate(names)
    }
    before = locale.setlocale(locale.LC_COLLATE)
    try:
        locale.setlocale(locale.LC_COLLATE, "")
        found = [handle.name for handle in Registry.of(module(**exports))]
    finally:
        locale.setlocale(locale.LC_COLLATE, before)
    assert found == sorted(names)


def test_a_stated_name_wins_over_the_exported_one() -> None:
    handle = declare("fn", name="pinned.name")
    registry = Registry.of(module(renamed_export=handle))
    assert registry.get("pinned.name") is handle
    assert registry.get("renamed_export") is None


def test_a_job_reached_by_two_paths_counts_once() -> None:
    send = declare("send")
    one, two = module("app.one", send=send), module("app.two", send=send)
    assert len(Registry.of(one, two, one)) == 1


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(DuplicateName, match="two jobs have the name 'send'"):
        Registry.of(
            module("app.one", send=declare("send")), module("app.two", send=declare("send"))
        )


def test_one_job_under_two_names_is_refused_in_one_module_or_several() -> None:
    send = declare("send")
    with pytest.raises(DuplicateName, match=r"app\.send and as app\.alias"):
        Registry.of(module(send=send, alias=send))
    with pytest.raises(DuplicateName, match=r"one\.send and as two\.alias"):
        Registry.of(module("one", send=send), module("two", alias=send))
    assert len(Registry.of(module(send=send, _private=send))) == 1


@pytest.mark.parametrize("thing", ["app.jobs", ["app.jobs"], declare("loose"), SimpleNamespace()])
def test_anything_but_a_module_is_refused(thing: Any) -> None:
    with pytest.raises(DeclarationError, match="takes modules"):
        Registry.of(thing)


# --- module:attribute


APP = """
import jobs
from pydantic import BaseModel

class Input(BaseModel):
    value: int = 0

@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def send(input: Input) -> None: ...

class settings:
    registry = jobs.Registry.of(__import__("sys").modules[__name__])

registry = settings.registry
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "registry_app.py").write_text(APP)
    (tmp_path / "registry_broken.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "registry_app", raising=False)
    return tmp_path


@pytest.mark.usefixtures("app")
def test_load_finds_a_registry() -> None:
    assert [handle.name for handle in load("registry_app:registry")] == ["send"]
    assert load("registry_app:settings.registry") is load("registry_app:registry")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("registry_app", "module:attribute"),
        ("registry_app:", "module:attribute"),
        (":registry", "module:attribute"),
        ("", "module:attribute"),
        (".registry_app:registry", "module:attribute"),
        ("registry_missing:registry", "no module 'registry_missing'"),
        ("registry_app.inner:registry", "registry_app"),
        ("registry_app:other", "no 'other'"),
        ("registry_app:send", "must be a jobs.Registry"),
        ("registry_app:settings", "must be a jobs.Registry"),
    ],
)
def test_load_says_what_is_missing(where: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(where)


@pytest.mark.usefixtures("app")
def test_load_lets_the_modules_own_errors_pass() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load("registry_broken:registry")


# --- an application module called jobs


def test_a_module_called_jobs_is_told_plainly(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleShadowed, match="'jobs' is this library"):
        load("jobs:registry")
    (app / "jobs.py").write_text(APP)
    with pytest.raises(ModuleShadowed) as caught:
        load("jobs:registry")
    assert str(app / "jobs.py") in caught.value.cause
    assert "Rename" in caught.value.fix
    with pytest.raises(ModuleShadowed, match="'send'"):
        from jobs import send  # type: ignore[attr-defined]  # noqa: F401
    monkeypatch.undo()
    monkeypatch.chdir(app)
    assert find_shadowed() == app / "jobs.py"


def test_modules_of_the_library_are_found_beside_such_a_module(app: Path) -> None:
    (app / "jobs.py").write_text(APP)
    (app / "look.py").write_text("from jobs import control, inspect")
    done = subprocess.run(
        [sys.executable, "-c", "import jobs, look; print(jobs.control.cancel.__name__)"],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'generated'}:{app}"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cancel\n", "")


def test_without_such_a_module_a_missing_name_is_an_ordinary_error() -> None:
    assert find_shadowed() is None
    assert not hasattr(jobs, "send")
    with pytest.raises(ImportError, match="cannot import name"):
        from jobs import send  # type: ignore[attr-defined]  # noqa: F401


def test_a_package_called_jobs_is_seen_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_shadowed() is None  # a folder without __init__.py hides nothing
    (tmp_path / "jobs" / "__init__.py").touch()
    assert find_shadowed() == tmp_path / "jobs" / "__init__.py"


def test_every_public_name_exists_and_importing_is_silent() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from jobs import *"],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
