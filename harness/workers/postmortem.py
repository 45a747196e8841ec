"""Explaining the death of a worker: kind of failure, place, and the launch that was running."""

import signal

import msgspec

from attnfuzz.harness.memory.allocation import Location, locate
from attnfuzz.harness.verdict.failures import REACHED_BY, Access, Kind, Observation
from attnfuzz.harness.workers import channel, gpu_core
from attnfuzz.harness.workers.gpu_core import Core
from attnfuzz.harness.workers.journal import Fault, LaunchRecord
from attnfuzz.harness.workers.sticky import Sticky, sticky_of

KILLED = "killed by SIGKILL from outside, most likely out of memory"
"""The cause of a death that may not be the kernel's fault."""


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's end during a request.

    Either `signal` killed it or it exited with `exit_code`. `hang`: it was killed because it did not reply within
    `seconds`; otherwise `seconds` is the time from the request to its end. `entry` is the last journal entry (empty:
    nothing was launched), `fault` the signal handler's record, `output` the end of its output. `core_dump` is the file
    of the GPU core dump, if enabled, `stacks` has lines on where it hung. `misdeed` is the reason why the parent killed
    it, "" if none. `recorder` says whether a fault handler was installed.
    """

    signal: int | None
    exit_code: int | None
    hang: bool
    seconds: float
    fault: Fault | None
    entry: bytes
    output: str
    core_dump: str | None = None
    misdeed: str = ""
    stacks: str = ""
    recorder: bool = True

    @property
    def sticky(self) -> Sticky | None:
        """The error that broke its CUDA context, if it exited for that reason."""
        return sticky_of(self.exit_code)

    @property
    def killed_from_outside(self) -> bool:
        """Whether it was killed from outside: most likely by the OS kernel, out of memory."""
        return self.signal == signal.SIGKILL and not self.hang

    @property
    def untimed(self) -> bool:
        """Whether the cause was noticed later, and the launch is therefore unknown."""
        return bool(self.misdeed) or self.exit_code == channel.LOST

    @property
    def cause(self) -> str:
        """How it ended, in words."""
        if self.misdeed:
            return self.misdeed
        if self.hang:
            return f"no reply within {self.seconds:g} s"
        if self.killed_from_outside:
            return KILLED
        if self.sticky is not None:
            return str(self.sticky)
        if self.exit_code == channel.LOST:
            return "it closed or replaced the descriptors that its worker answers with"
        if self.signal is None:
            return f"the process left with exit code {self.exit_code}"
        return f"killed by {signal_name(self.signal)}"


def signal_name(number: int) -> str:
    """Return a name like SIGABRT, or "signal 40" for one that has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_BUS_ADRALN = 1
_SI_KERNEL = 128
"""si_code values of siginfo_t: a misaligned address, and a fault without an address from the CPU."""

_ACCESS = {1: "read", 2: "write"}


def explain(death: Death) -> Observation:
    """Turn a worker's death into an observation."""
    launch = None if death.untimed else _last_launch(death.entry)
    core = None if death.core_dump is None else gpu_core.read(death.core_dump)
    kind = _kind(death, core)
    place = death.cause if kind is Kind.WORKER_DIED else ""
    text = death.cause
    access = None
    fault = _on_gpu(core, launch) if death.sticky else death.fault
    if kind in (Kind.ILLEGAL_ACCESS, Kind.MISALIGNED):
        location = _unknown(core, launch) if death.sticky and fault is None else _location(death, fault, launch)
        place = location.place
        text = f"{_access(fault)} at {location} ({death.cause})"
        access = _stray(fault, launch, location)
    message = f"{text}, {'at some point of the case' if death.untimed else _circumstances(launch)}"
    if launch is not None:
        message += f"\n{REACHED_BY}{launch.way}" if launch.way else ""
        message += "".join(f"\nbefore that, the call broke its contract: {each}" for each in launch.broken)
    if core is not None:
        message += f"\nthe GPU's core dump, {death.core_dump}: {core.words}"
    if death.stacks:
        message += f"\nwhere it hung:\n{death.stacks}"
    if death.output:
        message += f"\nits last words:\n{death.output}"
    return Observation(
        kind=kind,
        place=place,
        message=message,
        step=launch.step if launch else -1,
        mode=launch.mode if launch else "",
        kernel=launch.kernel if launch else "",
        call=launch.call if launch else -1,
        access=access,
        related=launch is not None and bool(launch.run),
    )


