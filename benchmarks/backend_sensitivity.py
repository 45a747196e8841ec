"""Sensitivity on real kernels: the smallest errors that are found in the outputs of each backend."""

import json
import sys
import time
from pathlib import Path

import click
import msgspec
from backend_batch import KINDS, REQUESTS, Sensitivity, SensitivityRequest, handle
from measurement import count_option, json_option, seed_option, show

from attnfuzz.harness.backends.registry import fixed, names, resolve
from attnfuzz.harness.campaign.prepare import prepare
from attnfuzz.harness.families.attention import AttentionFamily
from attnfuzz.harness.family import family_with
from attnfuzz.harness.sandbox.side_by_side import side_by_side
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.harness.workers.supervisor import HandlerError, Workers
from attnfuzz.kernels.interface.toolchain import lacks_modules
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType

_SECONDS_PER_BACKEND = 60.0
_NO_TIME = "no time was left"


@click.command()
@click.option("--backend", "chosen", multiple=True, metavar="NAME", help="[default: all that run here]")
@click.option(
    "--device", type=click.Choice([each.value for each in Device]), default=Device.CPU.value, show_default=True
)
@count_option("--length", 4096, "KV length.")
@count_option("--trials", 20, "Trials of each error.")
@count_option("--jobs", 2, "Processes.")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Begin no backend after this time.")
@seed_option
@json_option
def main(
    *,
    chosen: tuple[str, ...],
    device: str,
    length: int,
    trials: int,
    jobs: int,
    seconds: float,
    seed: int,
    json_file: Path | None,
) -> None:
    """Plant errors in outputs of backends, and look for the smallest that is found in 95% of the trials.

    Each backend and dtype decodes REQUESTS requests in its first geometry without a window, and is judged by its own
    noise model. An error is added to the number before rounding that is nearest to the exact one. Backends on a GPU
    have only compiled geometries with ATTNFUZZ_BUILT=1.
    """
    requests = [
        SensitivityRequest(backend=name, dtype=dtype, length=length, trials=trials, seed=seed)
        for name in chosen or _running_on(Device(device))
        for dtype in family_with(resolve(name).capability).noise_dtypes(resolve(name).capability)
    ]
    prepare(tuple(dict.fromkeys(each.backend for each in requests)), lambda line: click.echo(line, err=True))
    until = time.monotonic() + seconds

    def run(workers: Workers, request: SensitivityRequest) -> Sensitivity:
        if time.monotonic() > until:
            return Sensitivity(reason=_NO_TIME)
        try:
            reply = workers.run(msgspec.msgpack.encode(request), timeout=_SECONDS_PER_BACKEND)
        except HandlerError as error:
            return Sensitivity(reason=str(error).splitlines()[-1])
        if isinstance(reply, Death):
            return Sensitivity(reason=reply.cause)
        return msgspec.msgpack.decode(reply, type=Sensitivity)

    found: dict[tuple[str, DType], Sensitivity] = {}
    for request, result in side_by_side(
        requests, run, backend=lambda request: request.backend, handler=named(handle), jobs=jobs
    ):
        found[request.backend, request.dtype] = result
        click.echo(f"{request.backend}, {request.dtype}: {result.reason or 'done'}", err=True)
    order = [(each.backend, each.dtype) for each in requests]
    show(
        f"Smallest error found in 95% of {trials} trials, decodes of {REQUESTS} x {length:,} keys",
        ("backend", "dtype", "noise model", "rows", *KINDS),
        [(*key, found[key].noise, str(found[key].rows), *_cells(found[key])) for key in order if not found[key].reason],
    )
    for key in order:
        if found[key].reason:
            click.echo(f"{key[0]}, {key[1]}: {found[key].reason}")
    if json_file is not None:
        content = [
            {"backend": name, "dtype": dtype, **msgspec.to_builtins(found[name, dtype])} for name, dtype in order
        ]
        json_file.write_text(json.dumps(content, indent=1))


def _running_on(device: Device) -> list[str]:
    """List the attention backends of a device that run here, without revisions."""
    running = [
        name
        for name in names()
        if name == fixed(name)
        and resolve(name).capability.device is device
        and isinstance(family_with(resolve(name).capability), AttentionFamily)
        and resolve(name).missing() is None
    ]
    lacking = [name for name in running if lacks_modules(resolve(name))]
    if lacking:
        click.echo(f"no module is compiled for {', '.join(lacking)}", err=True)
    return [name for name in running if name not in lacking]


def _cells(found: Sensitivity) -> list[str]:
    return [_cell(found.smallest[column]) if column in found.smallest else "-" for column in KINDS]


def _cell(size: float | None) -> str:
    return "none" if size is None else f"{size:g}"


if __name__ == "__main__":
    sys.exit(main())
