"""Names of buffers as variables of a script."""

import keyword
import re
from collections.abc import Collection, Iterable


def variables(names: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """For each of `names` a Python name like it, none of them alike, a keyword, or among those `taken`."""
    found: dict[str, str] = {}
    used = set(taken)
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        variable, number = base, 2
        while variable in used:
            variable, number = f"{base}_{number}", number + 1
        used.add(variable)
        found[name] = variable
    return found
