"""What several commands are given: durations, counts, paths, devices, backends that can run here, cases from files."""

import functools
import math
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU, engines
from attnfuzz.harness.backends.registry import on_device, resolve
from attnfuzz.harness.campaign.plan import LEAST_ALPHA, MOST_EXAMPLES, MOST_JOBS, MOST_SEED, parse_duration
from attnfuzz.harness.cli.exits import BadInput
from attnfuzz.harness.cli.terminal import echo
from attnfuzz.harness.findings.finding import case_path
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.kernels.engine import Engine
from attnfuzz.reference import case_file
from attnfuzz.reference.case_file import AnyCase
from attnfuzz.reference.device import Device


class Duration(click.ParamType[float]):
    """A duration like 90s, 10m or 1h30m, in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse it, or fail with what to write instead."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
    """A number of things to do, with a bound beyond which nobody waits for it."""
    return click.IntRange(min=least, max=most)


SEED = click.IntRange(min=0, max=MOST_SEED)
JOBS = counted(most=MOST_JOBS)


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

        option = click.option(
            "--backend",
            "backends",
            multiple=True,
            metavar="NAME",
            help=f"{meaning}; may be given several times. FILE.py:NAME is a backend of yours"
            f"{''.join(map(_of_release, engines()))}.  "
            f"[default: {', '.join(DEFAULT_BACKENDS)}; with --device cuda {', '.join(DEFAULT_BACKENDS_ON_GPU)}]",
        )
        where = device_option("Where: on a Hopper GPU, trtllm_mha is hopper:trtllm_mha.  [default: by the name]")
        tree_of_engine = tree_option(
            "A source tree of {engine}: what --backend {kind} is, or, without --backend, what is tested."
        )
        decorated: Callable[..., Any] = option(where(tree_of_engine(with_backends)))
        return decorated

    return with_options


def _of_release(engine: Engine) -> str:
    """How backends of an engine's releases are named, as the end of a sentence."""
    return f", {engine.name}==VERSION:{engine.kinds[0]} one of a release of {engine.title}"


def tell(message: str) -> None:
    """Say what a user waits for; on standard error, so that output stays what was asked for."""
    echo(message, err=True)


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
