"""Edits of calls on objects: each drops what the failure doesn't need, and no run loses its plan."""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from attnfuzz.harness.reduce import call_objects
from attnfuzz.harness.reduce.call_list import drop_calls
from attnfuzz.harness.reduce.search import reduce_calls
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import Buffer, Call, CallCase, View
from attnfuzz.reference.dtypes import DType

NAMES = ("floats", "other_floats", "indptr", "q", "out", "other_out")


def view(name: str) -> View:
    return View(buffer=name, shape=(2,), stride=(1,))


def made(name: str = "w") -> Call:
    return Call(op="Wrapper", makes=name, arguments={"float_workspace_buffer": view("floats")})


def reset(name: str = "w") -> Call:
    arguments = {"float_workspace_buffer": view("other_floats")}
    return Call(op="Wrapper.reset_workspace_buffer", on=name, arguments={**arguments})


def plan(scale: float = 1.0, on: str = "w") -> Call:
    return Call(op="Wrapper.plan", on=on, arguments={"indptr": view("indptr"), "sm_scale": scale})


def run(out: str = "out", **fields: str) -> Call:
    return replace(Call(op="Wrapper.run", on="w", arguments={"q": view("q"), "out": view(out)}), **fields)


COPY = Call(op="Wrapper.copy", on="w", makes="v")
FILL = Call(op="Wrapper.fill_workspaces", on="w")
REPLAY = Call(op="replay", graph="g")


def case_of(*calls: Call) -> CallCase:
    buffers = tuple(Buffer(name=name, dtype=DType.INT32, size=2, values=(0, 1)) for name in NAMES)
    return CallCase(backend="b", buffers=buffers, calls=calls)


def yielded(edit: Callable[[CallCase], Iterable[CallCase]], *calls: Call) -> list[tuple[Call, ...]]:
    found = list(edit(case_of(*calls)))
    for each in found:
        validate_calls(each)
    return [each.calls for each in found]


def test_earlier_uses_are_dropped_at_once_or_alone() -> None:
    calls = (made(), plan(2.0), run("other_out"), FILL, plan(), run())
    found = yielded(call_objects.drop_earlier_uses, *calls)
    assert found[0] == (made(), plan(), run())
    assert (made(), plan(2.0), FILL, plan(), run()) in found
    assert all(plan() in each and made() in each for each in found)


@pytest.mark.parametrize("edit", [call_objects.drop_earlier_uses, drop_calls])
def test_no_run_loses_its_plan_its_workspaces_or_its_object(
    edit: Callable[[CallCase], Iterable[CallCase]],
) -> None:
    graph = (made(), reset(), plan(), run(graph="g"), plan(2.0), REPLAY)
    for calls in ((made(), reset(), plan(), run()), (made(), reset(), plan(), COPY, run(on="v")), graph):
        for fewer in yielded(edit, *calls):
            assert calls[-1] not in fewer or fewer == calls


def test_a_buffer_of_a_dropped_use_is_dropped() -> None:
    first = next(iter(call_objects.drop_earlier_uses(case_of(made(), plan(2.0), run("other_out"), plan(), run()))))
    assert [buffer.name for buffer in first.buffers] == ["floats", "indptr", "q", "out"]


def test_a_constructor_takes_the_workspaces_that_replace_its_own() -> None:
    ((made_with, *rest),) = yielded(call_objects.take_workspaces_at_once, made(), reset(), plan(), run())
    assert made_with.arguments == {"float_workspace_buffer": view("other_floats")}
    assert rest == [plan(), run()]
    assert yielded(call_objects.take_workspaces_at_once, made(), plan(), reset(), plan(), run()) == []


def test_captured_calls_are_made_where_they_are_replayed() -> None:
    write = Buffer(name="q", dtype=DType.INT32, size=1, values=(7,))
    replay = replace(REPLAY, writes=(write,))
    found = yielded(call_objects.make_captured_calls, made(), plan(), run(graph="g"), plan(2.0), replay)
    assert found == [(made(), plan(), plan(2.0), replace(run(), writes=(write,)))]


def test_originals_take_the_place_of_copies_and_one_stream_that_of_others() -> None:
    apart = replace(run(on="v"), apart=True)
    assert yielded(call_objects.use_originals, made(), plan(), COPY, apart) == [
        (made(), plan(), replace(apart, on="w"))
    ]
    assert yielded(call_objects.use_one_stream, made(), COPY, apart) == [(made(), COPY, run(on="v"))]


def test_a_failure_of_one_plan_after_another_is_reduced_to_both() -> None:
    def fails(case: CallCase) -> bool:
        scales = [call.arguments["sm_scale"] for call in case.calls if call.op.endswith(".plan")]
        return scales[-2:] == [2.0, 1.0] and case.calls[-1].op.endswith(".run")

    calls = (made(), reset(), FILL, plan(3.0), run("other_out"), COPY, plan(2.0, on="v"), run("other_out", on="v"))
    case = case_of(*calls, plan(1.0, on="v"), run(on="v"))
    assert [call.op for call in reduce_calls(case, fails).calls] == [
        "Wrapper",
        "Wrapper.plan",
        "Wrapper.plan",
        "Wrapper.run",
    ]
