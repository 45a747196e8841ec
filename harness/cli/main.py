"""The `attnfuzz` command: its group, and what becomes of errors and exit codes."""

import errno
import sys
import traceback

import click

import attnfuzz
from attnfuzz.harness.campaign.home import HomeError
from attnfuzz.harness.campaign.log import LogError
from attnfuzz.harness.campaign.ray_jobs import RayError
from attnfuzz.harness.check import CannotRun
from attnfuzz.harness.cli.backends import backends
from attnfuzz.harness.cli.bisect import bisect
from attnfuzz.harness.cli.bugs import bugs
from attnfuzz.harness.cli.build import build
from attnfuzz.harness.cli.calibrate import calibrate
from attnfuzz.harness.cli.corpus import corpus
from attnfuzz.harness.cli.defects import defects
from attnfuzz.harness.cli.exits import Exit
from attnfuzz.harness.cli.export import export
from attnfuzz.harness.cli.findings import findings
from attnfuzz.harness.cli.fuzz import fuzz
from attnfuzz.harness.cli.import_dump import import_dump
from attnfuzz.harness.cli.replay import replay
from attnfuzz.harness.cli.report import report
from attnfuzz.harness.cli.shrink import shrink_case
from attnfuzz.harness.cli.sweep import sweep
from attnfuzz.harness.cli.triage import triage
from attnfuzz.harness.corpus import CorpusError, DatabaseError
from attnfuzz.harness.defects.results import DefectScoreError
from attnfuzz.harness.findings.ledger import LedgerError
from attnfuzz.harness.registry import BackendFileError, UnknownBackend, WrongDevice
from attnfuzz.harness.report.printable import printable
from attnfuzz.harness.report.sources import NoCampaignError
from attnfuzz.harness.sweep.results import SweepError
from attnfuzz.harness.workers.lifeline import CannotStart
from attnfuzz.harness.workers.pool import Refused
from attnfuzz.kernels.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.sglang.errors import ReleaseError
from attnfuzz.kernels.sglang.naming import BadName
from attnfuzz.reference.calibration import CalibrationError
from attnfuzz.reference.case_file import CaseFileError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(attnfuzz.__version__, prog_name="attnfuzz")
def cli() -> None:
    """Fuzz the attention kernels of LLM serving engines."""


for command in (
    fuzz,
    report,
    replay,
    import_dump,
    triage,
    shrink_case,
    export,
    bisect,
    sweep,
    findings,
    corpus,
    bugs,
    defects,
    backends,
    build,
    calibrate,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line and exit: a user's mistake is one line, an error of ours a traceback; both exit with 2."""
    try:
        sys.exit(cli.main(prog_name="attnfuzz", standalone_mode=False))
    except click.ClickException as error:
        error.show()
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last stop: exit code 1 would say "findings"
        if (message := _users_mistake(error)) is not None:
            click.echo(f"Error: {printable(message)}", err=True)
        else:
            traceback.print_exc()
            click.echo("attnfuzz itself failed: this is a bug in attnfuzz, please report it.", err=True)
    sys.exit(Exit.FAILED)


def _users_mistake(error: Exception) -> str | None:
    """What to tell a user who can do something about `error`; None if the fault is ours."""
    if isinstance(error, _USERS_MISTAKES):
        return str(error)
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}: {_OF_THE_MACHINE[error.errno]}"
    return None


_USERS_MISTAKES = (
    BackendFileError,
    BadName,
    BuildFailed,
    CalibrationError,
    CannotRun,
    CannotStart,
    CaseFileError,
    CorpusError,
    DatabaseError,
    DefectScoreError,
    HomeError,
    LedgerError,
    LogError,
    NoCampaignError,
    NoCompiler,
    RayError,
    Refused,
    ReleaseError,
    SweepError,
    UnknownBackend,
    WrongDevice,
)

_OF_THE_MACHINE = {
    errno.ENOSPC: "free some space, or name another folder with --out; what was filed before is kept",
    errno.EDQUOT: "free some of your quota, or name another folder with --out; what was filed before is kept",
    errno.EACCES: "change the permissions, or name another path",
    errno.EROFS: "name a path that can be written to",
    errno.ENOTDIR: "name a folder, not a file",
    errno.EEXIST: "name a folder, not a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOENT: "make the folder first, or name another path",
}


if __name__ == "__main__":
    main()
