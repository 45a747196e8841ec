"""attnfuzz: a correctness fuzzer for the attention kernels of LLM serving engines.

From Python and pytest the whole interface is two names:

    @given(cases("trtllm_mha"))
    def test_attention(case):
        check(case)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnfuzz.reference.case import Case

__version__ = "0.1.0"
__all__ = ["cases", "check"]


def cases(backend: str) -> "SearchStrategy[Case]":
    """A Hypothesis strategy for cases that the backend called `backend` supports.

    Drawing waits for the workers to start. Neither that nor what `check` takes counts towards a test's deadline.
    """
    from hypothesis import strategies as st

    from attnfuzz.harness.workers.system import require_linux

    require_linux()
    from attnfuzz.harness.backends.registry import resolve
    from attnfuzz.harness.sandbox.check import shared_runner
    from attnfuzz.strategies.cases import cases as draw_cases

    capability = resolve(backend).capability

    def started() -> "SearchStrategy[Case]":
        shared_runner().start(backend)
        return draw_cases(capability, backend)

    return st.deferred(started)


def check(case: "Case") -> None:
    """Run a case in a worker that may die, judge it, and raise an AssertionError that says what failed.

    Inside of a Hypothesis test, the error is about the smallest case that fails for the same cause.
    """
    __tracebackhide__ = True
    from attnfuzz.harness.workers.system import require_linux

    require_linux()
    from attnfuzz.harness.pytest.in_hypothesis import untimed

    with untimed():
        # Importing takes a second at the first case.
        from attnfuzz.harness.pytest.check import check as check_case

        check_case(case)
