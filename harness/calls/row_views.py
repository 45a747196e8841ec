"""Views as rows, and parts of them."""

from msgspec.structs import replace

from attnfuzz.reference.calls import View


def flat(view: View, ndim: int) -> View:
    """The view with its leading axes made one, so that `ndim` are left. ValueError if no stride says so."""
    while len(view.shape) > ndim:
        rows, inner = view.shape[:2]
        if rows > 1 and inner > 1 and view.stride[0] != inner * view.stride[1]:
            raise ValueError(f"rows of {list(view.shape)} at strides {list(view.stride)} are not evenly apart")
        step = view.stride[1] if inner > 1 else view.stride[0]
        view = replace(view, shape=(rows * inner, *view.shape[2:]), stride=(step, *view.stride[2:]))
    return view


def rows(view: View, first: int, count: int) -> View:
    """So many entries of the first axis."""
    offset = view.offset + first * view.stride[0] if count else view.offset
    return replace(view, shape=(count, *view.shape[1:]), offset=offset)
