"""`python -m codegen [--check]`."""

from __future__ import annotations

import sys

from codegen.generate import main

sys.exit(main())
