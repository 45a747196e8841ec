"""SGLang 0.5.9 to 0.5.23, Triton: the mask of an eager verify has no rows for padded requests. Needs torch.

A rank has one request that verifies two draft tokens; another rank has two. The mask is made for one request. The batch
is padded to two, and offsets into the mask are computed for both.
"""

from _template import finish, requirements, show

with requirements("torch"):
    import torch

SEQ_LEN, DRAFTS, FILL = 3, 2, 1

# eagle_utils.py 0.5.23, line 191: before padding.
seq_lens = torch.tensor([SEQ_LEN])
mask = torch.ones(int(seq_lens.sum()) * DRAFTS + DRAFTS * DRAFTS * len(seq_lens), dtype=torch.bool)
# forward_batch_info.py, _pad_inputs_to_size: a padded request has get_cuda_graph_seq_len_fill_value() keys.
seq_lens = torch.tensor([SEQ_LEN, FILL])
# triton_backend.py, lines 1052 to 1056.
offsets = [0, *torch.cumsum(DRAFTS * (seq_lens + DRAFTS), dim=0).tolist()]
show(
    f"1 request of {SEQ_LEN} keys and {DRAFTS} drafts, padded to 2: a mask of {mask.numel()} bytes, "
    f"offsets {offsets}: read up to {offsets[-1]}",
    wrong=offsets[-1] > mask.numel(),
)
finish()
