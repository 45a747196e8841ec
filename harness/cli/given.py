"""What several commands are given: durations, counts, paths, names, devices, backends, and cases from files."""

import difflib
import functools
import math
import secrets
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import click
from click.core import ParameterSource
from msgspec.structs import replace

from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU, engines
from attnfuzz.harness.backends.registry import on_device, resolve
from attnfuzz.harness.campaign.plan import LEAST_ALPHA, MOST_EXAMPLES, MOST_JOBS, MOST_SEED, parse_duration
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.harness.findings.finding import case_path
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.kernels.engine import Engine
from attnfuzz.reference import case_file
from attnfuzz.reference.case_file import AnyCase
from attnfuzz.reference.device import Device

_MOST_LISTED = 10
"""Names that a message lists."""


def duration(text: str) -> float:
    """The seconds of a duration like 90s, 10m or 1h30m: a type of options."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class PathTo(click.Path):
    """A path that names a file or a folder, or that one may be made at: no device or FIFO, no loop, no other nonsense.

    What such a path does to whatever opens it (block, never end, raise) would otherwise be found out much later.
    """

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check it, or fail with what is wrong."""
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


def counted(least: int = 1, most: int = MOST_EXAMPLES) -> click.IntRange:
    """A number of things to do, with an upper bound that no run comes near."""
    return click.IntRange(min=least, max=most)


SEED = click.IntRange(min=0, max=MOST_SEED)
JOBS = counted(most=MOST_JOBS)


def seed_option(meaning: str) -> Callable[..., Any]:
    """The option --seed, as `seed`: drawn at random unless it is given."""
    return click.option("--seed", type=SEED, default=lambda: secrets.randbits(32), help=meaning)


def out_option(default: str, meaning: str, *, exists: bool = False) -> Callable[..., Any]:
    """The option --out, as `out`: a folder, which is made if need be unless it has to be there (`exists`)."""
    kind = PathTo(exists=exists, file_okay=False)
    return click.option("--out", type=kind, default=Path(default), show_default=True, help=meaning)


