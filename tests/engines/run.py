# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector in a real vLLM, with SmolLM2: `make test-engines`. Four engines, one after the
other: what the first computes the second loads, also after cairnd was killed in the middle of a
load and came back; another loads it layer by layer; the last has other weights by name, and no
daemon when it starts."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "examples" / "vllm"))
sys.path.insert(0, str(ROOT / "client" / "python"))

import cairn  # noqa: E402
from process import EngineProcess, config_of  # noqa: E402
from smollm2 import make  # noqa: E402

STORE_TOKENS, ENGINE_TOKENS = 128, 32  # a block
PROMPT_TOKENS, CACHEABLE_TOKENS = 2184, 2176
TOKEN_BYTES = 23040  # of KV
HANG_SECONDS_MAX = 120.0  # of an answer, beside three times what computing all of it took before
WAIT_SECONDS_MAX = 300.0  # for what comes within a second on an idle machine
PATIENCE = {"lookup_timeout": 60.0, "load_timeout": 60.0, "save_timeout": 60.0}  # late is no miss here


class Daemon:
    """A cairnd with an SSD tier that comes back at the same address."""

    def __init__(self, bin_dir, folder, host_bytes="256MiB", ssd_bytes="512MiB"):
        self.control = f"unix:{folder}/control.sock"
        ssd = folder / "ssd"
        ssd.mkdir()
        self._command = [str(bin_dir / "cairnd"), "--control", self.control, "--http", "off"]
        self._command += ["--socket", f"{folder}/data.sock", "--host-bytes", host_bytes]
        self._command += ["--ssd", f"{ssd}={ssd_bytes}"]
        self._log = open(folder / "cairnd.log", "a", encoding="utf-8")
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                with cairn.connect(self.control) as client:
                    return client.stats()
            except cairn.Error as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    log = pathlib.Path(self._log.name).read_text(encoding="utf-8")
                    raise SystemExit(f"cairnd did not start: {error}; its log:\n{log}") from None
                time.sleep(0.1)

    def wait_for_ssd(self, count):
        """Until the SSD tier has so many bytes: what a kill leaves."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        with cairn.connect(self.control) as client:
            while time.monotonic() < deadline:
                ssd = [tier for tier in client.stats().tiers if tier.tier == "ssd"]
                if ssd and ssd[0].used_bytes >= count:
                    return
                time.sleep(0.2)
        raise SystemExit("the SSD tier did not take the blocks")

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Checks:
    def __init__(self):
        self.failed = 0

    def __call__(self, what, is_right, seen=""):
        print(f"{'  ok  ' if is_right else 'FAILED'} | {what}{f': {seen}' if seen != '' else ''}", flush=True)
        self.failed += not is_right


def first_engine(check, make_engine, daemon):
    with make_engine("first") as engine:
        tokens = engine.do("prompt")["tokens"]
        began = time.monotonic()
        text, cached, cold, _ = engine.generate(tokens)
        whole = time.monotonic() - began
        check("the first engine computes all", cached == 0, f"{cold:.3f} s, {text!r}")
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        metrics = {"vllm:cairn_saved_blocks": 0}
        while metrics["vllm:cairn_saved_blocks"] < CACHEABLE_TOKENS // ENGINE_TOKENS and time.monotonic() < deadline:
            engine.generate(tokens[50:90], 1)  # figures come with a step
            metrics = engine.do("metrics")
    with cairn.connect(daemon.control) as client:
        blocks = client.stats().block_count
    check("its blocks are kept", blocks == CACHEABLE_TOKENS // STORE_TOKENS, blocks)
    saved = metrics["vllm:cairn_saved_bytes"]
    share = saved / (CACHEABLE_TOKENS * TOKEN_BYTES)
    check("images are at most 0.67 of the bytes", 0 < share <= 0.67, f"{share:.3f}")
    daemon.wait_for_ssd(saved)
    return tokens, text, cold, whole


def second_engine(check, make_engine, daemon, tokens, text, cold, whole):
    """cold, whole: seconds of the first engine to the first token, and to the last."""
    with make_engine("second") as engine:
        engine.generate(tokens[50:90], 4)
        for _ in range(2):
            same, cached, warm, _ = engine.generate(tokens)
            check("the second loads them", cached >= CACHEABLE_TOKENS - STORE_TOKENS, cached)
            check("and goes on with the same text", same == text, f"{warm:.3f} s")
            engine.do("reset")
        check("a hit is faster than computing", warm < cold, f"{cold / warm:.1f} times")
        engine.do("kill_in_load", pid=daemon.process.pid, after=0.005)
        began = time.monotonic()
        same, cached, _, reason = engine.generate(tokens)
        elapsed = time.monotonic() - began
        daemon.kill()
        failed = engine.do("metrics")["vllm:cairn_failed_blocks"]
        check("killed in mid-load, blocks fail", failed > 0, f"{failed} of 68, {cached} tokens were hit")
        check("the request goes on, with the same text", (same, reason) == (text, "length"))
        is_over = elapsed < HANG_SECONDS_MAX + 3 * whole  # the machine's other work counts in both
        check("and does not hang", is_over, f"{elapsed:.1f} s, computed in {whole:.1f} s before")
        engine.do("reset")
        same, cached, _, _ = engine.generate(tokens, 2)
        check("without a daemon it computes", cached == 0 and text.startswith(same))
        daemon.start()
        cached = 0
        for _ in range(10):  # the client comes back with backoff
            engine.do("reset")
            same, cached, _, _ = engine.generate(tokens, 2)
            if cached:
                break
            time.sleep(1)
        is_hit = cached >= CACHEABLE_TOKENS - STORE_TOKENS and text.startswith(same)
        check("after its restart, hits from the SSD tier", is_hit, cached)


def layered_engine(check, make_engine, tokens, text):
    with make_engine("layered", layer_wise=True) as engine:
        engine.generate(tokens[50:90], 4)
        for _ in range(2):
            same, cached, warm, _ = engine.generate(tokens)
            check("layer by layer, it loads as much", cached >= CACHEABLE_TOKENS - STORE_TOKENS, cached)
            check("and goes on with the same text", same == text, f"{warm:.3f} s")
            engine.do("reset")


def third_engine(check, make_engine, daemon, tokens, text):
    daemon.kill()
    with make_engine("third", weights_revision="of another training") as engine:
        short, cached, _, reason = engine.generate(tokens[:200], 2)
        check("an engine starts without a daemon", (cached, reason) == (0, "length"))
        daemon.start()
        log, deadline = "", time.monotonic() + WAIT_SECONDS_MAX
        while "new, so nothing is in it" not in log and time.monotonic() < deadline:
            time.sleep(0.5)
            log = engine.log.read_text(encoding="utf-8")
        check("and says so, once a side", 1 <= log.count("the engine goes on without") <= 2)
        named = re.search(r"weights of another training.*new, so nothing is in it", log)
        check("other weights are another space, and the log says it", named is not None)
        same, cached, _, _ = engine.generate(tokens)
        check("they hit nothing", cached < STORE_TOKENS * 2 and same == text, cached)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/engines/smollm2")
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    model = make(arguments.model)
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        folder = pathlib.Path(made)
        daemon = Daemon(arguments.bin_dir, folder)

        def make_engine(name, **extra):
            config = config_of(daemon.control, **({"recipe": "exact"} | PATIENCE | extra))
            return EngineProcess(model, config, library, folder / f"{name}.log")

        try:
            daemon.start()
            tokens, text, *seconds = first_engine(check, make_engine, daemon)
            check("the prompt is as long as it should be", len(tokens) == PROMPT_TOKENS)
            second_engine(check, make_engine, daemon, tokens, text, *seconds)
            layered_engine(check, make_engine, tokens, text)
            third_engine(check, make_engine, daemon, tokens, text)
        finally:
            daemon.kill()
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
