"""The `attnfuzz` command: its group, and the handling of errors and exit codes."""

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

import attnfuzz
from attnfuzz.harness.cli.options import InOrder
from attnfuzz.harness.cli.terminal import Exit, legible, warn
from attnfuzz.harness.workers import left_behind
from attnfuzz.harness.workers.system import require_linux
from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.reference.user_error import UserError

_COMPLETION = "_ATTNFUZZ_COMPLETE"
"""The environment variable in which a shell requests completion."""


class ReaderGone(Exception):
    """The reader of standard output has closed it, as head does once it has read enough."""


@contextlib.contextmanager
def _reader_may_go() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


class PipedGroup(InOrder):
    """A group that raises ReaderGone for a broken pipe. click would exit with 1, which means "something was found"."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the arguments of the group."""
        with _reader_may_go():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _reader_may_go():
            return super().invoke(ctx)


@click.group(cls=PipedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(attnfuzz.__version__, prog_name="attnfuzz")
def cli() -> None:
    """Fuzz the attention kernels of LLM serving engines."""
    require_linux()


for command in shipped("attnfuzz.commands").values():
    cli.add_command(command)


def main() -> None:
    """Run the command line and exit. Errors that the user can fix print one message, bugs of ours a traceback.

    Both exit with 2: codes 0 and 1 are only those that a command returns. Processes that could not be ended are named.
    """
    if _COMPLETION in os.environ:
        # click prints completions for the shell and exits; no command is run.
        cli.main(prog_name="attnfuzz", complete_var=_COMPLETION)
    code = _exit_code()
    if left := left_behind.words():
        _say(f"{left}.")
    sys.exit(code)


def _exit_code() -> int:
    for stream in (sys.stdout, sys.stderr):
        # A path may contain bytes that are not UTF-8, which Python represents as lone surrogates.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return int(cli.main(prog_name="attnfuzz", standalone_mode=False) or Exit.CLEAN)
    except ReaderGone:
        # Output that is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.CLOSED
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(file=shown)
        _say(legible(shown.getvalue()))
    except (click.Abort, KeyboardInterrupt):
        _say("Interrupted.")
        return Exit.INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - nothing may escape: exit code 1 would mean "findings"
        if (message := _fixable(error)) is not None:
            _say(legible(f"Error: {message}"))
        else:
            _say(f"{traceback.format_exc()}attnfuzz itself failed: this is a bug in attnfuzz, please report it.")
    return Exit.FAILED


def _say(text: str) -> None:
    # Standard error may be closed by now: the exit code stays the same.
    with contextlib.suppress(OSError):
        warn(text.rstrip("\n"))


def _fixable(error: BaseException) -> str | None:
    """Return the message for an error that the user can fix; None for a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (missing := _package(error)) is not None:
        return f"{missing} is missing in {sys.prefix}: install attnfuzz with its dependencies, or pip install {missing}"
    if isinstance(error, OSError) and error.filename is not None:
        advice = _ADVICE.get(error.errno or 0, "name another path")
        return f"{error.strerror or error} ({error.filename}): {advice}"
    if isinstance(error, OSError) and error.errno in _ADVICE:
        return f"{error.strerror}: {_ADVICE[error.errno]}"
    return None


def _package(error: ModuleNotFoundError) -> str | None:
    """Return the package that an import lacks; None if the module is one of attnfuzz or of Python."""
    package = (error.name or "").partition(".")[0]
    return package if package and package not in {"attnfuzz", *sys.stdlib_module_names} else None


_ADVICE = {
    errno.ENOSPC: "free some space, or name another folder with --home; findings so far are kept",
    errno.EDQUOT: "free some of your quota, or name another folder with --home; findings so far are kept",
    errno.EIO: "it can't be read or written: name another path",
    errno.EACCES: "change the permissions, or name another path",
    errno.EROFS: "name a path that can be written to",
    errno.ENOTDIR: "name a folder, not a file",
    errno.EEXIST: "name a folder, not a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOENT: "create the folder first, or name another path",
}


if __name__ == "__main__":
    main()
