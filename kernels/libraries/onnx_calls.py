"""Runs of single ONNX operators by onnxruntime, on tensors that stay where they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from attnfuzz.reference.validity import MAX_BATCH

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

_IR_VERSION = 11
"""The version of the file format that goes with opset 23."""

_ELEMENT_TYPES = {torch.float32: 1, torch.float16: 10, torch.int32: 6, torch.int64: 7, torch.bool: 9}
"""TensorProto.DataType of ONNX."""

_SESSIONS = 64
"""Sessions that a worker keeps. Another one takes 10 ms."""


@dataclass(frozen=True)
class Node:
    """A model of one node.

    `inputs` has the operator's inputs in order, with their types, or None for one left out. Outputs have the type of
    the first input.
    """

    operator: str
    domain: str
    opset: int
    inputs: tuple[tuple[str, torch.dtype] | None, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, int | float], ...]

    @property
    def given(self) -> tuple[tuple[str, torch.dtype], ...]:
        """The inputs that are not left out."""
        return tuple(each for each in self.inputs if each is not None)


@dataclass(frozen=True)
class OperatorRun:
    """A run of `node` on arranged tensors, which are called as its inputs and outputs with `suffix` behind.

    The first output is [batch, tokens, ...], or [batch, heads, tokens, head_dim] if `heads_first`; `rows` has the
    kernel's rows of `out` for each of the batch. `buffers` maps outputs to inputs that share their memory.
    """

    node: Node
    suffix: str
    rows: tuple[slice, ...]
    heads_first: bool
    buffers: Mapping[str, str]


ArrangedRun = tuple[OperatorRun, Mapping[str, torch.Tensor]]
"""A call and its tensors, by the names of the node's inputs and outputs."""


def node_of(
    operator: str,
    tensors: Mapping[str, torch.Tensor],
    inputs: Sequence[str],
    outputs: tuple[str, ...],
    attributes: Mapping[str, int | float],
    *,
    domain: str = "",
    opset: int = 23,
) -> Node:
    """Make a node that takes those of its `inputs`, in the operator's order, for which there are tensors."""
    typed = [(name, tensors[name].dtype) if name in tensors else None for name in inputs]
    while typed[-1] is None:
        typed.pop()
    return Node(operator, domain, opset, tuple(typed), outputs, tuple(attributes.items()))


def arguments_of(calls: Sequence[ArrangedRun]) -> dict[str, Any]:
    """Return the arguments of `run_calls` for calls and their tensors."""
    tensors = {name + call.suffix: tensor.contiguous() for call, mine in calls for name, tensor in mine.items()}
    return {"calls": tuple(call for call, _ in calls), **tensors}


def writes(*names: str) -> frozenset[str]:
    """Name the arranged tensors of these names, of any call."""
    return frozenset(f"{name}.{index}" for name in names for index in range(MAX_BATCH))


def run_calls(*, out: torch.Tensor, calls: Sequence[OperatorRun], **arranged: Any) -> None:
    """Run each call on its own tensors, and copy the rows of its output to `out`."""
    for call in calls:
        session = _session(call.node)
        binding = session.io_binding()
        for name, _ in call.node.given:
            binding.bind_input(name, "cpu", 0, *_described(arranged[name + call.suffix]))
        for name in call.node.outputs:
            binding.bind_output(name, "cpu", 0, *_described(arranged[call.buffers.get(name, name) + call.suffix]))
        session.run_with_iobinding(binding)
        result = arranged[call.node.outputs[0] + call.suffix]
        for rows, mine in zip(call.rows, result.transpose(1, 2) if call.heads_first else result, strict=True):
            out[rows] = mine[: rows.stop - rows.start].reshape(-1, *out.shape[1:])


def _described(tensor: torch.Tensor) -> tuple[int, list[int], int]:
    return _ELEMENT_TYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr()


@lru_cache(_SESSIONS)
def _session(node: Node) -> Any:
    """Open a session of one thread: workers run side by side."""
    import onnxruntime  # noqa: PLC0415 - an extra, for workers alone
    from onnx import helper  # noqa: PLC0415

    types = dict(node.given)
    result = _ELEMENT_TYPES[types[node.given[0][0]]]
    inputs = [helper.make_tensor_value_info(name, _ELEMENT_TYPES[dtype], None) for name, dtype in types.items()]
    outputs = [helper.make_tensor_value_info(name, result, None) for name in node.outputs]
    names = [each[0] if each is not None else "" for each in node.inputs]
    attributes: dict[str, Any] = dict(node.attributes)
    made = helper.make_node(node.operator, names, node.outputs, domain=node.domain, **attributes)
    opsets = [helper.make_opsetid("", node.opset), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph([made], "attention", inputs, outputs)
    model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=opsets)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
