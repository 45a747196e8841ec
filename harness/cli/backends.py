"""`attnfuzz backends`: the backends, and which of them run here."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from attnfuzz.harness.backends.engines import engines
from attnfuzz.harness.backends.load import BackendFileError
from attnfuzz.harness.backends.registry import fixed, names, resolve
from attnfuzz.harness.cli.answers import Backends, ListedBackend
from attnfuzz.harness.cli.given import Trees, tree_of
from attnfuzz.harness.cli.margins import print_margins
from attnfuzz.harness.cli.options import DEFAULT_HOME
from attnfuzz.harness.cli.terminal import BadInput, Terminal, answer, is_quiet, new_table, print_line, warn
from attnfuzz.harness.family import family_with
from attnfuzz.kernels.interface.backend import Backend, archs_of
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.device import Device
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.noise import NoiseModel, Origin

_PAIRS = (
    "A writer of the KV cache and attention, with a comma between their names, are a backend that writes and then "
    "attends:\n  native:reshape_and_cache,trtllm_mha"
)


def backends(
    *,
    runnable: bool,
    margins: bool,
    home: Path | None,
    device: Device | None,
    trees: Trees,
    named: tuple[str, ...],
) -> None:
    """Print the backends that are named, or those that need no file, tree or release."""
    if home is not None and not margins:
        raise BadInput("--home has margins of campaigns: give --margins too")
    tree = tree_of(trees)
    chosen = named if tree is None else tree.names(named)
    loaded = list(chosen) or [name for name in names() if _loads(name)]
    listed = [name for name in loaded if device is None or resolve(name).capability.device is device]
    if runnable:
        listed = [name for name in listed if name == fixed(name) and resolve(name).missing() is None]
    if margins:
        print_margins(listed, home or DEFAULT_HOME)
        return
    answer(Backends(backends=tuple(map(_listed_backend, listed))))
    if runnable or is_quiet():
        for name in listed:
            print_line(Terminal(), name)
        return
    console = Terminal()
    _print_backends(console, sorted(listed, key=lambda name: (resolve(name).capability.device is Device.CUDA, name)))
    if not chosen:
        console.print(Text(f"\n{_PAIRS}"))
    if not chosen and device is not Device.CUDA:
        for engine in engines():
            console.print(Text(f"\n{engine.overview()}"))


def _listed_backend(name: str) -> ListedBackend:
    backend = resolve(name)
    return ListedBackend(
        name=name, device=backend.capability.device, not_here=backend.missing(), supports=supports(name)
    )


def _print_backends(console: Terminal, listed: Sequence[str]) -> None:
    table = new_table("backend", "here", "on", "supports", whole=("backend", "here", "on"))
    why_not: dict[str, list[str]] = {}
    for name in listed:
        backend = resolve(name)
        reason = backend.missing()
        if reason is not None:
            why_not.setdefault(reason, []).append(name)
        table.add_row(Text(name), "no" if reason else "yes", where(backend), Text(supports(name)))
    console.print(table)
    for reason, lacking in why_not.items():
        console.print(Text.assemble("\nNot here: ", (", ".join(lacking), "bold"), f"\n  {reason}"))


def _loads(name: str) -> bool:
    """Return whether a backend can be loaded; if not, the reason is printed on standard error."""
    try:
        resolve(name)
    except BackendFileError as error:
        warn(f"Skipped: {error}")
        return False
    return True


def where(backend: Backend) -> str:
    """Return the device that its kernels run on, in a few letters."""
    archs = archs_of(backend)
    if not archs:
        return "GPU" if backend.capability.device is Device.CUDA else "CPU"
    numbers = sorted((arch.replace(".", "") for arch in archs), key=int)
    return f"SM{numbers[0]}" + ("" if len(numbers) == 1 else f"-{numbers[-1]}")


def supports(name: str) -> str:
    """Return the features that a backend supports, in words; for a revision that supports the same, a reference."""
    backend = resolve(name)
    can: object = backend.capability
    if not isinstance(can, Capability):
        features, judged = family_with(can).supports(can), f"{noise_words(backend).capitalize()}."
        return f"{features}\n{judged}" if features else judged
    if name != fixed(name) and can == resolve(fixed(name)).capability:
        return f"As {fixed(name)}."
    modes = "Every mode" if set(can.modes) == set(Mode) else ", ".join(can.modes).capitalize()
    graphs = f", graphs of {', '.join(can.graph_modes)}" if can.graph_modes else ""
    features = ", ".join(_features(can)) or "No other features"
    lse = f"LSE base {backend.contract.lse}" if backend.contract.lse else "No LSE"
    pages = f"pages of {_listed(can.page_sizes)}"
    return f"{modes}{graphs}.\n{_numbers(can)}; {pages}.\n{features}.\n{lse}; {noise_words(backend)}."


def _numbers(can: Capability) -> str:
    """Describe the dtypes, and the head dims of each."""
    if not can.buckets:
        upto = f"{_listed(can.head_dims)}" if can.head_dims else f"up to {can.max_head_dim}"
        return f"{', '.join(can.dtypes)}; head dims {upto}"
    dims: dict[str, list[str]] = {}
    for bucket in can.buckets:
        kv = f" over {bucket.kv_dtype} KV" if bucket.kv_dtype is not bucket.dtype else ""
        sizes = dict.fromkeys((bucket.head_dim_qk, bucket.head_dim_vo))
        dims.setdefault(f"{bucket.dtype}{kv}", []).append("/".join(map(str, sizes)))
    return "; ".join(f"{dtypes} with head dim {_listed(found)}" for dtypes, found in dims.items())


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _features(can: Capability) -> list[str]:
    kinds = {"latents": can.latent, "KV cache writes": can.writes}
    return [*(kind for kind, present in kinds.items() if present), *TABLE.optional(can, asked=True)]


def noise_words(backend: Backend) -> str:
    """Return which noise model judges a backend here, in a clause without a full stop."""
    if not _noises(backend):
        return family_with(backend.capability).comparison
    if uncalibrated(backend):
        return "uncalibrated: judged by the bounds of an unknown kernel"
    if all(each.origin is Origin.CALIBRATED for each in _noises(backend)):
        return "noise model calibrated on this architecture"
    return "noise model from theory"


def uncalibrated(backend: Backend) -> bool:
    """Return whether a backend is judged as an unknown kernel, for queries of some dtype."""
    return any(each.origin is Origin.UNKNOWN for each in _noises(backend))


def _noises(backend: Backend) -> list[NoiseModel]:
    return [backend.noise(dtype) for dtype in family_with(backend.capability).noise_dtypes(backend.capability)]