def _kind(death: Death, core: Core | None) -> Kind:
    if death.hang:
        return Kind.HANG
    if core is not None and (core.illegal or core.misaligned):
        return Kind.MISALIGNED if core.misaligned else Kind.ILLEGAL_ACCESS
    if death.sticky is not None:
        return death.sticky.kind
    if death.signal == signal.SIGBUS and death.fault is not None and death.fault.code == _BUS_ADRALN:
        return Kind.MISALIGNED
    if death.signal in (signal.SIGSEGV, signal.SIGBUS):
        return Kind.ILLEGAL_ACCESS
    return Kind.WORKER_DIED


def _last_launch(entry: bytes) -> LaunchRecord | None:
    if not entry:
        return None
    try:
        return LaunchRecord.decode(entry)
    except msgspec.DecodeError:
        # A handler may use its own journal format: report the death without the launch.
        return None


def _on_gpu(core: Core | None, launch: LaunchRecord | None) -> Fault | None:
    """Return a GPU fault from its core dump, or None without one, or if its address is valid: another thread's."""
    if core is None or core.address is None:
        return None
    inside = any(not tensor.distance(core.address) for tensor in (launch.tensors if launch else ()) if tensor.nbytes)
    if inside and not core.misaligned:
        return None
    return Fault(signal=0, code=_BUS_ADRALN, address=core.address, access=2 if core.write else 1)


def _unknown(core: Core | None, launch: LaunchRecord | None) -> Location:
    """Return the location of a GPU fault without an address."""
    names = dict.fromkeys(tensor.name for tensor in launch.tensors) if launch else ()
    words = f"one of {', '.join(names)} is likely" if names else "no tensor was on record"
    if core is None:
        words += f"; run it with {gpu_core.VARIABLE}=FOLDER for a core dump, which may have the address"
    return Location("unknown address", words)


def _location(death: Death, fault: Fault | None, launch: LaunchRecord | None) -> Location:
    if fault is None and not death.recorder:
        return Location("unknown address", "no fault recorder ran (it needs a C++ compiler)")
    if fault is None:
        words = "the handler that notes it did not run: it was ignored, blocked or replaced, or had no stack left"
        return Location("unknown address", words)
    if fault.code == _SI_KERNEL:
        return Location("unknown address", "one that no pointer can hold, or a misaligned vector access")
    if fault.code <= 0:
        return Location("unknown address", "the signal was sent by a process, not by the processor")
    return locate(launch.tensors if launch else (), fault.address)


def _stray(fault: Fault | None, launch: LaunchRecord | None, location: Location) -> Access | None:
    """Return the access relative to every tensor with elements, or None if no address is known."""
    if fault is None or launch is None or fault.code == _SI_KERNEL or fault.code <= 0:
        return None
    offsets = {tensor.name: fault.address - tensor.address for tensor in launch.tensors if tensor.nbytes}
    return Access(_access(fault), offsets, location.index, location.size)


def _access(fault: Fault | None) -> str:
    return _ACCESS.get(fault.access, "access") if fault is not None else "access"


def _circumstances(launch: LaunchRecord | None) -> str:
    if launch is None:
        return "outside of any launch"
    step = f"step {launch.step}" + (f" ({launch.mode})" if launch.mode else "")
    return f"in {launch.kernel}, {step}{launch.run}"
