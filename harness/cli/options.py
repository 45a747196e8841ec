"""Options and arguments that several commands share. Declaring them imports neither torch nor a backend."""

import contextlib
import functools
import secrets
import shlex
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU, engine_names
from attnfuzz.harness.campaign.plan import LEAST_ALPHA, MOST_EXAMPLES, MOST_JOBS, MOST_SEED, parse_duration
from attnfuzz.harness.cli.terminal import JSON, QUIET, STANDARD_OUTPUT, VERBOSE
from attnfuzz.reference.device import Device

DEFAULT_HOME = Path("attnfuzz-out")

_MOST_DIGITS = 9

_HOME = "attnfuzz.home_of_finding"

_MOST_NAMES = 10
"""Names that a message lists."""


def duration(text: str) -> float:
    """Return the seconds of a duration like 90s, 10m or 1h30m: a type of options."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def lengths(text: str) -> tuple[int, ...]:
    """Return the numbers of a list like 1,5: a type of options."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of lengths: write it like 5 or 1,5")
    return tuple(map(int, parts))


def assignment(text: str) -> tuple[str, str]:
    """Return the name and the value of FIELD=VALUE: a type of options."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not FIELD=VALUE: write it like page_size=16")
    return name, value


class PathTo(click.Path):
    """A path of a file or a folder, or where one can be created: not a device, a FIFO, or a loop of links.

    Opening such a path would block, never end, or raise an exception much later.
    """

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check the path, or fail with the reason."""
        if not str(value):
            self.fail("the path is empty: name a file or a folder.", param, ctx)
        try:
            mode = Path(value).stat().st_mode
        except FileNotFoundError:
            return super().convert(value, param, ctx)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.fail(f"{str(value)!r} can't be used: {reason}. Name another path.", param, ctx)
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            self.fail(f"{str(value)!r} is neither a file nor a folder: name another path.", param, ctx)
        return super().convert(value, param, ctx)


