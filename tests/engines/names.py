# SPDX-License-Identifier: Apache-2.0
"""Which engines share blocks, in a real vLLM with SmolLM2: `make test-engines`. The first engine saves
a prompt's KV. Engines that compute K and V otherwise do not hit it: another rotation, epsilon, dtype,
adapter, or weights. Engines that differ in anything else do. Also what an engine says and does after
sleep, beside another connector, and where a setting is refused. Two engines run at a time."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/engines", "client/examples/vllm", "client/python")]

import cairn  # noqa: E402
from process import EngineProcess, config_of  # noqa: E402
from run import STORE_TOKENS, Checks, Daemon  # noqa: E402
from smollm2 import make  # noqa: E402
from stores import Example  # noqa: E402

PATIENCE = {"lookup_timeout": 60.0, "load_timeout": 60.0, "save_timeout": 60.0}  # late is no miss here
ROWS = ("rotated", "same", "adapters", "beside", "other", "refused")  # behind the first engine
ANSWER_TOKENS = 12
RANK = 8  # of adapters
SETTLED_SECONDS = 2.5  # a changed adapter has no name for two seconds
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0}}
# Of a model that only a configuration describes. One head, so that two ranks may split its tokens.
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


def text_of(times):
    facts = " ".join(f"Number {i} times {times} is {times * i}." for i in range(40))
    return f"Here is a list of products. {facts} Number 40 times {times} is"


class Engine(EngineProcess):
    """Each answer's hits are the connector's alone, and what it saved is in the store."""

    def tokens(self, times=3):
        return self.do("encode", text=text_of(times))["tokens"]

    def ask(self, tokens, max_tokens=ANSWER_TOKENS, **more):
        """The text, and how many tokens came from the store."""
        text, cached, _, _ = self.generate(tokens, max_tokens, **more)
        self.do("drain")
        self.do("reset")
        return text, cached

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")


class Rows:
    """Makes engines beside one daemon. `model` is SmolLM2's folder, `copy` another one with its files."""

    def __init__(self, check, daemon, library, model, folder):
        self.check, self.daemon, self.model = check, daemon, model
        self._library, self._folder = library, folder
        self.copy, self.adapter, self.tiny = (folder / name for name in ("elsewhere/smollm2", "tuned", "tiny"))
        shutil.copytree(model, self.copy)
        write_adapter(self.adapter, model, 1)
        self.tiny.mkdir()
        (self.tiny / "config.json").write_text(json.dumps(TINY))
        self.tokens, self.text = [], ""

    def engine(self, name, model=None, *, is_alone=False, beside=None, options=None, **extra):
        config = None if is_alone else config_of(self.daemon.control, recipe="exact", **PATIENCE, **extra)
        if beside is not None:
            config = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"connectors": [config, beside]},
            }
        options = {"max_model_len": 2048} | (options or {})
        return Engine(model or self.model, config, self._library, self._folder / f"{name}.log", options=options)

    @property
    def whole(self):
        """Tokens of the prompt's whole blocks."""
        return len(self.tokens) // STORE_TOKENS * STORE_TOKENS

    def blocks_kept(self):
        with cairn.connect(self.daemon.control) as client:
            return client.stats().block_count

    # -------------------------------------------------------------------------------- the rows

    def first(self):
        with self.engine("first") as engine:
            self.tokens = engine.tokens()
            self.text, cached = engine.ask(self.tokens)
            self.check("the first engine computes all", cached == 0, repr(self.text))
            same, cached = engine.ask(self.tokens)
            self.check("and hits what it saved", (same, cached) == (self.text, self.whole), cached)
            self._slept(engine)

    def _slept(self, engine):
        engine.do("sleep", level=0)
        _, cached = engine.ask(self.tokens)
        self.check("after a pause that clears nothing an engine hits as before", cached == self.whole, cached)
        engine.do("sleep", level=1)
        same, cached = engine.ask(self.tokens)
        self.check("after sleep an engine hits nothing", (same, cached) == (self.text, 0), cached)
        is_said = engine.said().count("vLLM has reset its caches, as it does to sleep") == 1
        self.check("and says so, once", is_said)
        kept = self.blocks_kept()
        engine.ask(engine.tokens(7))
        self.check("and saves nothing", self.blocks_kept() == kept, kept)

    def same(self):
        """Other settings and another folder; then sleep, and new files in that folder."""
        options = {"max_model_len": 1024, "max_num_seqs": 2, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 64}
        with self.engine("same", self.copy, options=options, weights_stay=True) as engine:
            same, cached = engine.ask(self.tokens)
            what = "another folder, length, batch and memory: the same blocks"
            self.check(what, (same, cached) == (self.text, self.whole), cached)
            engine.do("sleep", level=1)
            same, cached = engine.ask(self.tokens)
            self.check("with weights_stay they are shared after sleep", (same, cached) == (self.text, self.whole), cached)
            self.check("and the log says so", "and the weights stay" in engine.said())
            change_in_the_middle(self.copy / "model.safetensors")
            engine.do("sleep", level=1)
            same, cached = engine.ask(self.tokens)
            self.check("unless the folder's files changed", (same, cached) == (self.text, 0), cached)
            self.check("which the log says", "have changed since this engine started" in engine.said())
        self._hits_nothing("weights", "weights with four other bytes", model=self.copy)

    def adapters(self):
        """Of prompts of one block, as vLLM's CPU build is slow with adapters."""
        lora = {"lora_name": "tuned", "lora_int_id": 1, "lora_path": str(self.adapter)}
        tokens, block = self.tokens[: STORE_TOKENS + 8], STORE_TOKENS
        with self.engine("adapters", options={"enable_lora": True, "max_lora_rank": RANK}) as engine:

            def ask(**more):
                return engine.ask(tokens, 4, **more)

            plain, cached = ask()
            self.check("an engine with --enable-lora hits the model's blocks", cached == block, cached)
            before, cached = ask(lora=lora)
            self.check("an adapter does not", cached == 0 and before != plain, cached)
            same, cached = ask(lora=lora)
            self.check("it hits its own", (same, cached) == (before, block), cached)
            write_adapter(self.adapter, self.model, 2)
            time.sleep(SETTLED_SECONDS)
            same, cached = ask(lora=lora)
            self.check("replaced in place and not loaded, it hits nothing", (same, cached) == (before, 0), cached)
            self.check("and the log says why", "the engine has other weights of it than" in engine.said())
            # The request that loads finds the old bytes in memory, so it has no name: the one behind it saves.
            after, cached = ask(lora=lora | {"load_inplace": True})
            self.check("loaded, it does not hit the old one's blocks", cached == 0 and after != before, cached)
            same, cached = ask(lora=lora)
            self.check("nor does the next", (same, cached) == (after, 0), cached)
            same, cached = ask(lora=lora)
            self.check("which saves what it computes", (same, cached) == (after, block), cached)
            write_adapter(self.adapter, self.model, 1)
            time.sleep(SETTLED_SECONDS)
            same, cached = ask(lora=lora | {"load_inplace": True})
            self.check("with its old bytes it computes once", (same, cached) == (before, 0), cached)
            same, cached = ask(lora=lora)
            self.check("and hits the old blocks", (same, cached) == (before, block), cached)

    def rotated(self):
        with self.engine("alone", is_alone=True, options={"hf_overrides": LINEAR}) as engine:
            text, _, _, _ = engine.generate(self.tokens, ANSWER_TOKENS)
        with self.engine("linear", options={"hf_overrides": LINEAR}) as engine:
            same, cached = engine.ask(self.tokens)
            self.check("another rotation hits nothing", cached == 0 and same != self.text, cached)
            self.check("its text is that of an engine without a connector", same == text, repr(text))
            _, cached = engine.ask(self.tokens)
            self.check("and it hits its own", cached == self.whole, cached)

    def other(self):
        self._hits_nothing("epsilon", "another epsilon", options={"hf_overrides": {"rms_norm_eps": 1e-4}})
        self._hits_nothing("half", "another dtype", options={"dtype": "float16"})

    def _hits_nothing(self, name, what, **of_engine):
        with self.engine(name, **of_engine) as engine:
            _, cached = engine.ask(self.tokens)
            is_open = "new, so nothing is in it" in engine.said()
            self.check(f"{what}: another space, and no hit", cached == 0 and is_open, cached)
            _, cached = engine.ask(self.tokens)
            self.check("which hits its own", cached == self.whole, cached)

    def beside(self):
        folder = self._folder / "example"

        def forget_example():  # else hits could be its own
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

        forget_example()
        with self.engine("beside", beside=Example(folder).config) as engine:
            same, cached = engine.ask(self.tokens)
            self.check("inside MultiConnector it hits", (same, cached) == (self.text, self.whole), cached)
            tokens = engine.tokens(9)
            text, cached = engine.ask(tokens)
            self.check("what nobody has is computed", cached == 0, repr(text))
            self.check("and saved by both", any(folder.iterdir()))
            forget_example()
            same, cached = engine.ask(tokens)
            whole = len(tokens) // STORE_TOKENS * STORE_TOKENS
            self.check("without the other's files it hits all the same", (same, cached) == (text, whole), cached)

    def refused(self):
        """Of context parallelism across prompts vLLM's CPU build says itself that it has none."""
        cases = [
            (
                "decode_context_parallel_size is 2",
                {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
            ),
        ]
        config = config_of(self.daemon.control, recipe="exact")
        given = [config, [options for _, options in cases]]
        command = [sys.executable, __file__, "--refused", str(self.tiny), json.dumps(given)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "client" / "python")}
        log = self._folder / "refused.log"
        with open(log, "w", encoding="utf-8") as output:
            ended = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=output, env=environment, check=False
            )
        if ended.returncode:
            raise SystemExit(log.read_text(encoding="utf-8", errors="replace")[-6000:])
        for (says, _), said in zip(cases, json.loads(ended.stdout), strict=True):
            self.check(f"an engine does not start, and says: {says}", says in said, "" if says in said else said[:400])


