"""A CUDA graph of a whole forward: a capture records operations without running them, and a replay runs them.

As on a GPU, the Python code runs once, at the capture: its numbers are frozen. Tensors are live: a replay reads their
present contents, and writes the same outputs. Operations that a capturing stream refuses are refused: numbers and
shapes that depend on a tensor's contents. Tensors of the host are not part of a graph: computations on them alone run
at the capture. On a GPU, the recorded operations are captured in a real graph.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Final, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from attnfuzz.kernels.interface.backend import Bench, Graph, Launcher


class NotCapturable(RuntimeError):
    """An operation that a CUDA stream does not permit while it captures."""


class Recording:
    """Records torch's operations inside it, and the work given to `keep`, in order.

    Results exist at once without meaningful contents: their forms follow from those of the arguments. `device` stands
    for a server's GPU, and `host` are the tensors on it that a server keeps on the host.
    """

    _active: ClassVar["list[Recording]"] = []

    def __init__(self, device: torch.device, host: Sequence[torch.Tensor] = ()) -> None:
        self._device = device
        self._work: list[Callable[[], object]] = []
        self._before: list[Callable[[], object]] = []
        self._graph: Graph | None = None
        # Kept, so that no other tensor gets the address of one.
        self._host = {tensor.untyped_storage().data_ptr(): tensor for tensor in host}
        self._modes = ExitStack()

    @classmethod
    def current(cls) -> "Recording | None":
        """Return the active recording, if any."""
        return cls._active[-1] if cls._active else None

    def __enter__(self) -> Self:
        operations = _Operations()  # type: ignore[no-untyped-call]
        operations.record = self.operation
        self._modes.enter_context(operations)
        self._modes.enter_context(_HostAccess(self._is_host))
        self._active.append(self)
        return self

    def __exit__(self, *details: object) -> None:
        self._active.remove(self)
        self._modes.close()

    def __len__(self) -> int:
        return len(self._work)

    def keep(self, work: Callable[[], object]) -> None:
        """Run `work` at this point of a replay."""
        self._work.append(work)

    def before(self, work: Callable[[], object]) -> None:
        """Run `work` at the beginning of every replay, outside the graph."""
        self._before.append(work)

    def capture(self, launcher: Launcher) -> None:
        """Capture the recorded work in a graph of a GPU."""
        with outside(), torch.no_grad(), launcher.capture_all() as self._graph:
            self._run()

    def replay(self) -> None:
        """Run the recorded work again."""
        with outside(), torch.no_grad():
            for work in self._before:
                work()
            if self._graph is not None:
                self._graph.replay()
            else:
                self._run()

    def _run(self) -> None:
        for work in self._work:
            work()

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one operation of torch. Raises NotCapturable."""
        tensors = _tensors((args, kwargs))
        if func is torch.ops.aten.lift_fresh.default or self._stays_on_host(tensors, kwargs):
            return self._on_host(func(*args, **kwargs))
        _refuse_what_synchronises(func, args)
        if _is_view(func):
            return func(*args, **kwargs)
        written = _written(func, args, kwargs)
        if written is not None:
            self.keep(lambda: func(*args, **kwargs))
            return written
        return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation without side effects: a replay computes its results again, into the same memory."""
        device = _device(args, kwargs)
        results = tree_map_only(torch.Tensor, lambda form: _like(form, device), _form(func, args, kwargs))
        targets = _tensors(results)

        def work() -> None:
            for target, value in zip(targets, _tensors(func(*args, **kwargs)), strict=True):
                target.copy_(value)

        self.keep(work)
        return results

    def _stays_on_host(self, tensors: Sequence[torch.Tensor], kwargs: Mapping[str, Any]) -> bool:
        """Return whether an operation involves tensors of the host alone. A copy of one to a GPU does not."""
        to = kwargs.get("device")
        leaves = self._device.type != "cpu" and to is not None and torch.device(to).type == self._device.type
        return bool(tensors) and not leaves and all(map(self._is_host, tensors))

    def _is_host(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type != self._device.type or tensor.untyped_storage().data_ptr() in self._host

    def _on_host(self, results: Any) -> Any:
        self._host.update({tensor.untyped_storage().data_ptr(): tensor for tensor in _tensors(results)})
        return results


class _Operations(TorchDispatchMode):
    """Passes every operation to `record`."""

    record: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if paused():
            return func(*args, **(kwargs or {}))
        return self.record(func, args, dict(kwargs or {}))


class _HostAccess(TorchFunctionMode):
    """Refuses to pass a tensor's values to the host, where torch calls no operation since all tensors lie there."""

    def __init__(self, is_host: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self._is_host = is_host

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _TO_THE_HOST and not paused() and not self._is_host(args[0]):
            raise NotCapturable(f"Tensor.{func.__name__}() while a graph is captured: the host waits for a value")
        return func(*args, **(kwargs or {}))


_TO_THE_HOST: Final = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__)
_outside = 0


def paused() -> bool:
    """Return whether the present operations are ours, not the release's."""
    return _outside > 0


@contextmanager
def outside() -> Iterator[None]:
    """Run the following operations at once, as torch does: they are ours, not the release's."""
    global _outside  # noqa: PLW0603 - a mode of the process, like torch's own
    _outside += 1
    try:
        yield
    finally:
        _outside -= 1


def _refuse_what_synchronises(func: Any, args: tuple[Any, ...]) -> None:
    """Raise NotCapturable for numbers and shapes that are known only after the stream's work is done."""
    tags = func.tags
    if torch.Tag.data_dependent_output in tags:
        raise NotCapturable(
            f"{func} while a graph is captured: the host waits for a value of a stream that runs nothing"
        )
    shapes = torch.Tag.dynamic_output_shape in tags
    masks = (torch.bool, torch.uint8)
    if shapes and (
        func.overloadpacket is not torch.ops.aten.index
        or any(index is not None and index.dtype in masks for index in args[1])
    ):
        raise NotCapturable(f"{func} while a graph is captured: the shape of its result depends on values")


def _is_view(func: Any) -> bool:
    """Return whether a result views the memory of an argument."""
    aliases = [each.alias_info for each in func._schema.returns]  # noqa: SLF001 - torch has no other way to ask
    return any(alias is not None and not alias.is_write for alias in aliases)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments that an operation writes and returns; None if it writes to none."""
    names = [each for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]  # noqa: SLF001
    if not names:
        return None
    order = [each.name for each in func._schema.arguments]  # noqa: SLF001
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    written = [given[each.name] for each in names]
    return written[0] if len(func._schema.returns) <= 1 else tuple(written)  # noqa: SLF001


def _form(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return results without memory: those of the operation on the meta device."""
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: _like(tensor, torch.device("meta")), (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments):  # noqa: SLF001
        kwargs["device"] = torch.device("meta")
    return func(*args, **kwargs)


def _like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    named = kwargs.get("device")
    if named is not None:
        return torch.device(named)
    return next((tensor.device for tensor in _tensors((args, kwargs))), torch.get_default_device())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@contextmanager
def record(bench: Bench, host: Sequence[torch.Tensor] = ()) -> Iterator[Recording]:
    """Record a whole forward of a release, for repetition by `replay`."""
    with Recording(bench.device, host) as recording:
        yield recording
    if bench.device.type == "cuda":
        recording.capture(bench.launcher)
