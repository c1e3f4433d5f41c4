"""The words select * count in a docstring too, since a reader greps for them."""

# select * from comments, they are fine
TEXT = "select j.id, j.* from jobs.job as j where j.id = $1"
ADDED = "select " + "* from jobs.job"
JOINED = " ".join(["select", "distinct", "*", "from", "jobs.job"])


def formatted(table: str) -> str:
    return f"select * from {table}" f" where {'returning *'}"


PIECE = " returning j.*"
COUNT = "select /* * */ count(*) from jobs.job"
PARTIAL = "select * from jobs.job where "
QUOTED = "it's select\n    * from jobs.job"
