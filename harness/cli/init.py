"""Writing the files of a project that fuzzes its own kernel."""

from importlib.resources import files
from pathlib import Path

from attnfuzz.harness.cli.terminal import Terminal, details, print_line

_FILES = {
    "my_backend.py": "the kernel as a backend: call yours in attend",
    "test_my_backend.py": "a test of pytest",
    "attnfuzz-ledger.toml": "known findings",
    "requirements-fuzz.txt": "the requirements of the workflow",
    ".github/workflows/fuzz.yml": "fuzzes each pull request: fill in the owner of the action",
}


def init() -> None:
    """Write the files that the current folder lacks, and print the next commands. Raises OSError."""
    for name, purpose in _FILES.items():
        path = Path(name)
        # A workflow is named for its event in the docs.
        source = "pull_request.yml" if path.suffix == ".yml" else path.name
        if path.exists():
            print_line(Terminal(), f"{name} exists, and is kept.")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files("attnfuzz.harness.cli.project").joinpath(f"{source}.j2").read_text())
        print_line(Terminal(), f"{name}: {purpose}")
    print_line(details(), "\nNow:\n  attnfuzz check my_backend.py:MINE\n  attnfuzz fuzz --backend my_backend.py:MINE")
