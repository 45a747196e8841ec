"""Print the tables of docs/reference/features.md."""

from itertools import groupby

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.features import TABLE

SEEN = set()


class Watched(Capability):
    """A capability that notes which of its fields are read."""

    def __getattribute__(self, name):
        """Note the field."""
        if name in Capability.__struct_fields__:
            SEEN.add(name)
        return super().__getattribute__(name)


def page() -> str:
    """Return a table for each group of features."""
    groups = groupby(TABLE.rows, key=lambda row: row.group)
    return "\n\n".join("\n".join(lines(name, list(rows))) for name, rows in groups)


def lines(name, rows):
    """Return the heading and the table of a group."""
    yield from (f"## {name[0].upper()}{name[1:]}", "")
    yield from ("| feature | values | can be taken away | fields | fields of `Capability` |", "|---|---|---|---|---|")
    for row in rows:
        removable = ", ".join(each.name for each in row.removables)
        cells = (row.name, ", ".join(row.axis.values), removable, ", ".join(row.fields), ", ".join(asked(row)))
        yield f"| {' | '.join(cells)} |"


def asked(row):
    """Return the fields of a capability that decide which values of a row a backend supports."""
    if row.supported is None:
        return []
    can = Watched()
    SEEN.clear()
    tuple(row.supported(can))
    return [field for field in Capability.__struct_fields__ if field in SEEN]


if __name__ == "__main__":
    print(page())
