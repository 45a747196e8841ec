"""transformers' "paged|eager" attention ignores the logit soft cap. Needs torch and transformers.

One query of one head sees two keys, whose logits are 100 and 0. With a soft cap of 1 the first key's weight is 0.73.
"""

from types import SimpleNamespace

from _template import finish, requirements, show

with requirements("torch transformers"):
    import torch
    import transformers
    from transformers.integrations.eager_paged import eager_paged_attention_forward
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

print(f"torch {torch.__version__}, transformers {transformers.__version__}")


class Cache:
    """A cache without a past."""

    def update(self, *, key_states, value_states, **_):
        """Return the new keys and values."""
        return key_states, value_states


layer = SimpleNamespace(layer_idx=0, num_key_value_groups=1, training=False)
query = torch.tensor([[[[100.0, 0.0]]]])
key = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
value = torch.tensor([[[[1.0, 1.0], [0.0, 0.0]]]])
expected, _ = eager_attention_forward(layer, query, key, value, None, scaling=1.0, softcap=1.0)
seen, _ = eager_paged_attention_forward(layer, query, key, value, None, 1.0, cache=Cache(), softcap=1.0)
line = f"weight of the first key: expected {expected[0, 0, 0, 0]:.3f}, seen {seen[0, 0, 0, 0]:.3f}"
show(line, wrong=not torch.allclose(expected, seen))
finish()
