from __future__ import annotations

import pydantic
from jobs_sql import claim
from psycopg_pool import ConnectionPool

from jobs import errors
