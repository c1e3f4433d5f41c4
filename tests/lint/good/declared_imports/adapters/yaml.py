from __future__ import annotations

import yaml

from jobs import errors