def refused(model, config, cases):
    """In a process of its own: starts an engine with each of the options, and prints what it said."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what vLLM prints goes elsewhere
    os.dup2(2, 1)
    from engine import start

    cores, said = sorted(os.sched_getaffinity(0)), []
    for options in cases:
        if options.get("tensor_parallel_size", 1) > 1:  # vLLM binds one rank to a NUMA node, unless told
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
        options |= {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 512}
        try:
            start(model, config, **options)
            said.append("it started")
        except Exception as error:  # of a rank as vLLM passes it on
            said.append(str(error))
    answers.write(json.dumps(said))
    answers.flush()
    os._exit(0)  # an engine that started would go on


def write_adapter(folder, model, seed):
    """A LoRA adapter of all that makes Q, K and V, with made-up weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    of = json.loads((model / "config.json").read_text(encoding="utf-8"))
    torch.manual_seed(seed)
    heads = {"q": of["num_attention_heads"], "k": of["num_key_value_heads"], "v": of["num_key_value_heads"]}
    tensors = {}
    for layer in range(of["num_hidden_layers"]):
        for kind, count in heads.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{kind}_proj.lora_{{}}.weight"
            tensors[name.format("A")] = 0.2 * torch.randn(RANK, of["hidden_size"])
            tensors[name.format("B")] = 0.2 * torch.randn(count * of["head_dim"], RANK)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}
    about["target_modules"] = [f"{kind}_proj" for kind in heads]
    (folder / "adapter_config.json").write_text(json.dumps(about))


def change_in_the_middle(path):
    """Four bytes; length and time stay."""
    found = path.stat()
    with open(path, "r+b") as file:
        file.seek(found.st_size // 8 * 4)
        before = file.read(4)
        file.seek(found.st_size // 8 * 4)
        file.write(bytes(4) if any(before) else b"\0\0\x80\x3f")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def main():
    if sys.argv[1:2] == ["--refused"]:
        return refused(sys.argv[2], *json.loads(sys.argv[3]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/engines/smollm2")
    parser.add_argument("--rows", nargs="*", default=ROWS)
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    model = make(arguments.model)
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        folder = pathlib.Path(made)
        # Digests of weights are kept there; vLLM goes on with what it keeps of models.
        os.environ.setdefault("VLLM_CACHE_ROOT", os.path.expanduser("~/.cache/vllm"))
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        daemon = Daemon(arguments.bin_dir, folder)
        try:
            rows = Rows(check, daemon, library, model, folder)
            daemon.start()
            rows.first()
            with ThreadPoolExecutor(2) as pool:
                for row in [pool.submit(getattr(rows, name)) for name in arguments.rows]:
                    row.result()
        finally:
            daemon.kill()
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
