"""A Llama of 1.4 million random parameters with a tokenizer of 512 words, for servers under test: nothing is fetched.

python scripts/random_llama.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 512
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 2, 8, 2, 32
LONGEST = 4096

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}

TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": number, "content": f"t{number}", "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for number in range(4)
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {f"t{number}": number for number in range(VOCABULARY)}, "unk_token": "t0"},
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "t0",
    "bos_token": "t1",
    "eos_token": "t2",
    "pad_token": "t3",
    "model_max_length": LONGEST,
    "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
}


def write_model(folder: Path) -> int:
    """Write the model into `folder`, and return its number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(_weights())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer.json", TOKENIZER),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content, indent=1))
    return sum(each.numel() for each in weights.values())


def _weights() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        # Large enough that attention weighs keys differently: a wrong key shows in the logits.
        return torch.randn(*shape, generator=generator) * 0.2

    made = [("model.embed_tokens.weight", normal(VOCABULARY, HIDDEN)), ("lm_head.weight", normal(VOCABULARY, HIDDEN))]
    made.append(("model.norm.weight", torch.ones(HIDDEN)))
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        made += [
            (f"{block}self_attn.q_proj.weight", normal(HEADS * HEAD_DIM, HIDDEN)),
            (f"{block}self_attn.k_proj.weight", normal(KV_HEADS * HEAD_DIM, HIDDEN)),
            (f"{block}self_attn.v_proj.weight", normal(KV_HEADS * HEAD_DIM, HIDDEN)),
            (f"{block}self_attn.o_proj.weight", normal(HIDDEN, HEADS * HEAD_DIM)),
            (f"{block}mlp.gate_proj.weight", normal(INTERMEDIATE, HIDDEN)),
            (f"{block}mlp.up_proj.weight", normal(INTERMEDIATE, HIDDEN)),
            (f"{block}mlp.down_proj.weight", normal(HIDDEN, INTERMEDIATE)),
            (f"{block}input_layernorm.weight", torch.ones(HIDDEN)),
            (f"{block}post_attention_layernorm.weight", torch.ones(HIDDEN)),
        ]
    return made


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.stdout.write(f"{write_model(Path(sys.argv[1])):,} parameters in {sys.argv[1]}\n")
