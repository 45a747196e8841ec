"""`attnfuzz check`: plain cases of a backend."""

from rich.text import Text

from attnfuzz.harness.cli.answers import Checked, FailedPlainly, ListedFailure
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, answer, details, tell
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.plain_check import check as check_plainly
from attnfuzz.reference import case_file


def check(*, backend: str) -> Exit:
    """Run the plain cases of a backend, print how they end, and return the exit code."""
    with Runner([backend], progress=tell) as runner:
        result = check_plainly(backend, runner)
    if not result.judged:
        raise BadInput(result.words)
    answer(
        Checked(
            backend=backend,
            cases=len(result.judged),
            failed=result.failed,
            failures=tuple(
                FailedPlainly(
                    cases=tuple(map(case_file.case_id, each.cases)), failure=ListedFailure.of(each.observation)
                )
                for each in result.symptoms
            ),
        )
    )
    headline, _, rest = result.words.partition("\n")
    Terminal().print(Text(headline, style="bold red" if result.symptoms else "bold green"))
    if rest:
        details().print(Text(rest))
    return Exit.FOUND if result.symptoms else Exit.CLEAN
