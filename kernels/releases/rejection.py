"""Rejections of a case by a release, distinguished from its crashes."""

import dis
from collections.abc import Iterator
from contextlib import contextmanager

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.releases.release import Release


@contextmanager
def rejections_of(release: Release) -> Iterator[None]:
    """Run code of a release in this context. Raises Unsupported where the release rejects the case."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        if _is_rejection(release, error):
            raise Unsupported(f"the release says: {error}") from error
        raise


def _is_rejection(release: Release, error: ValueError | NotImplementedError) -> bool:
    """Return whether the release's own `raise` rejects the case: one of Python itself in its code is a crash."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    raised = code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and code.co_filename.startswith(f"{release.root}/")
