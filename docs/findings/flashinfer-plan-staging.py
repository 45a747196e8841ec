"""FlashInfer stages a plan's metadata in pinned memory, and does not wait until it is copied. Needs a GPU.

A GPU that is busy when `plan` is called copies late. Each row has different keys, and the expected output is that of an
idle GPU. The last number of each line is how many of 64 rows differ.
"""

from _flashinfer import workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

ROWS, PAGE, DIM = 64, 16, 128
LENGTHS = [100 + 13 * row % 400 for row in range(ROWS)]
PAGES = sum(-(-length // PAGE) for length in LENGTHS)
torch.manual_seed(0)
CACHE = torch.randn(PAGES, 2, PAGE, 1, DIM, device="cuda", dtype=torch.float16)
QUERY = torch.randn(ROWS, 1, DIM, device="cuda", dtype=torch.float16)
Wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper


def new() -> Wrapper:
    """Return a wrapper with a small workspace, as for small batches."""
    wrapper = Wrapper(workspace(64), "NHD", backend="fa2")
    wrapper.reset_workspace_buffer(workspace(64), workspace(1))
    return wrapper


def attend(wrapper: Wrapper, lengths: list[int]) -> torch.Tensor:
    """Attend with one query per length; the lists are on the host, as `plan` requires in order not to wait."""
    pages = torch.tensor([-(-length // PAGE) for length in lengths])
    wrapper.plan(
        qo_indptr=torch.arange(ROWS + 1, dtype=torch.int32),
        paged_kv_indptr=torch.cat((torch.zeros(1), pages.cumsum(0))).int(),
        paged_kv_indices=torch.arange(PAGES, dtype=torch.int32, device="cuda"),
        paged_kv_last_page_len=torch.tensor([(length - 1) % PAGE + 1 for length in lengths], dtype=torch.int32),
        num_qo_heads=1,
        num_kv_heads=1,
        head_dim_qk=DIM,
        page_size=PAGE,
        causal=True,
        q_data_type=torch.float16,
    )
    return wrapper.run(QUERY, CACHE)


def compare(name: str, out: torch.Tensor) -> None:
    """Print how many rows of the first batch differ from their values on an idle GPU."""
    try:
        torch.cuda.synchronize()
        rows = (out != EXPECTED).flatten(1).any(1).sum().item()
    except RuntimeError as error:
        show(f"{name}: {str(error).splitlines()[0]}", wrong=True)
    else:
        show(f"{name}: {rows}", wrong=rows > 0)


def busy() -> None:
    """Keep the GPU busy for about 20 ms."""
    torch.cuda._sleep(40_000_000)  # noqa: SLF001 - the only one that torch has


EXPECTED = attend(new(), LENGTHS)
torch.cuda.synchronize()

kept = new()
busy()
compare("planned, run and waited for", attend(kept, LENGTHS))
busy()
first = attend(kept, LENGTHS)
attend(kept, LENGTHS[::-1])
compare("another batch planned and run behind it", first)
busy()
dropped = new()
first = attend(dropped, LENGTHS)
del dropped
others = torch.zeros(1 << 20, dtype=torch.uint8, pin_memory=True)
compare("the wrapper dropped, and its page-locked memory used again", first)
finish()
