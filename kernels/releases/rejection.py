"""Rejections of a case by a release, distinguished from its crashes."""

import dis

from attnfuzz.kernels.releases.release import Release


def is_rejection(release: Release, error: ValueError | NotImplementedError) -> bool:
    """Whether the release's own `raise` rejects the case: one that Python raises in its code is a crash."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    raised = code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and code.co_filename.startswith(f"{release.root}/")
