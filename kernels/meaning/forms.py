"""The tensors of a call, and the meanings of their axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.meaning.entry_point import Arguments, Parameter, Role

Axes = tuple[str, ...]

METADATA = frozenset({Role.PAGE_TABLE, Role.KV_LENGTHS, Role.CUM_Q, Role.CUM_KV, Role.MASK_STARTS, Role.INTERVALS})
"""The roles of lengths, page ids and offsets: integers that kernels read by raw pointer."""


@dataclass(frozen=True)
class Form:
    """The role of an argument, and the axes that it may have: one tuple for each number of axes."""

    role: Role
    alternatives: tuple[Axes, ...]


class WrongForm(ValueError):
    """A missing argument, or one with a number of axes that the entry point can't take; `name` is the argument."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def tensors_of(arguments: Arguments) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a call with its name; nested members are called "name[0]", "name[0][1]"."""
    for name, value in arguments.items():
        yield from ((each, leaf) for each, leaf in _leaves(name, value) if isinstance(leaf, torch.Tensor))


def tensor_of(arguments: Arguments, name: str) -> torch.Tensor:
    """Return the tensor of that name. Raises KeyError if the call has none."""
    for each, tensor in tensors_of(arguments):
        if each == name:
            return tensor
    raise KeyError(name)


def parameters_of(
    arguments: Arguments, forms: Mapping[str, Form], required: Sequence[str] = (), numbers: Sequence[str] = ()
) -> tuple[Parameter, ...]:
    """List the tensors of a call, those without a form as Role.OTHER.

    Recorded arguments may be anything. Those in `required` must be present; present ones with a form must be tensors
    (or sequences of them, for forms of members), and those in `numbers` integers. Raises WrongForm.
    """
    for name in required:
        if arguments.get(name) is None:
            raise WrongForm(name, f"{name} is missing")
    members: dict[str, list[str]] = {}
    for name in forms:
        if "[" in name:
            members.setdefault(name.partition("[")[0], []).append(name)
    for name, value in arguments.items():
        if value is None:
            continue
        if name in numbers and not (isinstance(value, int) and value.bit_length() < 64):
            raise WrongForm(name, f"{name} is {_kind(value)}, but must be an integer of 64 bits")
        if name in members and not _are_tensors(name, value, members[name]):
            raise WrongForm(name, f"{name} is {_kind(value)}, where a tensor or {len(members[name])} of them are due")
        if name in forms and not isinstance(value, torch.Tensor):
            raise WrongForm(name, f"{name} is {_kind(value)}, but must be a tensor")
    return tuple(_parameter(name, tensor, forms) for name, tensor in tensors_of(arguments))


def _are_tensors(name: str, value: object, members: Sequence[str]) -> bool:
    leaves = dict(_leaves(name, value))
    return list(leaves) == list(members) and all(isinstance(leaf, torch.Tensor) for leaf in leaves.values())


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from _leaves(f"{name}[{index}]", member)
    else:
        yield name, value


def _parameter(name: str, tensor: torch.Tensor, forms: Mapping[str, Form]) -> Parameter:
    form = forms.get(name)
    if form is None:
        return Parameter(name, Role.OTHER, ("",) * tensor.ndim)
    if form.role in METADATA and (tensor.is_floating_point() or tensor.is_complex()):
        raise WrongForm(name, f"{name} is {described(tensor)}, but must be int32")
    if form.role in METADATA and tensor.is_meta:
        raise WrongForm(name, f"{name} is {described(tensor)} without contents, but must have some")
    for axes in form.alternatives:
        if len(axes) == tensor.ndim and all(tensor.shape[at] in {1, 2} for at in _at(axes, "K and V")):
            return Parameter(name, form.role, axes)
    legal = " or ".join(f"[{', '.join(axes)}]" for axes in form.alternatives)
    raise WrongForm(name, f"{name} is {described(tensor)}, but must be {legal}")


def _at(axes: Axes, axis: str) -> list[int]:
    return [at for at, each in enumerate(axes) if each == axis]


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"


def described(tensor: torch.Tensor) -> str:
    """Describe a tensor's dtype and shape in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


WORKSPACE = Form(Role.WORKSPACE, (("bytes",),))
TOKEN_LSE = Form(Role.LSE, (("tokens", "q heads"),))


def sinks_forms(arguments: Arguments, name: str = "sinks") -> dict[str, Form]:
    """Return the form of sinks: a tensor, or FlashInfer's list of one."""
    listed = isinstance(arguments.get(name), list | tuple)
    return {f"{name}[0]" if listed else name: Form(Role.SINKS, (("q heads",),))}


def window_of(arguments: Arguments) -> int:
    """Return the `window_left` of a call, -1 if it has none."""
    window = arguments.get("window_left")
    return -1 if window is None else window
