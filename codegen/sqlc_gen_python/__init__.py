"""
The sqlc plugin of this project: typed psycopg 3 functions from reviewed statements.

Standard library only, so that the interpreter sqlc finds on PATH can run it without an
installation. `plugin.main` is the entry; the other modules follow the data:
`request` (what sqlc says) -> `headers`, `types`, `naming`, `sqltext` (what we know about it)
-> `model` (one checked statement) -> `render_*` (files).
"""

VERSION = "1"
