"""Print the tables of docs/reference/features.md."""

from itertools import groupby

from attnfuzz.reference.features import TABLE


def page() -> str:
    """Return a table for each group of features."""
    groups = groupby(TABLE.rows, key=lambda row: row.group)
    return "\n\n".join("\n".join(lines(name, list(rows))) for name, rows in groups)


def lines(name, rows):
    """Return the heading and the table of a group."""
    yield from (f"## {name[0].upper()}{name[1:]}", "", "| axis | values | can be taken away |", "|---|---|---|")
    for row in rows:
        removable = ", ".join(each.name for each in row.removables)
        yield f"| {row.name} | {', '.join(row.axis.values)} | {removable} |"


if __name__ == "__main__":
    print(page())
