"""FlashInfer's variable block-sparse attention with a mask that selects no block. Needs FlashInfer and a GPU.

One query, one block of one key. A mask that selects the block can be planned; one that selects no block should leave
zeros, as a row without keys does elsewhere in FlashInfer.
"""

import sys

try:
    import flashinfer
    import torch
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)

if not torch.cuda.is_available():
    print("needs a GPU")
    sys.exit(2)

print(f"FlashInfer {flashinfer.__version__}, torch {torch.__version__}")
ONES = torch.ones(1, 1, dtype=torch.int32, device="cuda")

wrong = False
for selected in (True, False):
    wrapper = flashinfer.VariableBlockSparseAttentionWrapper(
        torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), backend="fa2"
    )
    try:
        wrapper.plan(torch.tensor([[[selected]]], device="cuda"), ONES, ONES, 1, 1, 64, q_data_type=torch.bfloat16)
    except IndexError as error:
        wrong = True
        print(f"plan with {'a' if selected else 'no'} block: IndexError: {error}")
    else:
        print(f"plan with {'a' if selected else 'no'} block: it returns")
sys.exit(wrong)
