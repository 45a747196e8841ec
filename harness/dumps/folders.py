"""The files of a dump, by paths that never leave its folder."""

import stat
from pathlib import Path

from attnfuzz.harness.dumps.recorded import DumpError


def file_in(root: Path, path: Path) -> Path | None:
    """`path`, a regular file under `root`; None if there is nothing.

    Raises:
        DumpError: it is a link out of `root`, no regular file, or can't be looked at.

    """
    mode = _mode(root, path)
    if mode is None:
        return None
    # A pipe would block whoever opens it.
    if not stat.S_ISREG(mode):
        raise DumpError(f"{path} is no regular file: it is not part of a dump")
    return path


def folders_in(root: Path, folder: Path) -> list[Path]:
    """The folders in `folder`, by name; none if it does not exist.

    Raises:
        DumpError: `folder`, or one in it, is a link out of `root` or can't be looked at.

    """
    if _mode(root, folder) is None:
        return []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error
    return [entry for entry in entries if stat.S_ISDIR(_mode(root, entry) or 0)]


def unreadable(path: Path, error: OSError) -> DumpError:
    """What to raise for a file of a dump that the system does not let us read."""
    return DumpError(f"can't read {path}: {error.strerror or error}; check that it exists and that you may read it")


def _mode(root: Path, path: Path) -> int | None:
    """The file mode, None if there is nothing."""
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise DumpError(f"{path} is a link that leaves {root}: a dump is read from its own folder alone")
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except RuntimeError as error:  # how pathlib tells of a link to itself
        raise DumpError(f"{path} is a link that leads nowhere: {error}") from error
