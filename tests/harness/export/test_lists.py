"""Calls that select lists are judged by the scores of the entries, in memory and in scripts."""

import ast
import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import attnfuzz.harness.export
from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.export.python_source import inlined
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.sparse.results import Selected
from attnfuzz.reference.sparse import lists
from attnfuzz.reference.sparse.lists import Selection

PINS = Path(__file__).parents[2] / "defects"
TEMPLATE = Path(attnfuzz.harness.export.__file__).parent / "lists.py.j2"
SCORES = torch.tensor([[1.0, 2.0, 2.0, 0.5], [3.0, 4.0, 9.0, 9.0]])


@pytest.mark.parametrize("defect", ["top_k_by_16_bits", "top_k_short_rows_unfilled"])
def test_the_calls_of_a_wrong_top_k_fail_by_themselves_and_pass_on_the_right_kernel(
    defect: str, runner: Runner
) -> None:
    """In a worker, which alone makes traces."""
    pin = load_pin(PINS, defect)
    assert pin is not None
    verdict, calls = runner.trace(pin.case)
    assert calls is not None
    (failure,) = verdict.failures
    (again,) = runner.verdict(calls).failures
    assert (again.kind, again.place, again.tier) == (failure.kind, failure.place, failure.tier)
    assert not runner.verdict(replace(calls, backend="native:sparse")).failures


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([[1, 2], [1, 0]], 0),
        ([[2, 1], [0, 1]], 0),
        ([[1, 0], [0, 1]], 1),
        ([[1, 2], [0, 2]], 1),
        ([[1, 1], [0, 0]], 2),
    ],
)
def test_a_script_accepts_exactly_the_lists_that_the_judge_accepts(
    rows: list[list[int]], wrong: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inlined((lists,), ("mistake_of_list",), {})
    names: dict[str, Any] = {"torch": torch}
    exec(TEMPLATE.read_text().replace("{{ selection }}", text), names)  # noqa: S102 - a template of ours
    compared = Selected(
        "", "lists", torch.tensor(rows, dtype=torch.int32), Selection(SCORES, (0, 0), (4, 2), 2), ()
    ).compared
    lengths = torch.tensor([len(each) for each in compared.scores])
    assert names["compare_lists"]("lists", compared.seen, torch.cat(compared.scores), lengths) is bool(wrong)
    assert f"lists: {wrong} of 2 rows are wrong" in capsys.readouterr().out
    tree = ast.parse(text)
    defined = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assert used <= defined | given | set(dir(builtins)) | {"torch"}
