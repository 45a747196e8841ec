"""A dump is read as it was written: names, contents, what was lost, and no more of it than is asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dump_maker import DECODE, Dumper, rewrite, stored
from readable_calls import readable_calls
from torch.utils._python_dispatch import TorchDispatchMode

from attnfuzz.harness.dumps.find_calls import read_dump
from attnfuzz.harness.dumps.metadata import Positional, parse
from attnfuzz.harness.dumps.recorded import CallStatus, DumpError, OtherValue, RecordedCall

QUERY = torch.arange(4 * 2 * 8, dtype=torch.float32).view(4, 2, 8)


def only_call(folder: Path) -> RecordedCall:
    (call,) = readable_calls(folder)
    return call


@pytest.mark.slow
@pytest.mark.parametrize("tensor_format", ["torch", "safetensors"])
@pytest.mark.parametrize(
    "content",
    [
        torch.tensor(1.5),
        torch.empty(0, 3, dtype=torch.int32),
        torch.tensor([True, False]),
        torch.arange(12, dtype=torch.bfloat16).view(3, 4).t(),
        torch.arange(12).view(3, 4)[:, ::2],
        torch.arange(6).view(2, 3).to(torch.uint16),
        torch.arange(6).to(torch.uint32),
        torch.arange(6.0).view(2, 3).to(torch.float8_e5m2),
        torch.nn.Parameter(torch.arange(6.0).view(3, 2)),
    ],
    ids=lambda content: f"{content.dtype}-{list(content.shape)}",
)
def test_a_tensor_is_read_as_it_was(tmp_path: Path, tensor_format: str, content: torch.Tensor) -> None:
    folder = Dumper(tmp_path, tensor_format=tensor_format).call(DECODE, content.detach(), content)
    for name in ("query", "kv_cache"):
        found = stored(only_call(folder).arguments[name])
        assert (found.shape, found.dtype) == (tuple(content.shape), content.dtype)
        assert found.read().is_contiguous()
        assert not found.read().requires_grad
        torch.testing.assert_close(found.read().double(), content.detach().double())
        if content.dim():
            indices = torch.tensor([len(content) - 1, 0] if len(content) else [], dtype=torch.int64)
            expected = content.detach().double()[indices]
            torch.testing.assert_close(found.rows(indices).double(), expected)


def test_positional_arguments_get_the_names_of_the_recorded_signature(tmp_path: Path) -> None:
    folder = Dumper(tmp_path).call("f", QUERY, (QUERY, QUERY), 3, 0.5, signature="(a, b: 'x, y' = (1, 2), *c)", d="HND")
    call = only_call(folder)
    assert set(call.arguments) == {"a", "b", "c[0]", "c[1]", "d"}
    assert (call.arguments["c[0]"], call.arguments["c[1]"], call.arguments["d"]) == (3, 0.5, "HND")
    pair = call.arguments["b"]
    assert isinstance(pair, tuple)
    assert [stored(member).shape for member in pair] == [(4, 2, 8)] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("()", Positional(())),
        ("(self, a: int = 3, /, b: 'Optional[Tuple[int, int]]' = None) -> x.T", Positional(("self", "a", "b"))),
        ("(a, *, b)", Positional(("a",))),
        ("(a, *rest: int, **others)", Positional(("a",), "rest")),
        ("(a: Literal['(', \"it's\", '\\''] = ')', b=[1, {2: 3}])", Positional(("a", "b"))),
        ("(a, b", None),
        ("a, b)", None),
        ("(1, 2)", None),
        ("<unavailable>", None),
        ("", None),
    ],
)
def test_signatures_are_taken_apart_without_being_evaluated(text: str, expected: Positional | None) -> None:
    assert parse(text) == expected


def test_a_function_needs_its_recorded_signature_for_positional_arguments_alone(
    tmp_path: Path,
) -> None:
    dumper = Dumper(tmp_path)
    assert set(only_call(dumper.call("f", signature="", key=1)).arguments) == {"key"}
    with pytest.raises(DumpError, match="the arguments of f can't be named"):
        readable_calls(dumper.call("f", 1, signature=""))


def test_values_that_are_no_tensors_are_read_unchanged(tmp_path: Path) -> None:
    folder = Dumper(tmp_path).call(
        "f",
        truth=True,
        number=3,
        big=1 << 80,
        text="HND",
        nothing=None,
        dtype=torch.float8_e4m3fn,
        device=torch.device("cuda:1"),
        sizes=[1, 2],
        mixed=(QUERY, None),
    )
    call = only_call(folder)
    assert call.arguments == {
        "truth": True,
        "number": 3,
        "big": 1 << 80,
        "text": "HND",
        "nothing": None,
        "dtype": torch.float8_e4m3fn,
        "device": OtherValue("device", "cuda:1"),
        "sizes": call.arguments["sizes"],
        "mixed": call.arguments["mixed"],
    }
    for name, type_name in (("sizes", "list"), ("mixed", "tuple")):
        value = call.arguments[name]
        assert isinstance(value, OtherValue)
        assert value.type_name == type_name
        assert f"{name} was an object ({type_name}), of which only the text is recorded." in call.lost


def test_an_enum_is_reported_by_its_name(tmp_path: Path) -> None:
    folder = Dumper(tmp_path).call("f", mode=None)
    rewrite(folder, input_metadata={"kwarg_mode": {"type": "enum", "name": "MaskMode.CAUSAL", "value": 1}})
    assert only_call(folder).arguments["mode"] == OtherValue("MaskMode", "MaskMode.CAUSAL")


def test_a_pair_that_an_older_flashinfer_kept_as_text_is_reported_by_it(tmp_path: Path) -> None:
    folder = Dumper(tmp_path).call(DECODE, QUERY)
    rewrite(folder, input_metadata={"arg_1": {"type": "tuple", "value": "(tensor([1, 2]), tensor([3]))"}})
    call = only_call(folder)
    assert call.arguments["kv_cache"] == OtherValue("tuple", "(tensor([1, 2]), tensor([3]))")
    assert "kv_cache was an object (tuple), of which only the text is recorded." in call.lost


def test_properties_that_a_dump_lacks_are_listed(tmp_path: Path) -> None:
    dumper = Dumper(tmp_path)
    plain = only_call(dumper.call(DECODE, QUERY, (QUERY[:, 0], QUERY[:, 1])))
    assert plain.lost == (
        "The strides of query are not recorded: a copy on the host is dense.",
        "The dump does not record which tensors shared memory.",
    )
    assert only_call(dumper.call(DECODE, QUERY.transpose(0, 1))).lost == ()
    captured = readable_calls(dumper.captured(DECODE, (QUERY,), QUERY, [((QUERY,), QUERY)]))[0]
    assert stored(captured.arguments["query"]).stride == (16, 8, 1)
    assert captured.lost == ("Inputs were recorded after a replay: overwritten inputs are lost.",)


def test_calls_are_ordered_by_process_then_as_the_session_has_them(tmp_path: Path) -> None:
    one, two = Dumper(tmp_path, process=20), Dumper(tmp_path, process=9)
    names = ["W.run", "W.plan", "W.run"]
    for name in names:
        one.call(name, self_id=1)
        two.call(name, self_id=1)
    # Times with milliseconds may be equal: by name alone, plan would come first.
    for folder in tmp_path.glob("2026*"):
        folder.rename(tmp_path / folder.name.replace("_043000_002", "_043000_001"))
    session = tmp_path / "session.jsonl"
    session.write_text(session.read_text().replace("_043000_002", "_043000_001"))
    ordered = [(9, name) for name in names] + [(20, name) for name in names]
    assert [(call.process, call.function) for call in readable_calls(tmp_path)] == ordered
    session.unlink()
    assert [call.function for call in readable_calls(tmp_path)] == ["W.plan", "W.run", "W.run"] * 2


def test_a_session_with_broken_lines_is_no_obstacle(tmp_path: Path) -> None:
    dumper = Dumper(tmp_path)
    dumper.call("b", x=1)
    with (tmp_path / "session.jsonl").open("ab") as file:
        file.write(b'{"dump_dir": "\xff\n[1]\n{"dump_dir": 3}\n\n')
    dumper.call("a", x=1)
    assert [call.function for call in readable_calls(tmp_path)] == ["b", "a"]
    (tmp_path / "session.jsonl").write_text('{"dump')
    assert [call.function for call in readable_calls(tmp_path)] == ["b", "a"]


def test_a_dump_may_be_moved(tmp_path: Path) -> None:
    dumper = Dumper(tmp_path / "before")
    dumper.call(DECODE, QUERY)
    dumper.captured(DECODE, (QUERY,), QUERY, [((QUERY + 1,), QUERY), ((QUERY + 2,), QUERY)])
    moved = (tmp_path / "before").rename(tmp_path / "after")
    calls = readable_calls(moved)
    assert [call.snapshot for call in calls] == [None, 1, 2]
    assert [stored(call.arguments["query"]).read()[0, 0, 0] for call in calls] == [0, 1, 2]
    assert all(call.folder.is_relative_to(moved) for call in calls)


def test_a_call_that_was_cut_off_while_it_returned_counts_as_crashed(tmp_path: Path) -> None:
    folder = Dumper(tmp_path).call(DECODE, QUERY, result=QUERY, completed=True)
    path = folder / "metadata.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    (folder / "outputs.pt").unlink()
    call = only_call(folder)
    assert (call.status, call.outputs) == (CallStatus.CRASHED, {})
    assert call.lost[-1] == "The last line of metadata.jsonl is cut off: the call went further than the record says."


def test_one_call_that_cannot_be_read_does_not_keep_the_others_back(tmp_path: Path) -> None:
    dumper = Dumper(tmp_path)
    broken, _ = dumper.call("a", x=1), dumper.call("b", x=1)
    (broken / "metadata.jsonl").write_text("")
    dump = read_dump(tmp_path)
    assert [call.function for call in dump.calls] == ["b"]
    assert [str(error).split(": ")[0] for error in dump.unreadable] == [f"{broken / 'metadata.jsonl'} is empty"]


def test_a_call_whose_graph_was_never_replayed_to_its_end_is_reported_and_left_out(tmp_path: Path) -> None:
    dumper = Dumper(tmp_path)
    dumper.captured(DECODE, (QUERY,), QUERY, [])
    dumper.call("b", x=1)
    dump = read_dump(tmp_path)
    assert [call.function for call in dump.calls] == ["b"]
    (error,) = dump.unreadable
    assert "no replay of it finished" in str(error)


@pytest.mark.slow
def test_thousands_of_tensors_are_read(tmp_path: Path) -> None:
    many = [torch.tensor([index]) for index in range(3000)]
    value = only_call(Dumper(tmp_path).call("f", values=many)).arguments["values"]
    assert isinstance(value, tuple)
    assert [int(stored(member).read()) for member in value] == list(range(3000))


@pytest.mark.slow
@pytest.mark.parametrize("tensor_format", ["torch", "safetensors"])
def test_tensors_are_mapped_and_only_the_rows_that_are_asked_for_are_copied(tmp_path: Path, tensor_format: str) -> None:
    cache = torch.arange(64 * 2 * 8, dtype=torch.bfloat16).view(64, 2, 8)
    folder = Dumper(tmp_path, tensor_format=tensor_format).call(DECODE, QUERY, cache)
    (file,) = folder.glob("inputs.*")
    found = stored(only_call(folder).arguments["kv_cache"])
    assert _mapped_file(found.read()).name == file.name
    with Copied() as copied:  # type: ignore[no-untyped-call]
        rows = found.rows(torch.tensor([3, 60, 17]))
    assert torch.equal(rows, cache[[3, 60, 17]])
    assert copied.nbytes == rows.nbytes


class Copied(TorchDispatchMode):
    """Counts the bytes of the tensors that torch makes, views left out."""

    nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        held = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)}
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in held:
            self.nbytes += made.nbytes
        return made


def _mapped_file(tensor: torch.Tensor) -> Path:
    """The file that the memory of a tensor is a mapping of, "." for other memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in addresses.split("-"))
        if begin <= tensor.data_ptr() < end:
            return Path(*path)
    return Path()
