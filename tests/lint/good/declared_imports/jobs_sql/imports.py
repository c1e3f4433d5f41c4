import datetime as dt

import psycopg.rows
from psycopg import RawCursor

from . import _rows
from ._rows import rows_of
