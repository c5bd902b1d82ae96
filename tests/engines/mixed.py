# SPDX-License-Identifier: Apache-2.0
"""200 mixed requests with shared prefixes in a real vLLM, of which prefixes come from Cairn alone:
vLLM's own cache is forgotten before each. Every block that is loaded is, bit for bit, what an engine
had computed; and each request goes on with the tokens, and the probabilities to the last bit, that
vLLM alone gives it on a hit of its own of the same length. Two engines, the second of which begins
with what the first has left; at the end requests in batches. `make test-engines` runs it."""

import argparse
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/engines", "client/examples/vllm", "client/python")]

REQUESTS, BATCHED = 200, 48
# As many tokens a block in vLLM as in the store: so hits of both end at the same places.
BLOCK_TOKENS = 128
TEXTS = ("README.md", "docs/internals/architecture.md", "docs/guides/operations.md", "docs/internals/durability.md", "docs/reference/metrics.md")
SEED = 17


def requests_of(texts):
    """Prompts as tokens, each with how many tokens to make and a salt or none: a tree of prefixes, of which
    some are asked for again as they were."""
    rng = random.Random(SEED)
    made = []
    for _ in range(REQUESTS):
        kind = rng.random()
        if made and kind < 0.15:
            made.append(rng.choice(made))
            continue
        if made and kind < 0.75:  # goes on from a prefix of one before, cut anywhere
            before = rng.choice(made)
            prefix, salt = _cut(before["tokens"], rng), before["salt"]
        else:
            prefix, salt = [], rng.choice([None, None, None, "one", "two"])
        text = rng.choice(texts)
        begin = rng.randrange(0, len(text) - 600)
        tokens = (prefix + text[begin : begin + rng.randrange(8, 400)])[:1400]
        made.append({"tokens": tokens, "max_tokens": rng.randrange(1, 12), "salt": salt})
    return made


