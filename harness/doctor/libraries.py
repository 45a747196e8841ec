"""One backend of each library that is installed here, judged on plain cases."""

from collections.abc import Iterator

from attnfuzz.harness.backends.registry import builtin, fixed
from attnfuzz.harness.doctor.measurement import Measurement, judged, not_measured
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.plain_check import check
from attnfuzz.kernels.interface.backend import package_of
from attnfuzz.kernels.interface.toolchain import lacks_modules
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError
from attnfuzz.strategies.plain_cases import plain_cases


def one_of_each(device: Device) -> dict[str, str]:
    """Return the backend with the most plain cases of each package, "" for this project's own kernels.

    Of those that need compiled modules, only backends that have one, if the environment asks for it.
    """
    most: dict[str, tuple[int, str]] = {}
    here = [each for each in builtin().values() if each.capability.device is device and each.missing() is None]
    for backend in here:
        can: object = backend.capability
        # Of each library its attention: one row shows whether the library can be called.
        attends = isinstance(can, Capability) and not can.writes
        if attends and backend.name == fixed(backend.name) and not lacks_modules(backend):
            cases = len(plain_cases(backend.capability, backend.name))
            if cases > most.get(package_of(backend), (-1, ""))[0]:
                most[package_of(backend)] = cases, backend.name
    return {package: name for package, (_, name) in most.items()}


def libraries(device: Device, runner: Runner) -> Iterator[Measurement]:
    """Yield a row for each library with kernels for `device`."""
    found = one_of_each(device)
    if not found:
        yield not_measured(f"kernels on {_where(device)}", "no backend runs here")
    for package, name in found.items():
        title = f"{package or 'own kernels'} on {_where(device)}"
        try:
            result = check(name, runner)
        except UserError as error:
            yield not_measured(title, str(error))
            continue
        words = f"{name}: {len(result.judged) - result.failed} of {len(result.judged)} plain cases pass"
        if not result.judged:
            yield not_measured(title, result.words)
        elif result.symptoms:
            seen = result.symptoms[0].observation
            yield judged(title, f"{words}; {seen.kind} {seen.place}: {seen.message.splitlines()[0]}", works=False)
        else:
            yield judged(title, words, works=True)


def _where(device: Device) -> str:
    return "the GPU" if device is Device.CUDA else "the CPU"
