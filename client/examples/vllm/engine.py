# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine in a process of its own, for the tests and the demo: reads a JSON object a line,
answers with one. Run as: engine.py MODEL CONFIG [OPTIONS], where CONFIG is JSON for
--kv-transfer-config or -, and OPTIONS JSON of vLLM's own options.

    {"do": "generate", "tokens": [[…], …], "max_tokens": 24, "logprobs": 20, "lora": {…}}  all prompts
                         at once; for each token made, the so many likeliest ones, where that is asked
                         for; lora: the fields of vLLM's LoRARequest
    {"do": "encode", "text": "…"}  its tokens
    {"do": "drain"}      waits until what the connector has copied is in the store
    {"do": "reset"}      forgets vLLM's own prefix cache
    {"do": "sleep", "level": 1}  (the default) puts the engine to sleep and wakes it up
    {"do": "prompt"}     the tokens of the long prompt of the tests
    {"do": "metrics"}    of vLLM, those about caches
    {"do": "kill_in_load", "pid": 1, "after": 0.005}  stops a process once the next load has half of its
                         blocks, and kills it so long after the load waits for the others
    {"do": "end"}
"""

import dataclasses
import functools
import json
import logging
import os
import signal
import sys
import threading
import time

BLOCK_TOKENS = 32
PROMPT_TOKENS = 2184


def start(model, config, **more):
    """`more` is of vLLM's own options."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM
    from vllm.config import KVTransferConfig

    given = {} if config is None else {"kv_transfer_config": KVTransferConfig(**config)}
    options = {"max_model_len": 4096, "max_num_seqs": 4, "enforce_eager": True, "seed": 0}
    options |= {"block_size": BLOCK_TOKENS, "disable_log_stats": False}
    return LLM(model, **options | given | more)


def long_prompt(llm):
    """A text with an end that a model continues in one way."""
    facts = " ".join(f"Fact {i}: the number {i} squared is {i * i}." for i in range(120))
    text = f"You are a careful assistant. {facts} Here is the continuation of the list of facts."
    tokens = llm.get_tokenizer().encode(f"{text} Fact 120: the number 120 squared is")
    assert len(tokens) == PROMPT_TOKENS, len(tokens)
    return tokens


def generate(llm, command):
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": tokens} for tokens in command["tokens"]]
    for prompt in prompts:
        if "salt" in command:
            prompt["cache_salt"] = command["salt"]
    params = SamplingParams(
        temperature=0,
        max_tokens=command["max_tokens"],
        ignore_eos=True,
        logprobs=command.get("logprobs"),
        detokenize=not llm.model_config.skip_tokenizer_init,
    )
    more = {}
    if "lora" in command:
        from vllm.lora.request import LoRARequest

        more["lora_request"] = LoRARequest(**command["lora"])
    begin = time.monotonic()
    outputs = llm.generate(prompts, params, use_tqdm=False, **more)
    seconds = time.monotonic() - begin
    return {
        "texts": [output.outputs[0].text for output in outputs],
        "reasons": [output.outputs[0].finish_reason for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "first_token": [output.metrics.first_token_latency for output in outputs],
        "seconds": seconds,
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [
            [{token: given.logprob for token, given in one.items()} for one in output.outputs[0].logprobs or ()]
            for output in outputs
        ],
    }


def kill_in_load(pid, seconds):
    """The next load gets half of its blocks. Then the process is stopped, so that the other half cannot
    arrive, and `seconds` after it was asked for that half it is killed: a load takes some milliseconds,
    and a timer alone comes too late on a machine that others use."""
    from cairn.vllm import worker

    get = worker.paged.get

    def get_and_kill(space, cache, keys, blocks, **more):
        worker.paged.get = get
        half = len(keys) // 2
        cut = half * len(blocks) // len(keys)
        arrived = get(space, cache, keys[:half], blocks[:cut], **more).statuses if half else []
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(seconds, os.kill, (pid, signal.SIGKILL)).start()
        rest = get(space, cache, keys[half:], blocks[cut:], **more)
        return dataclasses.replace(rest, statuses=arrived + rest.statuses)

    worker.paged.get = get_and_kill
    return {"ok": True}


def drain():
    from cairn.vllm import CairnConnector
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    group = get_kv_transfer_group()
    for connector in getattr(group, "_connectors", [group]):  # a MultiConnector has some
        if isinstance(connector, CairnConnector):
            connector._worker.drain()
    return {"ok": True}


def answer(llm, command):
    what = command["do"]
    if what == "generate":
        return generate(llm, command)
    if what == "reset":
        return {"ok": llm.reset_prefix_cache()}
    if what == "drain":
        return drain()
    if what == "sleep":
        llm.sleep(command.get("level", 1))
        return {"ok": llm.wake_up()}
    if what == "encode":
        return {"tokens": llm.get_tokenizer().encode(command["text"])}
    if what == "prompt":
        return {"tokens": long_prompt(llm)}
    if what == "metrics":
        wanted = ("cairn", "external_prefix", "num_preemptions")
        return {
            metric.name: getattr(metric, "value", None)
            for metric in llm.get_metrics()
            if any(part in metric.name for part in wanted)
        }
    if what == "kill_in_load":
        return kill_in_load(command["pid"], command["after"])
    raise ValueError(f"no such command: {what}")


def main(started=lambda llm: functools.partial(answer, llm), **more):
    """started: called with the engine once it is there, returns what answers a command. `more`: as
    start() takes it."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what vLLM prints goes elsewhere
    os.dup2(2, 1)
    logging.raiseExceptions = False
    config = None if sys.argv[2] == "-" else json.loads(sys.argv[2])
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    llm = start(sys.argv[1], config, **more | options)
    answer_of = started(llm)

    def say(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "end":
            break
        say(answer_of(command))
    llm.llm_engine.engine_core.shutdown()
    say({"ended": True})


if __name__ == "__main__":
    main()