def _cut(tokens, rng):
    return tokens[: rng.randrange(len(tokens) // 2, len(tokens) + 1)]


class Seen:
    """Digests of blocks: as they were copied out of the engine to be saved, and as they lie in it once loaded."""

    def __init__(self, saved):
        from cairn import paged
        from cairn.vllm import saves, worker

        self.saved = saved  # by key and group
        self.loaded = self.unknown = self.different = 0
        self._lock = threading.Lock()
        copies, ended_load, seen = saves.HostSaves._copies, worker.Worker._ended_load, self

        def copies_and_digests(self, save, index):
            found = copies(self, save, index)
            for put in found[0] if found else ():
                name = f"{put.key.hex()} {put.part.group}"
                with seen._lock:
                    seen.saved.setdefault(name, hashlib.sha256(put.source).hexdigest())
            return found

        def digests_and_ended_load(self, load, good, moved_bytes, started):
            ratio = len(load.blocks[0]) // len(load.keys)
            for group, blocks in zip(self._groups, load.blocks, strict=True):
                for i in range(good):
                    table = blocks[i * ratio : (i + 1) * ratio]
                    place = bytearray(self._session.space.source_bytes(group.part))
                    paged.gather(self._session.space, group.cache, group.table(table), place, part=group.part)
                    seen.compare(f"{load.keys[i].hex()} {group.part.group}", place)
            return ended_load(self, load, good, moved_bytes, started)

        saves.HostSaves._copies, worker.Worker._ended_load = copies_and_digests, digests_and_ended_load

    def compare(self, name, block):
        digest = hashlib.sha256(block).hexdigest()
        with self._lock:
            self.loaded += 1
            self.unknown += name not in self.saved
            self.different += self.saved.get(name, digest) != digest


def run_engine(model, given):
    """In a process of its own: serves requests and prints what came of them, as JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what vLLM prints goes elsewhere
    os.dup2(2, 1)
    from engine import start
    from process import config_of

    is_alone = given["control"] is None
    seen = None if is_alone else Seen(given["saved"])
    patience = {"lookup_timeout": 30.0, "load_timeout": 60.0, "save_timeout": 60.0}  # late is no miss here
    config = None if is_alone else config_of(
        given["control"], recipe="exact", tokens_per_block=BLOCK_TOKENS, **patience
    )
    llm = start(model, config, block_size=BLOCK_TOKENS, max_model_len=2048)
    from vllm import SamplingParams  # once the environment is set

    texts = [llm.get_tokenizer().encode((ROOT / name).read_text(encoding="utf-8")) for name in TEXTS]
    requests = requests_of(texts)

    def generate(some):
        prompts = [
            {"prompt_token_ids": one["tokens"]} | ({"cache_salt": one["salt"]} if one["salt"] else {}) for one in some
        ]
        params = [
            SamplingParams(temperature=0, max_tokens=one["max_tokens"], ignore_eos=True, logprobs=1) for one in some
        ]
        return [
            {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [max(x.logprob for x in one.values()) for one in output.outputs[0].logprobs],
                "cached": output.num_cached_tokens,
            }
            for output in llm.generate(prompts, params, use_tqdm=False)
        ]

    def forget():
        if not is_alone:
            worker.drain()  # what one request leaves the next one finds
            llm.reset_prefix_cache()

    worker = None if is_alone else worker_of(llm)
    said = []
    for one in requests[slice(*given["requests"])]:
        said += generate([one])
        forget()
    batched = generate(requests[: given["batched"]]) if given["batched"] else []
    forget()
    llm.llm_engine.engine_core.shutdown()
    figures = {} if seen is None else {name: getattr(seen, name) for name in ("saved", "loaded", "unknown", "different")}
    answers.write(json.dumps({"said": said, "batched": [one["cached"] for one in batched], **figures}))
    answers.close()


def worker_of(llm):
    """The connector's worker in this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker


def engine(folder, name, model, requests, control=None, saved=None, batched=0):
    given = {"requests": requests, "control": control, "saved": saved or {}, "batched": batched}
    (folder / f"{name}.json").write_text(json.dumps(given), encoding="utf-8")
    command = [sys.executable, __file__, "--engine", str(model), str(folder / f"{name}.json")]
    with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=False)
    if ended.returncode:
        raise SystemExit((folder / f"{name}.log").read_text(encoding="utf-8")[-6000:])
    return json.loads(ended.stdout)


def compare(check, folder, model, daemon):
    half = REQUESTS // 2
    first = engine(folder, "first", model, (0, half), daemon.control)
    second = engine(folder, "second", model, (half, REQUESTS), daemon.control, first["saved"], BATCHED)
    alone = engine(folder, "alone", model, (0, REQUESTS))
    served = first["said"] + second["said"]
    check("all requests are served", len(served) == len(alone["said"]) == REQUESTS, len(served))
    hits = [one["cached"] for one in served]
    check("of which most are hits, by Cairn alone", sum(map(bool, hits)) > REQUESTS // 2,
          f"{sum(map(bool, hits))} of {REQUESTS}, {sum(hits)} tokens")
    for one, what in (("cached", "as long as vLLM's own hits"), ("tokens", "which go on with the same tokens"),
                      ("logprobs", "to the last bit")):
        others = [i for i, (a, b) in enumerate(zip(served, alone["said"], strict=True)) if a[one] != b[one]]
        seen = [(i, served[i][one], alone["said"][i][one]) for i in others[:4]]
        check(what, not others, f"{len(others)} differ: {seen}" if others else REQUESTS)
    check("requests in batches hit, too", sum(map(bool, second["batched"])) > BATCHED // 2, second["batched"][:8])
    loaded, wrong = (sum(one[name] for one in (first, second)) for name in ("loaded", "different"))
    check("every block that was loaded is what had been computed", loaded > REQUESTS and wrong == 0,
          f"{loaded} blocks, {wrong} differ")
    unknown = first["unknown"] + second["unknown"]
    check("and by an engine of this run", unknown == 0, unknown)


def main():
    if sys.argv[1:2] == ["--engine"]:
        return run_engine(sys.argv[2], json.loads(pathlib.Path(sys.argv[3]).read_text(encoding="utf-8")))
    from run import Checks, Daemon
    from smollm2 import make

    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/engines/smollm2")
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    os.environ["PYTHONPATH"] = str(ROOT / "client" / "python")
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"  # GiB: vLLM alone forgets nothing
    model = make(arguments.model)
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        folder = pathlib.Path(made)
        daemon = Daemon(arguments.bin_dir, folder, "2GiB", "2GiB")  # nothing is evicted
        try:
            daemon.start()
            compare(check, folder, model, daemon)
        finally:
            daemon.kill()
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
