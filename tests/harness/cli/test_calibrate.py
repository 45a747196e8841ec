"""`attnfuzz calibrate`, and how commands speak of backends that are not calibrated."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from command_line import Attnfuzz
from msgspec.structs import replace

from attnfuzz.harness.calibrate import calibrate, sample
from attnfuzz.harness.calibrate.apart import CalibrationRequest, NoCalibration
from attnfuzz.harness.calibrate.calibrate import Measured
from attnfuzz.harness.calibrate.margins import Spread
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend
from attnfuzz.reference import calibration
from attnfuzz.reference.calibration import load
from attnfuzz.reference.dtypes import DType

ONE_DTYPE = SdpaBackend(capability=replace(SdpaBackend().capability, dtypes=(DType.FLOAT32,)))
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "my_backend.py"


def here(
    requests: Sequence[CalibrationRequest], *, tell: Callable[[str], None], **_: object
) -> Iterator[tuple[CalibrationRequest, Measured]]:
    """Without a worker, which would not see what a test has changed."""
    for request in requests:
        for step in calibrate.measure(request.backend, request.dtype, rows=request.rows, seed=request.seed):
            if isinstance(step, Measured):
                yield request, step
            else:
                tell(step)


@pytest.mark.slow
def test_the_command_writes_a_file_and_a_plot(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "long_cases", lambda *_: ())
    monkeypatch.setattr(sample, "_EXAMPLES_AT_ONCE", 10)
    monkeypatch.setattr(calibrate, "resolve", lambda _: ONE_DTYPE)
    monkeypatch.setattr("attnfuzz.harness.cli.selftests.calibrate.resolve", lambda _: ONE_DTYPE)
    monkeypatch.setattr("attnfuzz.harness.cli.selftests.calibrate.measure_apart", here)
    arguments = ("--backend", "torch_sdpa", "--rows", "1000", "--seed", "1", "-o", "fits", "--plot", "plots")
    ran = attnfuzz("calibrate", *arguments)
    assert ran.code == 0, ran.err
    (path,) = Path("fits").iterdir()
    assert set(load(path).dtypes) == {DType.FLOAT32}
    (plot,) = Path("plots").iterdir()
    assert plot.stat().st_size < 150_000
    table = [line for line in ran.out.splitlines() if not line.startswith("Written to")]
    assert max(map(len, table)) <= 80


def test_backends_that_cannot_be_calibrated_are_named_and_the_others_are_written(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_one(
        requests: Sequence[CalibrationRequest], **_: object
    ) -> Iterator[tuple[CalibrationRequest, Measured | NoCalibration]]:
        shipped = load(calibration.SHIPPED / "torch_sdpa-x86_64-AVX512.json").dtypes
        for request in requests:
            none = NoCalibration(f"{request.backend}, {request.dtype}: too wrong")
            spread = Spread({}, dict(shipped[request.dtype].margins))
            fits = request.backend == "torch_sdpa" and request.dtype is not DType.FLOAT16
            yield request, Measured(request.dtype, shipped[request.dtype], spread, spread) if fits else none

    monkeypatch.setattr("attnfuzz.harness.cli.selftests.calibrate.measure_apart", only_one)
    backends = ("--backend", "torch_sdpa", "--backend", "trtllm_mha")
    ran = attnfuzz("calibrate", *backends, "--rows", "1000", "-o", "fits")
    assert ran.code == 2
    assert ran.err.count("too wrong") == 4
    (path,) = Path("fits").iterdir()
    assert list(load(path).dtypes) == [DType.FLOAT32, DType.BFLOAT16]


def test_features_of_known_failures_are_left_out(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = ('features = ["sinks"]', 'features = ["window", "soft cap"]', 'kind = "Raised"')
    head = '[[known]]\nbackend = "trtllm_mha"\nreason = "a bug"\n'
    Path("attnfuzz-ledger.toml").write_text("\n".join(head + each for each in entries))
    asked: list[CalibrationRequest] = []

    def refuses(requests: Sequence[CalibrationRequest], **_: object) -> Iterator[tuple[CalibrationRequest, object]]:
        asked.extend(requests)
        yield from ((request, NoCalibration("none")) for request in requests)

    monkeypatch.setattr("attnfuzz.harness.cli.selftests.calibrate.measure_apart", refuses)
    attnfuzz("calibrate", "--backend", "trtllm_mha", "--backend", "torch_sdpa", "--rows", "1000")
    assert {(each.backend, each.without) for each in asked} == {
        ("trtllm_mha", (("sinks",), ("soft cap", "window"))),
        ("torch_sdpa", ()),
    }


def test_too_few_rows_are_refused(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("calibrate", "--rows", "10")
    assert ran.code == 2
    assert "--rows" in ran.err


@pytest.mark.slow
def test_a_users_backend_is_reported_as_uncalibrated(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("fuzz", "--backend", f"{EXAMPLE}:MINE", "--examples", "5", "--seed", "1")
    assert "uncalibrated: judged by the bounds of an unknown kernel" in " ".join(ran.out.split())
    assert f"attnfuzz calibrate --backend {EXAMPLE}:MINE" in ran.out


def test_backends_say_which_noise_model_judges_them(attnfuzz: Attnfuzz) -> None:
    assert "oise model" in attnfuzz("backends").out


@pytest.mark.parametrize("alpha", ["0", "1", "-1", "nan", "much"])
def test_alpha_is_a_number_between_0_and_1(attnfuzz: Attnfuzz, alpha: str) -> None:
    ran = attnfuzz("fuzz", "--alpha", alpha, "--examples", "1")
    assert ran.code == 2
    assert "--alpha" in ran.err
