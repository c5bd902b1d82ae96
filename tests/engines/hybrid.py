# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector with several groups of layers in a real vLLM: a model of Gemma 3's shape, 18
layers, one of six with full attention, the others with windows of 512 tokens, and random weights.
What one engine computes another loads, windows only, and goes on with the same tokens; when cairnd
is killed in the middle of a load it computes. The first also writes a dump of what it computed.
`make test-engines` runs it."""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "examples" / "vllm"))
sys.path.insert(0, str(ROOT / "client" / "python"))
sys.path.insert(0, str(ROOT / "tests" / "engines"))

PROMPT_TOKENS, STORE_TOKENS, BLOCK_TOKENS, WINDOW = 1300, 128, 32, 512
LAYERS, FULL_EVERY, HEADS, DIM = 18, 6, 1, 256
CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "head_dim": DIM,
    "vocab_size": 8192,
    "sliding_window": WINDOW,
    "layer_types": [
        "full_attention" if (i + 1) % FULL_EVERY == 0 else "sliding_attention"
        for i in range(LAYERS)
    ],
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 256,
    "torch_dtype": "bfloat16",
    "initializer_range": 0.06,  # so that what is generated depends on all of the prompt
}


def make_model(folder):
    """Random weights, the same each time."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(17)
    Gemma3ForCausalLM(Gemma3TextConfig(**CONFIG)).to(torch.bfloat16).save_pretrained(folder)


def prompt(changed=0):
    """changed: how many tokens at its begin are others."""
    rng = random.Random(17)
    tokens = [rng.randrange(10, 8000) for _ in range(PROMPT_TOKENS)]
    return [token + 1 for token in tokens[:changed]] + tokens[changed:]


def run_engine(model, extra, daemon_pid):
    """In a process of its own: prints what came of the prompt, as JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what vLLM prints goes elsewhere
    os.dup2(2, 1)
    from engine import kill_in_load, start
    from process import config_of

    config = config_of(recipe="exact", **extra)
    llm = start(model, config, skip_tokenizer_init=True, max_model_len=2048)
    from vllm import SamplingParams  # once the environment is set

    def generate(tokens, count=8):
        params = SamplingParams(
            temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=1
        )
        (output,) = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
        metrics = {
            metric.name.removeprefix("vllm:cairn_"): metric.value
            for metric in llm.get_metrics()
            if "cairn" in metric.name
        }
        made = output.outputs[0]
        return {
            "tokens": list(made.token_ids),
            "logprobs": [max(x.logprob for x in one.values()) for one in made.logprobs],
            "reason": made.finish_reason,
            "cached": output.num_cached_tokens,
            "metrics": metrics,
        }

    said = [generate(prompt())]
    said.append(generate(prompt()))  # of vLLM's own prefix cache
    said.append(generate(prompt(changed=200)))
    if daemon_pid:
        llm.reset_prefix_cache()
        kill_in_load(daemon_pid, 0)  # a load of so small a model takes a few milliseconds
        said.append(generate(prompt()))
    said.append(generate(prompt()[:40], 4))  # figures come with a step
    llm.llm_engine.engine_core.shutdown()
    answers.write(json.dumps(said))
    answers.close()


def engine(folder, name, daemon_pid=0, **extra):
    command = [sys.executable, __file__, "--engine", str(folder / "model"), json.dumps(extra)]
    with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
        ended = subprocess.run(
            [*command, str(daemon_pid)], stdout=subprocess.PIPE, stderr=log, check=False
        )
    if ended.returncode:
        raise SystemExit((folder / f"{name}.log").read_text(encoding="utf-8")[-6000:])
    return json.loads(ended.stdout)


def check_dump(check, folder, token_count):
    import numpy as np
    from cairn.evaluate.dump import read_dump

    dump = read_dump(folder)
    check("the dump has all blocks", dump.token_count == token_count, dump.token_count)
    shapes = {dump.q[layer].shape for layer in range(LAYERS)}
    check("and queries of each layer", shapes == {(4, 64, DIM)}, shapes)
    # Gemma 3 norms queries and keys: read by another layout they would not be of one length.
    for name, planes in (("queries", dump.q), ("keys", dump.k)):
        spread = max(np.linalg.norm(as_float(planes[i]), axis=-1).std() for i in range(LAYERS))
        check(f"whose {name} are of one length", spread < 0.1, f"{spread:.4f}")


def as_float(plane):
    import numpy as np

    if plane.dtype == np.uint16:  # bits of bf16
        return (plane.astype(np.uint32) << 16).view(np.float32)
    return plane


def compare(check, folder, daemon):
    capture = {"capture": str(folder / "dumps"), "capture_sequences": 1}
    cold, local, other, last = engine(folder, "first", control=daemon.control, **capture)
    check("the first engine computes all", cold["cached"] == 0, cold["tokens"])
    cacheable = PROMPT_TOKENS // STORE_TOKENS * STORE_TOKENS
    blocks = 2 * LAYERS // 3 * cacheable // BLOCK_TOKENS  # two prompts, groups of three layers
    saved = last["metrics"]["saved_blocks"]
    check("all of its groups are saved", saved >= blocks, f"{saved:.0f} of {blocks}")
    check_dump(check, folder / "dumps" / "0", cacheable)
    pid = daemon.process.pid
    warm, again, _, killed, _ = engine(folder, "second", pid, control=daemon.control)
    check("the second loads them", warm["cached"] == cacheable, warm["cached"])
    check("whose begin it sees, outside of windows", other["logprobs"] != local["logprobs"])
    same = warm["tokens"] == local["tokens"]
    check("it goes on as with vLLM's own hit", same, [warm["tokens"], local["tokens"]])
    same = warm["logprobs"] == local["logprobs"]
    check("to the last bit", same, warm["logprobs"][:2])
    shown = -(-(WINDOW - 1) // BLOCK_TOKENS)
    wanted = cacheable // BLOCK_TOKENS + 5 * shown
    loaded = again["metrics"]["loaded_blocks"]
    check("of windows no more than they show", loaded == wanted, f"{loaded:.0f}, not {wanted}")
    share = 2 * again["metrics"]["loaded_bytes"] / last["metrics"]["saved_bytes"]
    check("which is part of the bytes", share < 0.65, f"{share:.3f}")
    failed = killed["metrics"]["failed_blocks"]
    check("killed as a load begins, blocks fail", failed > 0, f"{failed:.0f}")
    ended = killed["tokens"] == cold["tokens"] and killed["reason"] == "length"
    check("and all is computed, with the same tokens", ended, killed["tokens"])


def main():
    if sys.argv[1:2] == ["--engine"]:
        return run_engine(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))
    from run import Checks, Daemon

    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    os.environ["PYTHONPATH"] = str(ROOT / "client" / "python")
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        folder = pathlib.Path(made)
        make_model(folder / "model")
        daemon = Daemon(arguments.bin_dir, folder)
        try:
            daemon.start()
            compare(check, folder, daemon)
        finally:
            daemon.kill()
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
