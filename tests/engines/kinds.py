# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector in a real vLLM, with each kind of KV that its CPU build runs: K and V, windows,
latents of MLA, states, caches of 8-bit floats, and drafts of speculative decoding. Small models of their architectures with random weights. What one engine
computes another loads, and goes on with the same tokens and logits as after a hit of the same length in
vLLM's own cache: also in chunks, after preemptions, and after a request was aborted while it loaded.
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
        "head_dim": 64,  # a state is as large as 272 tokens, or as 544 where it is of fp32
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
WITH_STATES = {"gdn"}
STATE_TOKENS = 544
PROMPT_TOKENS = 649  # a hit ends at 640, of blocks of 16 and of 128; of states at 544
PLAIN = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 32}
MODELS["full"] = PLAIN | {"num_hidden_layers": 2}
WINDOW = 128
MODELS["windows"] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "head_dim": 64,
    "sliding_window": WINDOW,
    "layer_types": 2 * ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 64,
}
MODELS |= {"eagle": PLAIN | {"num_hidden_layers": 2}, "draft": PLAIN | {"num_hidden_layers": 2}}
# Of models with a draft: what vLLM is told of it. It has one layer, with other heads than the model.
DRAFTS = {
    "eagle": {"method": "eagle", "num_speculative_tokens": 2},
    "draft": {"method": "draft_model", "num_speculative_tokens": 2},
}
OF_DRAFT = {"num_hidden_layers": 1, "num_key_value_heads": 1}
# By name: what vLLM is told beside the model.
OPTIONS = {"fp8_e4m3": {"kv_cache_dtype": "fp8"}, "fp8_e5m2": {"kv_cache_dtype": "fp8_e5m2"}}
MODELS |= dict.fromkeys(OPTIONS, PLAIN | {"num_hidden_layers": 2, "head_dim": 64})


def make_model(name, folder):
    """A configuration; the weights are made up by the engine."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(COMMON | MODELS[name]))
    if name in DRAFTS:
        draft = folder.with_name(f"{folder.name}-draft")
        draft.mkdir()
        (draft / "config.json").write_text(json.dumps(COMMON | MODELS[name] | OF_DRAFT))


def prompt(seed=17, count=PROMPT_TOKENS):
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY - 10) for _ in range(count)]


OTHERS = [prompt(31), prompt(32)]
# Of a logarithm of a probability, between batches. vLLM's chunks of MLA are joined in bf16: without a
# connector, chunks of 256 tokens and of 2048 differ by 0.32 and have other likeliest tokens.
ROUNDING = {"mla": 0.5}

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


def run_engine(model, name, extra, commands, more):
    """What came of the commands. more: options of vLLM's."""
    from engine import start
    from process import config_of

    weights_that_tell()
    states_without_triton()
    if "kv_lora_rank" in MODELS[name]:
        prefixes_of_latents()
    patient = {"lookup_timeout": 30.0, "load_timeout": 60.0, "save_timeout": 60.0}  # it is busy
    config = config_of(recipe="exact", weights_revision=name, **patient | extra) if extra else None
    options = {"skip_tokenizer_init": True, "max_model_len": 2048, "load_format": "dummy"}
    options |= {"enable_prefix_caching": True, "max_num_batched_tokens": 2048}
    options |= OPTIONS.get(name, {})
    if name in DRAFTS:
        options["speculative_config"] = DRAFTS[name] | {"model": f"{model}-draft"}
    llm = start(model, config, **options | more)
    said = [answer_of(llm, command) for command in commands]
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
            told = (given[name] for name in ("model", "name", "extra", "commands", "more"))
            said = run_engine(*told)
            pathlib.Path(given["answer"]).write_text(json.dumps(said), encoding="utf-8")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        answers.write(f"{status}\n")
        answers.flush()


def abort_in_load(llm, tokens):
    """A request is aborted while its blocks are on their way, as far as vLLM knows."""
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus

    engine, scheduler = llm.llm_engine, llm.llm_engine.engine_core.engine_core.scheduler
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    engine.add_request("aborted", {"prompt_token_ids": tokens}, params)

    def is_loading():
        statuses = (request.status for request in scheduler.requests.values())
        return RequestStatus.WAITING_FOR_REMOTE_KVS in statuses

    while engine.has_unfinished_requests() and not is_loading():
        engine.step()
    was_loading = is_loading()
    engine.abort_request(["aborted"])
    while scheduler.requests:  # its blocks stay until the load has ended
        engine.engine_core.engine_core.step()
    return {"was_loading": was_loading}


