"""What several commands are given: durations, devices, backends that can run here, cases from files."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from attnfuzz.harness.campaign.plan import parse_duration
from attnfuzz.harness.check import why_not
from attnfuzz.harness.cli.exits import BadInput
from attnfuzz.harness.cli.terminal import echo
from attnfuzz.harness.defaults import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU
from attnfuzz.harness.findings.finding import case_path
from attnfuzz.harness.registry import on_device, resolve
from attnfuzz.kernels.sglang.naming import KINDS, in_tree, is_sglang, of_tree
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


def tree_option(meaning: str) -> Callable[..., Any]:
    """The option --sglang, as `sglang`: the folder of a source tree, or None."""
    return click.option(
        "--sglang", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="PATH", help=meaning
    )


def backends_option(meaning: str) -> Callable[..., Any]:
    """The option --backend, given any number of times, as `backends`.

    --device makes them those of a device, and --sglang says which source tree sglang:trtllm_mha is in.
    """

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_backends(
            *args: Any, backends: tuple[str, ...], device: Device | None, sglang: Path | None, **others: Any
        ) -> Any:
            named = backends or (DEFAULT_BACKENDS_ON_GPU if device is Device.CUDA else DEFAULT_BACKENDS)
            if sglang is not None:
                named = of_tree(sglang, backends)
            return command(*args, backends=tuple(dict.fromkeys(on_device(name, device) for name in named)), **others)

        option = click.option(
            "--backend",
            "backends",
            multiple=True,
            metavar="NAME",
            help=f"{meaning}; may be given several times. FILE.py:NAME is a backend of yours, and "
            f"sglang==VERSION:{KINDS[0]} or :{KINDS[1]} that of a release.  "
            f"[default: {', '.join(DEFAULT_BACKENDS)}; with --device cuda {', '.join(DEFAULT_BACKENDS_ON_GPU)}]",
        )
        where = device_option("Where: on a Hopper GPU, trtllm_mha is hopper:trtllm_mha.  [default: by the name]")
        tree = tree_option(
            "A source tree of SGLang: what --backend sglang:trtllm_mha is, or, without --backend, what is tested."
        )
        decorated: Callable[..., Any] = option(where(tree(with_backends)))
        return decorated

    return with_options


def tell(message: str) -> None:
    """Say what a user waits for; on standard error, so that output stays what was asked for."""
    echo(message, err=True)


def case_at(path: Path, backend: str | None = None, sglang: Path | None = None) -> AnyCase:
    """The case in a file or in a finding's folder, for another `backend` if one is given.

    With a source tree of `sglang`, a backend of any release is that of the tree instead.

    Raises CaseFileError, or UnknownBackend, BackendFileError, BadInput if the backend can't run it.
    """
    case = case_file.load(case_path(path))
    if backend is not None:
        case = replace(case, backend=backend)
    if sglang is not None:
        if not is_sglang(case.backend):
            raise BadInput(f"{case.backend} is no backend of SGLang: leave --sglang out, or add --backend sglang:KIND")
        case = replace(case, backend=in_tree(case.backend, sglang))
    lacking = why_not(resolve(case.backend), case)
    if lacking is not None:
        raise BadInput(f"{case.backend} does not support {lacking}, which this case has. Try another --backend.")
    return case
