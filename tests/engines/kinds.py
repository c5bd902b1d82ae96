# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector in a real vLLM, with kinds of KV other than K and V of bf16: latents of MLA,
states, and caches of 8-bit floats.
Small models of their architectures with random weights. What one engine computes another loads, and
goes on with the same tokens and logits as after a hit of the same length in vLLM's own cache.
`make test-engines` runs it; kinds.py NAME… some of the models.

vLLM's CPU build lacks Triton, with which it copies states between blocks, and turns its prefix cache
off for MLA where there is no AMX. The engine here copies with memmove, and turns the cache on.

Not here, as vLLM 0.32's CPU build does not run them: Mamba and Jamba (no selective_scan_fwd), Mamba 2
(its kernels return one state where the layer wants one for each chunk), Kimi Linear, and sparse
attention. Their classes are in tests/connectors/test_vllm_kinds.py."""

import argparse
import ctypes
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

VOCABULARY = 512
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
MLA = {
    "kv_lora_rank": 512,  # with 64 channels of rotation all that vLLM's CPU kernels know
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "q_lora_rank": None,
}
# By name: what a configuration has beside COMMON.
MODELS = {
    "mla": MLA
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
    },
    "gdn": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
}
# By name: what vLLM is told beside the model.
OPTIONS = {"fp8_e4m3": {"kv_cache_dtype": "fp8"}, "fp8_e5m2": {"kv_cache_dtype": "fp8_e5m2"}}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "head_dim": 64,
}
MODELS |= dict.fromkeys(OPTIONS, LLAMA)
PROMPT_TOKENS = 649  # a hit ends at 640, of blocks of 16 and of 128


def make_model(name, folder):
    """A configuration; the weights are made up by the engine."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(COMMON | MODELS[name]))


def prompt(seed=17, count=PROMPT_TOKENS):
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY - 10) for _ in range(count)]


# ------------------------------------------------------------------------- in an engine's process


def weights_that_tell():
    """Random weights, the same each time, and large enough that all of a prompt matters."""
    import torch
    from vllm.model_executor.model_loader import dummy_loader

    count = [0]

    def fill(parameter):
        count[0] += 1
        if torch.is_floating_point(parameter):
            made = torch.Generator().manual_seed(count[0])
            values = torch.rand(parameter.shape, generator=made) * 0.5 - 0.25
            is_norm = parameter.dim() == 1
            parameter.data.copy_(values + 1.0 if is_norm else values)

    dummy_loader.initialize_single_dummy_weight = fill


def states_without_triton():
    from vllm.v1.worker import mamba_utils

    def copy(sources, targets, sizes):
        for source, target, size in zip(
            sources.tolist(), targets.tolist(), sizes.tolist(), strict=True
        ):
            ctypes.memmove(target, source, size)

    mamba_utils.batch_memcpy = copy


def prefixes_of_latents():
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_turn_on(cls, config):
        check(cls, config)
        config.cache_config.enable_prefix_caching = True

    CpuPlatform.check_and_update_config = classmethod(check_and_turn_on)


def run_engine(model, name, extra, commands):
    """What came of the commands."""
    from engine import kill_in_load, start
    from process import config_of

    weights_that_tell()
    states_without_triton()
    if "kv_lora_rank" in MODELS[name]:
        prefixes_of_latents()
    config = config_of(recipe="exact", weights_revision=name, **extra)
    options = {"skip_tokenizer_init": True, "max_model_len": 2048, "load_format": "dummy"}
    options |= {"enable_prefix_caching": True, "max_num_batched_tokens": 2048}
    options |= OPTIONS.get(name, {})
    llm = start(model, config if extra else None, **options)
    said = [answer_of(llm, command, kill_in_load) for command in commands]
    llm.llm_engine.engine_core.shutdown()
    return said


