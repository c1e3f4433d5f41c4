"""Run by test_strictness.py in a process of its own; never collected by itself."""

from __future__ import annotations

import pytest

pytest.importorskip("no_such_module_anywhere")
