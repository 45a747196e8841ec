"""Stands for FlashInfer's dumps of level 10: any function, any state, and some with false content.

`Dumper` does for a call what flashinfer/api_logging.py does, tensors on the CPU. Tests compare the two.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from attnfuzz.harness.dumps.recorded import ForeignTensor

DECODE = "trtllm_batch_decode_with_kv_cache"
SIGNATURE = (
    "(query: torch.Tensor, kv_cache: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], workspace_buffer: "
    "torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, max_seq_len: int, bmm1_scale: float = 1.0, "
    "bmm2_scale: float = 1.0, window_left: int = -1, out: Optional[torch.Tensor] = None, out_dtype: "
    "Optional[torch.dtype] = None, sinks: Optional[List[torch.Tensor]] = None, kv_layout: str = 'HND') -> torch.Tensor"
)
"""Of the decode function, shortened."""


@dataclass
class Dumper:
    """What one process dumps to `folder`."""

    folder: Path
    process: int = 4711
    tensor_format: str = "torch"
    module: str = "flashinfer.decode"
    session: bool = True
    calls: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def call(
        self,
        function: str,
        *arguments: Any,
        signature: str = SIGNATURE,
        self_id: int | None = None,
        result: Any = None,
        completed: bool = False,
        **keywords: Any,
    ) -> Path:
        """Dump an eager call, which crashed unless it is `completed`; its folder."""
        tensors, others = _taken_apart(_arguments(arguments, keywords))
        folder, record = self._begin(function, signature, self_id, tensors, others, "inputs_saved")
        self._save(folder, "inputs", tensors)
        self._append(folder, record)
        if completed:
            results, other_results = _taken_apart(_results(result))
            self._save(folder, "outputs", results)
            self._append(folder, _with_outputs(record, results, other_results) | {"execution_status": "completed"})
        return folder

    def captured(
        self,
        function: str,
        arguments: tuple[Any, ...],
        result: Any,
        snapshots: Iterable[tuple[tuple[Any, ...], Any]],
        *,
        signature: str = SIGNATURE,
    ) -> Path:
        """Dump a call in a graph: arguments and result when it was captured, then those of each snapshot."""
        tensors, others = _taken_apart(_arguments(arguments, {}))
        folder, record = self._begin(function, signature, None, tensors, others, "graph_capture_pending_flush")
        record |= {"graph_capture": True}
        self._append(folder, record)
        record = _with_outputs(record, *_taken_apart(_results(result)))
        self._append(folder, record)
        for index, (now, result_now) in enumerate(snapshots, 1):
            snapshot = folder / "graph_flushes" / f"flush_{index:04d}"
            snapshot.mkdir(parents=True)
            groups = (
                ("inputs", _taken_apart(_arguments(now, {}))[0], "inputs_saved"),
                ("outputs", _taken_apart(_results(result_now))[0], "completed"),
            )
            for kind, group, status in groups:
                flushed = {
                    "execution_status": status,
                    "graph_capture_flushed": True,
                    "graph_capture_flush_index": index,
                    "graph_capture_snapshot_dir": str(snapshot),
                }
                record |= flushed
                self._save(folder, kind, group)
                self._save(snapshot, kind, group)
                self._append(folder, record)
                base = {"dump_dir": str(snapshot), "graph_capture_base_dump_dir": str(folder)}
                self._append(snapshot, record | base)
        return folder

    def _begin(
        self,
        function: str,
        signature: str,
        self_id: int | None,
        tensors: Mapping[str, torch.Tensor],
        others: Mapping[str, Any],
        status: str,
    ) -> tuple[Path, dict[str, Any]]:
        self.calls += 1
        sequence = self.counts[function] = self.counts.get(function, 0) + 1
        timestamp = f"20260501_043000_{self.calls:03d}"
        folder = self.folder / f"{timestamp}_pid{self.process}_{function}_call{sequence:04d}"
        folder.mkdir(parents=True)
        size = sum(tensor.nbytes for tensor in tensors.values())
        record: dict[str, Any] = {
            "function_name": function,
            "module": self.module,
            "call_sequence": sequence,
            "timestamp": timestamp,
            "process_id": self.process,
            "input_metadata": others,
            "output_metadata": {},
            "tensor_info": {
                "input_tensor_keys": list(tensors),
                "output_tensor_keys": [],
                "input_size_bytes": size,
                "input_size_mb": size / (1 << 20),
            },
            "tensor_details": {key: _details(tensor) for key, tensor in tensors.items()},
            "tensor_format": self.tensor_format,
            "function_signature": signature,
            "versions": {"torch": torch.__version__, "python": sys.version, "flashinfer": "0.7.2.post1"},
            "execution_status": status,
            "graph_capture": False,
            "dump_dir": str(folder),
        }
        return folder, record if self_id is None else record | {"self_id": self_id}

    def _save(self, folder: Path, kind: str, tensors: Mapping[str, torch.Tensor]) -> None:
        if tensors and self.tensor_format == "torch":
            torch.save(dict(tensors), folder / f"{kind}.pt")
        elif tensors:
            dense = {key: tensor.contiguous().clone() for key, tensor in tensors.items()}
            save_file(dense, folder / f"{kind}.safetensors")

    def _append(self, folder: Path, record: Mapping[str, Any]) -> None:
        line = json.dumps(record) + "\n"
        for path in [folder / "metadata.jsonl", *([self.folder / "session.jsonl"] if self.session else [])]:
            with path.open("a") as file:
                file.write(line)


def stored(value: object) -> ForeignTensor:
    """An argument that is one tensor."""
    assert isinstance(value, ForeignTensor)
    return value


def rewrite(folder: Path, **changes: Any) -> None:
    """Change keys of a call's last record; None takes a key away."""
    path = folder / "metadata.jsonl"
    *before, last = path.read_text().splitlines()
    record = {key: value for key, value in (json.loads(last) | changes).items() if value is not None}
    path.write_text("\n".join([*before, json.dumps(record)]) + "\n")