class FalseAlarms(click.FloatRange):
    """An expected number of false alarms. Far below the least, what a single row may spend is lost to underflow."""

    def __init__(self) -> None:
        super().__init__(min=LEAST_ALPHA, max=1, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert it, or fail with the range; NaN is in no range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{number} is not in the range {self._describe_range()}.", param, ctx)
        return number


contract_option = click.option(
    "--contract",
    type=click.Choice(["declared", "strict"]),
    default="declared",
    show_default=True,
    help="Judge by what the backend declares, or by the best of all (what only that breaks is listed as gaps).",
)


def device_option(meaning: str) -> Callable[..., Any]:
    """The option --device, as `device`: a Device, or None."""
    return click.option(
        "--device",
        type=click.Choice([device.value for device in Device]),
        callback=lambda _ctx, _option, value: None if value is None else Device(value),
        help=meaning,
    )


class EngineTree(NamedTuple):
    """A source tree of an engine."""

    engine: Engine
    path: Path

    def names(self, backends: Sequence[str]) -> tuple[str, ...]:
        """Return these backends, those without a release as the tree has them. Raises EngineError."""
        return self.engine.of_tree(self.path, backends)


def tree_option(meaning: str) -> Callable[..., Any]:
    """An option for each engine, called as the engine is, as `tree`: an EngineTree, or None."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_tree(*args: Any, **options: Any) -> Any:
            named = {engine: options.pop(_parameter(engine)) for engine in engines()}
            given = [EngineTree(engine, path) for engine, path in named.items() if path is not None]
            if len(given) > 1:
                both = " and ".join(f"--{each.engine.name}" for each in given)
                raise click.UsageError(f"{both} are source trees of different engines: give one")
            return command(*args, tree=given[0] if given else None, **options)

        for engine in engines():
            option = click.option(
                f"--{engine.name}",
                _parameter(engine),
                type=click.Path(exists=True, file_okay=False, path_type=Path),
                metavar="PATH",
                help=meaning.format(engine=engine.title, kind=f"{engine.name}:{engine.kinds[0]}"),
            )
            with_tree = option(with_tree)
        return with_tree

    return with_options


def _parameter(engine: Engine) -> str:
    return f"tree_of_{engine.name}"


def backends_option(meaning: str) -> Callable[..., Any]:
    """The option --backend, given any number of times, as `backends`.

    --device makes them those of a device. The option of an engine says in which source tree its backends are.
    """

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_backends(
            *args: Any, backends: tuple[str, ...], device: Device | None, tree: EngineTree | None, **others: Any
        ) -> Any:
            named = backends or (DEFAULT_BACKENDS_ON_GPU if device is Device.CUDA else DEFAULT_BACKENDS)
            if tree is not None:
                named = tree.names(backends)
            return command(*args, backends=tuple(dict.fromkeys(on_device(name, device) for name in named)), **others)

        of_releases = (f", {e.name}==VERSION:{e.kinds[0]} one of a release of {e.title}" for e in engines())
        option = click.option(
            "--backend",
            "backends",
            multiple=True,
            metavar="NAME",
            help=f"{meaning}; may be given several times. FILE.py:NAME is a backend of yours"
            f"{''.join(of_releases)}.  "
            f"[default: {', '.join(DEFAULT_BACKENDS)}; with --device cuda {', '.join(DEFAULT_BACKENDS_ON_GPU)}]",
        )
        where = device_option("Where: on a Hopper GPU, trtllm_mha is hopper:trtllm_mha.  [default: by the name]")
        tree_of_engine = tree_option(
            "A source tree of {engine}: what --backend {kind} is, or, without --backend, what is tested."
        )
        decorated: Callable[..., Any] = option(where(tree_of_engine(with_backends)))
        return decorated

    return with_options


def case_at(path: Path, backend: str | None = None, tree: EngineTree | None = None) -> AnyCase:
    """The case in a file or in a finding's folder, for another `backend` if one is given.

    With a source `tree`, a backend of any release of its engine is that of the tree instead.

    Raises CaseFileError, or UnknownBackend, BackendFileError, BadInput if the backend can't run it.
    """
    case = case_file.load(case_path(path))
    if backend is not None:
        case = replace(case, backend=backend)
    if tree is not None:
        case = replace(case, backend=tree.engine.in_tree(case.backend, tree.path))
    lacking = why_not(resolve(case.backend), case)
    if lacking is not None:
        raise BadInput(f"{case.backend} does not support {lacking}, which this case has. Try another --backend.")
    return case


def check_alone(ctx: click.Context, what: str, but: Collection[str] = ()) -> None:
    """Raise UsageError for what is given beside --resume, which would be ignored; options called `but` go with it."""
    for given in ctx.command.params:
        name = given.name or ""
        if name not in {"resume", *but} and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = given.opts[0] if isinstance(given, click.Option) else given.human_readable_name
            raise click.UsageError(f"--resume goes on with {what} as it was begun: leave {shown} out, or begin another")


class HasName(Protocol):
    """What has a name."""

    @property
    def name(self) -> str:
        """The name."""
        ...


Named = TypeVar("Named", bound=HasName)


def named(names: Sequence[str], known: Sequence[Named], noun: str) -> list[Named]:
    """Return those of these names, each once; all that are known if there are no names.

    Raises BadInput, which names what is close. `attnfuzz {noun}s list` lists all.
    """
    by_name = {each.name: each for each in known}
    for name in names:
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"attnfuzz {noun}s list names them."
            raise BadInput(f"no {noun} is called {name!r}: {hint}")
    return [by_name[name] for name in dict.fromkeys(names)] or list(known)


def find_by_name(findings: Sequence[Named], name: str, where: str) -> Named:
    """The one of this name, or the only one whose name has it in it. Raises BadInput, which lists what is `where`."""
    found = [each for each in findings if each.name == name] or [each for each in findings if name in each.name]
    if len(found) == 1:
        return found[0]
    known = [each.name for each in found or findings]
    shown = ", ".join(known[:_MOST_LISTED]) or "none"
    more = f", and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    which = "several findings with" if found else "no finding with"
    raise BadInput(f"{where} has {which} {name!r} in its name: there is {shown}{more}")