def serve():
    """Imports vLLM once, which takes longest, and runs each engine in a process forked from there: of
    lines of JSON on stdin, answers with lines of JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import engine  # noqa: F401
    import process  # noqa: F401
    from vllm import LLM, SamplingParams  # noqa: F401
    from vllm.model_executor.model_loader import dummy_loader  # noqa: F401
    from vllm.model_executor.models import registry
    from vllm.v1.worker import cpu_worker, mamba_utils  # noqa: F401

    registry._run_in_subprocess = lambda call: call()  # which would import vLLM once more

    for line in sys.stdin:
        given = json.loads(line)
        pid = os.fork()
        if pid == 0:
            log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            said = run_engine(given["model"], given["name"], given["extra"], given["commands"])
            pathlib.Path(given["answer"]).write_text(json.dumps(said), encoding="utf-8")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        answers.write(f"{status}\n")
        answers.flush()


def answer_of(llm, command, kill_in_load):
    from engine import drain
    from vllm import SamplingParams

    if command == "reset":
        return llm.reset_prefix_cache()
    if command == "drain":
        return drain()
    if command == "metrics":
        return {
            metric.name.removeprefix("vllm:cairn_"): metric.value
            for metric in llm.get_metrics()
            if "cairn" in metric.name
        }
    if "kill" in command:
        return kill_in_load(command["kill"], 0)
    params = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, detokenize=False, logprobs=1
    )
    (output,) = llm.generate([{"prompt_token_ids": command["tokens"]}], params, use_tqdm=False)
    made = output.outputs[0]
    return {
        "tokens": list(made.token_ids),
        "logprobs": [max(x.logprob for x in one.values()) for one in made.logprobs],
        "cached": output.num_cached_tokens,
        "reason": made.finish_reason,
    }


# ----------------------------------------------------------------------------------- the checks


class Engines:
    """Engines one after the other. A context manager."""

    def __init__(self, folder):
        self._folder = folder
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        command = [sys.executable, __file__, "--serve"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with open(folder / "engines.log", "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stderr=log, **pipes)

    def run(self, name, title, commands, **extra):
        """The answers to commands of an engine of that model."""
        log, answer = (self._folder / f"{name}-{title}.{kind}" for kind in ("log", "json"))
        given = {"model": str(self._folder / name), "name": name, "extra": extra}
        given |= {"commands": commands, "log": str(log), "answer": str(answer)}
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "0\n":
            log = log if log.exists() else self._folder / "engines.log"
            raise SystemExit(log.read_text(encoding="utf-8", errors="replace")[-6000:])
        return json.loads(answer.read_text(encoding="utf-8"))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.stdin.close()
        self._process.wait(60)


def ask(tokens):
    return {"tokens": tokens}


def compare(check, folder, name, daemon, engines):
    print(f"== {name}", flush=True)
    make_model(name, folder / name)
    tokens = prompt()
    turned = [token + 1 for token in tokens[:200]] + tokens[200:]
    short = prompt(5, 40)
    commands = [ask(tokens), ask(tokens), ask(turned), "drain", ask(short), "metrics"]
    cold, local, other, _, _, metrics = engines.run(
        name, "first", commands, control=daemon.control
    )
    check("the first engine computes all", cold["cached"] == 0, cold["tokens"])
    check("its begin matters", other["logprobs"] != cold["logprobs"])
    check("its blocks are saved", metrics["saved_blocks"] > 0, metrics["saved_blocks"])
    commands = [ask(tokens), ask(short), "metrics", "reset", {"kill": daemon.process.pid}, ask(tokens)]
    warm, _, metrics, _, _, killed = engines.run(
        name, "second", commands, control=daemon.control
    )
    check("the second loads them", warm["cached"] == local["cached"] > 0, warm["cached"])
    check("out of the store", metrics["loaded_blocks"] > 0, metrics["loaded_blocks"])
    check("with the tokens of vLLM's own hit", warm["tokens"] == local["tokens"], warm["tokens"])
    check("to the last bit", warm["logprobs"] == local["logprobs"], warm["logprobs"][:2])
    ended = killed["tokens"] == cold["tokens"] and killed["reason"] == "length"
    check("killed in mid-load, all is computed", ended, killed["cached"])


def main():
    if sys.argv[1:] == ["--serve"]:
        return serve()
    from run import Checks, Daemon

    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    os.environ["PYTHONPATH"] = str(ROOT / "client" / "python")
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        folder = pathlib.Path(made)
        daemon = Daemon(arguments.bin_dir, folder)
        try:
            with Engines(folder) as engines:
                for name in arguments.models:
                    daemon.start()
                    try:
                        compare(check, folder, name, daemon, engines)
                    except SystemExit as error:  # the others may run
                        check(f"{name} runs", False, error)
                    daemon.kill()
        finally:
            daemon.kill()
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