def sparse_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> None:
    """A file with these tensors, and a bfloat16 tensor of zeros called `name` that takes no disk: a hole."""
    save_file(dict(tensors), path)
    small = path.read_bytes()
    length = int.from_bytes(small[:8], "little")
    header, content = json.loads(small[8 : 8 + length]), small[8 + length :]
    nbytes = 2 * torch.Size(shape).numel()
    offsets = [len(content), len(content) + nbytes]
    text = json.dumps(header | {name: {"dtype": "BF16", "shape": shape, "data_offsets": offsets}}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + content)
        file.truncate(8 + len(text) + len(content) + nbytes)


def _taken_apart(values: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by key, and what metadata says about the other values."""
    tensors: dict[str, torch.Tensor] = {}
    others: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            tensors[key] = value
        else:
            others[key] = _described(value, key, tensors)
    return tensors, others


def _arguments(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    named = {f"arg_{index}": value for index, value in enumerate(arguments)}
    return named | {f"kwarg_{name}": value for name, value in keywords.items()}


def _results(result: Any) -> dict[str, Any]:
    items = {f"result_{index}": item for index, item in enumerate(result)} if isinstance(result, tuple) else {}
    return items or {"result": result}


def _with_outputs(
    record: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], others: Mapping[str, Any]
) -> dict[str, Any]:
    info, size = record["tensor_info"], sum(tensor.nbytes for tensor in tensors.values())
    total = info["input_size_bytes"] + size
    sizes = {
        "output_size_bytes": size,
        "output_size_mb": size / (1 << 20),
        "total_size_bytes": total,
        "total_size_mb": total / (1 << 20),
    }
    return {
        **record,
        "output_metadata": others,
        "tensor_info": info | {"output_tensor_keys": list(tensors)} | sizes,
        "tensor_details": record["tensor_details"] | {key: _details(tensor) for key, tensor in tensors.items()},
    }


def _described(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[key] = value
        flags = {"requires_grad": value.requires_grad, "is_contiguous": value.is_contiguous()}
        return {"type": "torch.Tensor"} | _details(value) | flags | {"tensor_key": key}
    if isinstance(value, list | tuple):
        items = [_described(item, f"{key}__{index}", tensors) for index, item in enumerate(value)]
        return {"type": type(value).__name__, "length": len(value), "items": items, "truncated": False}
    if isinstance(value, torch.dtype):
        return {"type": "torch.dtype", "value": str(value)}
    if value is None or isinstance(value, int | float | str):
        return value
    return {"type": type(value).__name__, "repr": str(value)[:1000]}


def _details(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype),
        "stride": list(tensor.stride()),
        "device": str(tensor.device),
    }
