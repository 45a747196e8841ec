"""FlashInfer's variable block-sparse attention with a mask that selects no block. Needs FlashInfer and a GPU.

One query, one block of one key. A mask that selects the block can be planned; one that selects no block should leave
zeros, as a row without keys does elsewhere in FlashInfer.
"""

from _flashinfer import workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

print(f"FlashInfer {flashinfer.__version__}, torch {torch.__version__}")
ONES = torch.ones(1, 1, dtype=torch.int32, device="cuda")

for selected in (True, False):
    wrapper = flashinfer.VariableBlockSparseAttentionWrapper(workspace(), backend="fa2")
    try:
        wrapper.plan(torch.tensor([[[selected]]], device="cuda"), ONES, ONES, 1, 1, 64, q_data_type=torch.bfloat16)
    except IndexError as error:
        show(f"plan with {'a' if selected else 'no'} block: IndexError: {error}", wrong=True)
    else:
        show(f"plan with {'a' if selected else 'no'} block: it returns")
finish()