def blocks_of(llm, tokens):
    """How many blocks a request of so many tokens takes of all groups."""
    groups = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    found = 0
    for one in specs:
        if type(one).__name__ == "MambaSpec":
            found += 1
        elif window := getattr(one, "sliding_window", None):  # all else is let go of
            found += -(-(window - 1) // one.block_size) + 1
        else:
            found += -(-tokens // one.block_size)
    return found


def answer_of(llm, command):
    from engine import answer

    if command["do"] == "abort_in_load":
        return abort_in_load(llm, command["tokens"])
    if command["do"] == "blocks":
        return blocks_of(llm, command["tokens"])
    said = answer(llm, command)
    if command["do"] != "generate":
        return said
    made = [
        {
            "tokens": said["token_ids"][i],
            "logprobs": [max(one.values()) for one in said["logprobs"][i]],
            "cached": said["cached"][i],
            "reason": said["reasons"][i],
        }
        for i in range(len(command["tokens"]))
    ]
    return made if len(made) > 1 else made[0]


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

    def run(self, name, title, commands, more=None, **extra):
        """The answers to commands of an engine of that model. more: options of vLLM's."""
        log, answer = (self._folder / f"{name}-{title}.{kind}" for kind in ("log", "json"))
        given = {"model": str(self._folder / name), "name": name, "extra": extra}
        given |= {"commands": commands, "log": str(log), "answer": str(answer), "more": more or {}}
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
        self._process.wait(600)


def ask(*prompts, count=8, **more):
    return {"do": "generate", "tokens": prompts, "max_tokens": count, "logprobs": 1} | more


def do(what, **more):
    return {"do": what} | more


def compare(check, folder, name, daemon, engines):
    print(f"== {name}", flush=True)
    make_model(name, folder / name)
    tokens = prompt()
    turned = [token + 1 for token in tokens[:200]] + tokens[200:]
    short = prompt(5, 40)
    asked = [ask(tokens), ask(tokens), ask(turned), do("drain"), ask(short), do("metrics")]
    asked.append(do("blocks", tokens=len(crowding(name, tokens))))
    asked += [ask(one, salt="own") for one in OTHERS for _ in "12"]  # under keys of their own
    cold, local, other, _, _, metrics, blocks, _, left, _, right = engines.run(
        name, "first", asked, control=daemon.control
    )
    check("the first engine computes all", cold["cached"] == 0, cold["tokens"])
    check("its begin matters", other["logprobs"] != cold["logprobs"])
    saved = metrics["vllm:cairn_saved_blocks"]
    check("its blocks are saved", saved > 0, saved)
    in_chunks(check, name, daemon, engines, blocks, [local, left, right])
    kill = do("kill_in_load", pid=daemon.process.pid, after=0)
    asked = [ask(prompt(6, 40)), ask(tokens), ask(short), do("metrics"), do("reset"), kill, ask(tokens)]
    # Where a draft has other heads, the scheduler is told in the first step.
    _, warm, _, metrics, _, _, killed = engines.run(name, "second", asked, control=daemon.control)
    check("the second loads them", warm["cached"] == local["cached"] > 0, warm["cached"])
    loaded = metrics["vllm:cairn_loaded_blocks"]
    check("out of the store", loaded > 0, loaded)
    check("with the tokens of vLLM's own hit", warm["tokens"] == local["tokens"], warm["tokens"])
    check("to the last bit", warm["logprobs"] == local["logprobs"], warm["logprobs"][:2])
    ended = killed["tokens"] == cold["tokens"] and killed["reason"] == "length"
    check("killed in mid-load, all is computed", ended, killed["cached"])


def crowding(name, tokens):
    """A prompt that begins with these, after which a few more tokens take more blocks."""
    if name not in WITH_STATES:
        return tokens
    return tokens + prompt(97, 2 * STATE_TOKENS - 4 - len(tokens))


def in_chunks(check, name, daemon, engines, blocks, own):
    """Prompts in chunks of 64 to 640 tokens, more at once than there are blocks for; then what was saved of
    them, and a request that is aborted while it loads. own: after vLLM's own hits of the prompts, which
    were computed in other batches, so that they are the same but for rounding."""
    tokens, others = prompt(), OTHERS
    more = {"max_num_batched_tokens": 256, "num_gpu_blocks_override": 3 * blocks + 2}
    more["max_model_len"] = 1024  # all of a request of this length fits
    if name == "windows":  # of which a chunk takes more blocks than what comes after it
        more |= {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 3 * blocks + 5}
    if name in WITH_STATES:  # a chunk has a block of vLLM's
        more |= {"max_num_batched_tokens": 640, "max_model_len": 2 * STATE_TOKENS + 32}
    asked = [
        ask(*(crowding(name, one) for one in (tokens, *others)), count=28 if name in WITH_STATES else 60),
        do("drain"),
        do("metrics"),
        do("reset"),
        do("abort_in_load", tokens=others[0]),
        do("reset"),
        ask(others[0]),
        do("reset"),
        ask(tokens),
        ask(others[1]),
    ]
    made, _, metrics, _, aborted, _, first, _, again, second = engines.run(
        name, "chunks", asked, more, control=daemon.control
    )
    preempted = metrics["vllm:num_preemptions"]
    check("requests are preempted, and end", all(one["reason"] == "length" for one in made), preempted)
    check("as there are too few blocks", preempted > 0, preempted)
    check("a request is aborted while it loads", aborted["was_loading"])
    for text, loaded, wanted in zip(
        ("what was computed elsewhere", "what it wanted is loaded later", "what was preempted"),
        (again, first, second),
        own,
        strict=True,
    ):
        off = abs(loaded["logprobs"][0] - wanted["logprobs"][0])
        is_same = off < ROUNDING.get(name, 0.1)
        if name not in ROUNDING:
            is_same = is_same and loaded["tokens"][0] == wanted["tokens"][0]
        check(f"{text}, with the token of an own hit", is_same and loaded["cached"] > 0, off)


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
