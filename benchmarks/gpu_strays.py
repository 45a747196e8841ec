"""Detection of a GPU kernel's overrun by guarded memory and by compute-sanitizer's memcheck."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from time import perf_counter

import click
import torch
from gpu_measurement import Table, require_gpu
from measurement import json_option

from attnfuzz.harness.inside.strays import TENSORS, make, placed
from attnfuzz.harness.memory.cuda.memory import PlainCudaMemory
from attnfuzz.harness.workers.stray_request import StrayRequest
from attnfuzz.kernels.cuda import guards, nvcc, stray
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.device import Device

DISTANCES = {"one element": 2, "one row": 2 << 10, "one page": 32 << 10, "far away": 4 << 30}
"""Bytes from the end of a tensor to the end of the access."""

_MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--destroy-on-device-error", "kernel", "--print-limit", "1000")

_UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

_AT_ONCE = 8

_NOTHING = "nothing"


@dataclass(frozen=True)
class Access:
    """One planted access after the end of a tensor."""

    tensor: str
    distance: str
    write: bool

    @property
    def title(self) -> str:
        """The label of a table row."""
        return f"{self.tensor}, {self.distance}, {'write' if self.write else 'read'}"


ACCESSES = [Access(*each) for each in product(TENSORS, DISTANCES, (False, True))]


@click.command()
@click.option("--only", help="For its own use: make this access alone, given in JSON.")
@click.option("--memory", type=click.Choice(["plain", "guarded"]), help="For its own use: make accesses there.")
@json_option
def main(*, only: str | None, memory: str | None, json_file: Path | None) -> None:
    """Plant an access after the end of each tensor of a small decode, and report whether it is detected.

    Each access has its own process, since a fault ends the process. Memcheck survives faults and runs all accesses in
    one process.
    """
    require_gpu()
    accesses = ACCESSES if only is None else [Access(*json.loads(only))]
    if memory == "guarded":
        (access,) = accesses
        _guarded(access)
    elif memory == "plain":
        _unguarded(accesses)
    else:
        _compare(json_file)


def _compare(json_file: Path | None) -> None:
    nvcc.build((stray.SOURCE,), progress=click.echo)
    nvcc.build((guards.SOURCE,), progress=click.echo)
    columns = ("", "PyTorch", "memcheck", "memcheck, uncached", "guarded")
    table = Table("Detection of a stray access", columns, json_file)
    ways = [_one_by_one("plain"), _under_memcheck({}), _under_memcheck(_UNCACHED), _one_by_one("guarded")]
    for access in ACCESSES:
        table.row(access.title, *(way.get(access, "-") for way in ways))
    noticed = (sum(way.get(access, _NOTHING) != _NOTHING for access in ACCESSES) for way in ways)
    table.row(f"noticed, of {len(ACCESSES)}", *map(str, noticed))


def _one_by_one(memory: str) -> dict[Access, str]:
    """Return the result of each access, as reported by its process or by the death of that process."""

    def run(access: Access) -> str:
        command = [sys.executable, __file__, "--memory", memory, "--only", json.dumps(astuple(access))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"fault ({done.returncode})"
        return str(json.loads(done.stdout.splitlines()[-1])["noticed"])

    start = perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        noticed = dict(zip(ACCESSES, pool.map(run, ACCESSES), strict=True))
    click.echo(f"{memory}: {perf_counter() - start:.0f} s for {len(ACCESSES)} processes, {_AT_ONCE} at a time")
    return noticed


def _under_memcheck(environment: dict[str, str]) -> dict[Access, str]:
    """Return memcheck's report on a process that makes all accesses. It is empty if memcheck is not installed."""
    if shutil.which(_MEMCHECK[0]) is None:
        click.echo(f"{_MEMCHECK[0]} is not on PATH: it comes with NVIDIA's CUDA toolkit")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        start = perf_counter()
        done = subprocess.run(
            [*_MEMCHECK, "--log-file", str(log), sys.executable, __file__, "--memory", "plain"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = perf_counter() - start
        reported = set(re.findall(r"Access (?:to|at) (0x[0-9a-f]+)", log.read_text())) if log.exists() else set()
    setting = " ".join(f"{name}={value}" for name, value in environment.items())
    click.echo(f"memcheck {setting}: {seconds:.0f} s, exit code {done.returncode}, {len(reported)} addresses reported")
    made = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not made:
        click.echo(done.stderr[-1000:])
    return {Access(*each["access"]): "reported" if each["address"] in reported else _NOTHING for each in made}


def _unguarded(accesses: Sequence[Access]) -> None:
    """Make accesses in torch's memory, and print the address and the CUDA error of each."""
    memory = PlainCudaMemory(Outputs.POISONED, torch.device("cuda", 0))
    tensors = placed(memory)
    for access in accesses:
        tensor, noticed = tensors[access.tensor], _NOTHING
        try:
            stray.stray(tensor, _offset(access, tensor), write=access.write)
            torch.cuda.synchronize()
        except RuntimeError as error:
            noticed = str(error).splitlines()[0]
        address = f"0x{tensor.data_ptr() + _offset(access, tensor):x}"
        click.echo(json.dumps({"access": astuple(access), "address": address, "noticed": noticed}))


def _guarded(access: Access) -> None:
    """Make one access as a backend's kernel would, and print the harness's observation. A fault ends the process."""
    request = StrayRequest(
        device=Device.CUDA,
        guard=Guard.RIGHT,
        tensor=access.tensor,
        offset=DISTANCES[access.distance] - 2,
        from_end=True,
        write=access.write,
    )
    noticed = make(request, lambda _: None)
    click.echo(json.dumps({"noticed": ", ".join(noticed) or _NOTHING}))


def _offset(access: Access, tensor: torch.Tensor) -> int:
    """Return the bytes from the start of the tensor to the access, which is 2 bytes long."""
    return tensor.numel() * tensor.itemsize + DISTANCES[access.distance] - 2


if __name__ == "__main__":
    main()
