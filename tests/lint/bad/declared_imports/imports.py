"""Imports of a module in jobs/."""

import os
import requests
import yaml.loader
from pglast import ast
from psycopg import sql
from . import errors


def later() -> None:
    import structlog
