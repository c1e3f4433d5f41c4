"""Generated code knows nothing of the runtime."""

import pydantic
from jobs import errors
from psycopg_pool import ConnectionPool

from . import _rows