class CaseOrFinding(PathTo):
    """A file with a case, a finding's folder, or a finding of `home_of_finding` by its name or a part of it."""

    def __init__(self) -> None:
        super().__init__(exists=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail with the names that match."""
        home = DEFAULT_HOME if ctx is None else ctx.meta.get(_HOME, DEFAULT_HOME)
        folders = sorted((home / "findings").glob("*/")) if str(value) and not Path(value).exists() else []
        names = [folder.name for folder in folders]
        found = [name for name in names if name == str(value)] or [name for name in names if str(value) in name]
        if len(found) > 1:
            shown = ", ".join(found[:_MOST_NAMES])
            more = f", and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
            self.fail(f"several findings of {home} have {str(value)!r} in their names: {shown}{more}.", param, ctx)
        if not found and (names or home != DEFAULT_HOME):
            of_home = "" if home == DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
            self.fail(
                f"{str(value)!r} does not exist, and no finding of {home} has it in its name: "
                f"attnfuzz findings list{of_home} names them.",
                param,
                ctx,
            )
        return super().convert(folders[names.index(found[0])] if found else value, param, ctx)


def _note_home(ctx: click.Context, _: click.Parameter, home: Path) -> None:
    ctx.meta[_HOME] = home


home_of_finding = click.option(
    "--home",
    type=PathTo(file_okay=False),
    default=DEFAULT_HOME,
    show_default=True,
    metavar="DIR",
    help="Home of a finding that is given by its name.",
    # It is known before the name is looked up.
    is_eager=True,
    expose_value=False,
    callback=_note_home,
)


class InOrder(click.Group):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


class Number(click.types.IntParamType):
    """An integer in a range that includes every sensible value, so help does not show the range."""

    name = "n"

    def __init__(self, least: int, most: int) -> None:
        self._range = click.IntRange(min=least, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value, or fail with the range."""
        return self._range.convert(value, param, ctx)


def counted(least: int = 1, most: int = MOST_EXAMPLES) -> Number:
    """Return the option type of a count, such as the number of examples."""
    return Number(least, most)


SEED = Number(0, MOST_SEED)
JOBS = counted(most=MOST_JOBS)

MOST_REPEATS = 10_000


def seed_option() -> Callable[..., Any]:
    """Return the option --seed, as `seed`: drawn at random unless it is given."""
    meaning = "Seed for drawing cases. The seed of an earlier run draws its cases again.  [default: random]"
    return click.option("--seed", type=SEED, default=lambda: secrets.randbits(32), help=meaning)


def home_option(
    meaning: str = "Folder of campaigns, findings and corpus.",
    default: Path = DEFAULT_HOME,
    *,
    exists: bool = False,
) -> Callable[..., Any]:
    """Return the option --home, as `home`: a folder that is created on demand, or must exist (`exists`)."""
    kind = PathTo(exists=exists, file_okay=False)
    return click.option("--home", type=kind, default=default, show_default=True, metavar="DIR", help=meaning)


ledger_option = click.option(
    "--ledger",
    type=PathTo(exists=True, dir_okay=False),
    help="File of known findings.  [default: attnfuzz-ledger.toml, if it exists]",
)


def repeat_option(meaning: str, **others: Any) -> Callable[..., Any]:
    """Return the option --repeat, as `repeat`: how often a case is run."""
    return click.option("--repeat", **{"type": counted(most=MOST_REPEATS), "help": meaning, **others})


def output_option(meaning: str, *, folder: bool = False) -> Callable[..., Any]:
    """Return the option --output, as `output`: the file to write, or the folder to write into."""
    path = PathTo(file_okay=not folder, dir_okay=folder)
    return click.option("--output", "-o", type=path, metavar="DIR" if folder else "FILE", help=meaning)


def number(text: str) -> float:
    """Convert `--alpha`, whose metavar in the help is this function's name.

    The minimum keeps the share of a single row from underflowing.
    """
    with contextlib.suppress(ValueError):
        if LEAST_ALPHA <= (alpha := float(text)) < 1:
            return alpha
    raise click.BadParameter(f"{text!r} is not a number from {LEAST_ALPHA:g} to below 1")


contract_option = click.option(
    "--contract",
    type=click.Choice(["declared", "strict"]),
    default="declared",
    show_default=True,
    help="Judge by the contract that the backend declares, or by the strictest one, whose additional failures are "
    "listed as gaps.",
)


def device_option(meaning: str) -> Callable[..., Any]:
    """Return the option --device, as `device`: a Device, or None."""
    return click.option(
        "--device",
        type=click.Choice([device.value for device in Device]),
        callback=lambda _ctx, _option, value: None if value is None else Device(value),
        help=meaning,
    )


def tree_option(meaning: str) -> Callable[..., Any]:
    """Return an option for each engine, named after it; their values, by engine, are the parameter `trees`."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_trees(*args: Any, **given: Any) -> Any:
            trees = {name: given.pop(_parameter(name)) for name in engine_names()}
            return command(*args, trees=trees, **given)

        decorated: Callable[..., Any] = with_trees
        for name in engine_names():
            decorated = click.option(
                f"--{name}",
                _parameter(name),
                type=click.Path(exists=True, file_okay=False, path_type=Path),
                metavar="PATH",
                help=meaning.format(engine=name),
            )(decorated)
        return decorated

    return with_options


def _parameter(engine: str) -> str:
    return f"tree_of_{engine}"


def backends_option(meaning: str) -> Callable[..., Any]:
    """Return the options that choose backends, as `backends`, `device` and `trees`."""
    of_releases = "".join(f", {name}==VERSION:NAME one of a release of {name}" for name in engine_names())
    option = click.option(
        "--backend",
        "backends",
        multiple=True,
        metavar="NAME",
        help=f"{meaning}; may be given several times. FILE.py:NAME is a backend of your own{of_releases}; "
        "libraries stands for those of all installed libraries.  "
        f"[default: {', '.join(DEFAULT_BACKENDS)}; with --device cuda {', '.join(DEFAULT_BACKENDS_ON_GPU)}]",
    )
    where = device_option("Device to run on; on a Hopper GPU, trtllm_mha is hopper:trtllm_mha.  [default: by the name]")
    tree = tree_option("Source tree of {engine} whose backends are tested: all of them, or those of --backend.")
    return lambda command: option(where(tree(command)))


def answer_options(quiet: str, verbose: str | None = None, *, json: bool = True) -> Callable[..., Any]:
    """Return the options --json, --quiet and --verbose, which `terminal` reads: commands don't get them as arguments.

    `quiet` and `verbose` complete "print ..." in the help. Without `verbose`, a command has no such option.
    """

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        if verbose is not None:
            command = _remembered("--verbose", "-v", key=VERBOSE, is_flag=True, help=f"Also print {verbose}.")(command)
        command = _remembered("--quiet", "-q", key=QUIET, is_flag=True, help=f"Print {quiet}.")(command)
        if json:
            meaning = "Write the answer as JSON. With -, it goes to standard output, and text to standard error."
            command = _remembered("--json", key=JSON, type=_FileToWrite(), metavar="FILE", help=meaning)(command)
        return command

    return with_options


class _FileToWrite(PathTo):
    """A file in an existing folder, so that a long run does not end with an answer that can't be written; or "-"."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == STANDARD_OUTPUT:
            return Path(value)
        path = super().convert(value, param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{str(path.parent)!r} is not a folder: name a file in one.", param, ctx)
        return path


def _remembered(*names: str, key: str, **attributes: Any) -> Callable[..., Any]:
    """Return an option whose value is stored in the context."""

    def remember(ctx: click.Context, _option: click.Parameter, value: Any) -> None:
        ctx.meta[key] = value

    return click.option(*names, callback=remember, expose_value=False, **attributes)


ALWAYS = ("json", "quiet", "verbose")
"""Options that can be combined with any other."""


def check_alone(ctx: click.Context, resumed: str, but: Collection[str] = ()) -> None:
    """Raise UsageError for a parameter that --resume would ignore: all but --home and those in `but`."""
    words = f"--resume continues {resumed} with its own options: leave {{}} out, or begin another"
    check_only(ctx, {"resume", *but}, words)


def check_only(ctx: click.Context, allowed: Collection[str], words: str) -> None:
    """Raise UsageError, with `words` about its name, for a given parameter that is neither `allowed` nor --home."""
    for given in ctx.command.params:
        name = given.name or ""
        if name not in {"home", *ALWAYS, *allowed} and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = given.opts[0] if isinstance(given, click.Option) else given.human_readable_name
            raise click.UsageError(words.format(shown))
