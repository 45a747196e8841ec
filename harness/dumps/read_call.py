"""Read one folder of a dump as a recorded call."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnfuzz.harness.dumps.folders import file_in, last_record
from attnfuzz.harness.dumps.metadata import (
    Described,
    Metadata,
    Positional,
    TensorDetails,
    dtype_of,
    metadata_of,
    positional,
    recorded_value,
)
from attnfuzz.harness.dumps.recorded import CallStatus, DumpError, ForeignTensor, OtherValue, Recorded, RecordedCall
from attnfuzz.harness.dumps.tensor_files import SUFFIXES, TensorFile
from attnfuzz.harness.memory.allocation import dense_stride
from attnfuzz.harness.verdict.printable import printable

METADATA = "metadata.jsonl"

_EAGER = {"inputs_saved": CallStatus.CRASHED, "completed": CallStatus.COMPLETED}
_PENDING = "graph_capture_pending_flush"

_POSITION = re.compile(r"arg_(\d{1,6})", re.ASCII)


def read_call(root: Path, folder: Path, snapshot: int | None = None) -> RecordedCall:
    """Read the call in `folder`, which is `root` or under it; `snapshot` is its number if the call was captured.

    Its tensors are not read yet.

    Raises:
        DumpError: the folder has no complete call.

    """
    return _Reader.open(root, folder).call(snapshot)


@dataclass(frozen=True)
class _Reader:
    """Reads a folder. `path` is the metadata file; `torn` is True if its last record is cut off. `lost` grows."""

    root: Path
    folder: Path
    path: Path
    metadata: Metadata
    torn: bool
    lost: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path, folder: Path) -> "_Reader":
        path = file_in(root, folder / METADATA)
        if path is None:
            raise DumpError(
                f"{folder} has no {METADATA}: FlashInfer failed or was killed while dumping this call, or is too old"
            )
        record, torn = last_record(path)
        return cls(root, folder, path, metadata_of(record, path), torn)

    def call(self, snapshot: int | None) -> RecordedCall:
        metadata, status = self.metadata, self._status()
        inputs = self._values("inputs", metadata.tensor_info.input_tensor_keys, metadata.input_metadata)
        outputs: dict[str, Recorded] = {}
        if metadata.execution_status == "completed":
            outputs = self._values("outputs", metadata.tensor_info.output_tensor_keys, metadata.output_metadata)
        arguments = self._bound(inputs)
        self._note(status, arguments)
        return RecordedCall(
            folder=self.folder,
            function=metadata.function_name,
            module=printable(metadata.module),
            sequence=metadata.call_sequence,
            process=metadata.process_id,
            status=status,
            arguments=arguments,
            outputs=outputs,
            self_id=metadata.self_id,
            lost=tuple(self.lost),
            versions={printable(name): " ".join(printable(text).split()) for name, text in metadata.versions.items()},
            snapshot=snapshot,
        )

    def _status(self) -> CallStatus:
        written = self.metadata.execution_status
        if self.metadata.graph_capture or written == _PENDING:
            if written == _PENDING:
                raise DumpError(
                    f"{self.folder} was captured in a graph and has no tensors: no replay of it finished; dump "
                    "a run without graphs, where tensors are written before the call"
                )
            return CallStatus.CAPTURED
        if written not in _EAGER:
            raise DumpError(
                f"{self.path} has the execution_status {written[:50]!r}, which is not known: it is of another version "
                "of FlashInfer"
            )
        return _EAGER[written]

    def _values(self, kind: str, keys: Iterable[str], others: Mapping[str, object]) -> dict[str, Recorded]:
        """Read all arguments or results by the dump's names. `others` are non-tensors, or contain tensors."""
        keys = dict.fromkeys(keys)
        file = self._tensor_file(kind) if keys else None

        def tensor(key: str, described: Described | TensorDetails, stride: tuple[int, ...] | None) -> ForeignTensor:
            if file is None or key not in keys:
                raise DumpError(f"{self.path} names a tensor {key[:50]!r} that is not among those of the {kind}")
            if len(described.stride) != len(described.shape):
                raise DumpError(
                    f"{self.path} is damaged: tensor {key[:50]!r} has {len(described.shape)} sizes, but "
                    f"{len(described.stride)} strides"
                )
            return file.tensor(key, described.shape, dtype_of(described.dtype, self.path), stride)

        def member(key: str, described: Described) -> ForeignTensor:
            return tensor(key, described, described.stride)

        values = {name: recorded_value(raw, member, self.path) for name, raw in others.items()}
        for key in keys:
            if _is_member(key, others):
                continue
            details = self.metadata.tensor_details.get(key)
            if details is None:
                raise DumpError(
                    f"{self.path} does not describe tensor {key[:50]!r}: it is from another FlashInfer version"
                )
            values[key] = tensor(key, details, self._stride(details))
        return values

    def _tensor_file(self, kind: str) -> TensorFile:
        for suffix in SUFFIXES:
            path = file_in(self.root, self.folder / f"{kind}{suffix}")
            if path is not None:
                return TensorFile(path)
        names = " or ".join(f"{kind}{suffix}" for suffix in SUFFIXES)
        raise DumpError(
            f"{self.folder} has no {names}, which holds the tensors that {METADATA} lists: copy the whole dump"
        )

    def _stride(self, details: TensorDetails) -> tuple[int, ...] | None:
        """Return the stride of a tensor that is an argument by itself; None if unknown.

        The dump's copy on the host is dense, in the original's order of axes; other strides are the original's.
        """
        if self.metadata.graph_capture or details.stride != dense_stride(details.shape):
            return details.stride
        return None

    def _bound(self, inputs: Mapping[str, Recorded]) -> dict[str, Recorded]:
        """Map the arguments by the names of the signature."""
        places = {int(match[1]): key for key in inputs if (match := _POSITION.fullmatch(key))}
        missing = next((index for index in range(len(places)) if index not in places), None)
        if missing is not None:
            raise DumpError(f"{self.path} has no arg_{missing}, but a later argument: copy the dump again")
        positions = set(places.values())
        names = positional(self.metadata.function_name, self.metadata.function_signature) if places else Positional(())
        arguments: dict[str, Recorded] = {}
        for index, key in sorted(places.items()):
            name = names.name(index)
            if name is None:
                raise DumpError(
                    f"{self.path} has {len(places)} positional arguments, but {self.metadata.function_name} takes "
                    f"{len(names.names)}: it is from another FlashInfer version than its signature"
                )
            arguments[name] = inputs[key]
        for key in inputs:
            if key in positions:
                continue
            name = key.removeprefix("kwarg_")
            if name == key or not name.isidentifier() or name in arguments:
                raise DumpError(f"{self.path} has the argument {key[:50]!r}, which is not a further parameter")
            arguments[name] = inputs[key]
        if self.metadata.self_id is not None:
            arguments.pop("self", None)
        return arguments

    def _note(self, status: CallStatus, arguments: Mapping[str, Recorded]) -> None:
        """Note the information that the dump lost."""
        dense, tensors = [], 0
        for name, value in arguments.items():
            members = value if isinstance(value, tuple) else (value,)
            tensors += sum(isinstance(member, ForeignTensor) for member in members)
            if isinstance(value, ForeignTensor) and value.shape and not self.metadata.graph_capture:
                dense += [name] if value.stride is None else []
            elif isinstance(value, OtherValue):
                self.lost.append(f"{name} was an object ({value.type_name}), of which only the text is recorded.")
        if dense:
            self.lost.append(f"The strides of {', '.join(dense)} are not recorded: a copy on the host is dense.")
        if tensors > 1:
            self.lost.append("The dump does not record which tensors shared memory.")
        if status is CallStatus.CAPTURED:
            self.lost.append("Inputs were recorded after a replay: overwritten inputs are lost.")
        if self.torn:
            self.lost.append(f"The last line of {METADATA} is cut off: the call went further than the record says.")


def _is_member(key: str, others: Mapping[str, object]) -> bool:
    """Return whether a tensor belongs to one of these values: `arg_1__0` is the first of arg_1."""
    owner, *members = key.split("__")
    for member in members:
        if owner in others:
            return True
        owner += f"__{member}"
    return False
