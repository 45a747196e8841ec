"""Objects and graphs in cases of calls: each rule refuses what it is about, in a line."""

from typing import Any

import pytest
from msgspec.structs import replace

from attnfuzz.reference import case_file
from attnfuzz.reference.calls import Buffer, Call, CallCase, View
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.object_validity import MAX_OBJECTS
from attnfuzz.reference.validity import ImpossibleCase

TENSOR = View(buffer="q", shape=(2,), stride=(1,))
MADE = Call(op="Wrapper", makes="w")
PLAN = Call(op="Wrapper.plan", on="w", arguments={"indptr": TENSOR, "q_data_type": "torch.float16"})
RUN = Call(op="Wrapper.run", on="w", arguments={"q": TENSOR}, held=("q",))
CAPTURED = replace(RUN, graph="g")
REPLAYED = Call(op="replay", graph="g")


def case_of(*calls: Call) -> CallCase:
    return CallCase(backend="b", buffers=(Buffer(name="q", dtype=DType.INT32, size=2, values=(0, 1)),), calls=calls)


def test_calls_on_objects_and_graphs_are_read_as_they_were_written() -> None:
    copied = Call(op="Wrapper.copy", on="w", makes="v")
    case = case_of(MADE, PLAN, RUN, CAPTURED, CAPTURED, REPLAYED, REPLAYED, copied, replace(RUN, on="v", apart=True))
    assert case_file.decode(case_file.encode(case)) == case


@pytest.mark.parametrize(
    ("calls", "refusal"),
    [
        ((PLAN,), "object of Wrapper.plan"),
        ((PLAN, MADE), "object of Wrapper.plan"),
        ((MADE, replace(PLAN, op="Other.plan")), "object of Other.plan"),
        ((MADE, replace(PLAN, op="plan")), "object of plan"),
        ((MADE, MADE), "name of an object"),
        ((MADE, replace(PLAN, on="w\n")), "an object of Wrapper.plan"),
        ((replace(MADE, makes="w" * 257),), "an object of Wrapper"),
        ((MADE, replace(RUN, held=("k",))), "held by Wrapper.run"),
        ((MADE, RUN, REPLAYED), "graph of a replay"),
        ((MADE, REPLAYED, CAPTURED), "graph of a replay"),
        ((MADE, CAPTURED, replace(REPLAYED, arguments={"q": TENSOR})), "a replay"),
        ((MADE, CAPTURED, replace(REPLAYED, on="w")), "a replay"),
        ((MADE, CAPTURED, PLAN, CAPTURED), "graph of Wrapper.run"),
        ((MADE, CAPTURED, REPLAYED, CAPTURED), "graph of Wrapper.run"),
        ((replace(MADE, graph="g"),), "graph of Wrapper"),
        (tuple(replace(MADE, makes=str(n)) for n in range(MAX_OBJECTS + 1)), "the number of objects"),
        (
            (MADE, *(replace(CAPTURED, graph=str(n)) for n in range(MAX_OBJECTS + 1))),
            "the number of graphs",
        ),
    ],
)
def test_a_call_that_no_object_allows_is_refused(calls: tuple[Call, ...], refusal: str) -> None:
    with pytest.raises(ImpossibleCase, match=f"^{refusal}"):
        case_of(*calls).validate()


@pytest.mark.parametrize("field", ["on", "makes", "graph", "held", "apart"])
@pytest.mark.parametrize("value", [1, ["a", 2], {"a": {"b": {}}}, [[[]]]])
def test_fields_of_other_types_are_refused(field: str, value: Any) -> None:
    data = case_file.encode(case_of(MADE)).replace(b'"makes"', f'"{field}": {value!r}, "_"'.replace("'", '"').encode())
    with pytest.raises(case_file.CaseFileError, match="not a case"):
        case_file.decode(data)
