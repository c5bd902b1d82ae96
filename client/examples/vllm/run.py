# SPDX-License-Identifier: Apache-2.0
"""Two vLLM engines, one after the other, and a cairnd between them: `make demo-vllm`."""

import argparse
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent / "demo"))
sys.path.insert(0, str(HERE.parents[1] / "python"))

import cairn  # noqa: E402
from daemon import Daemon  # noqa: E402
from process import EngineProcess, config_of  # noqa: E402
from smollm2 import make  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/engines/smollm2")
    parser.add_argument("--recipe", default="exact")
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    model = make(arguments.model)
    with tempfile.TemporaryDirectory(prefix="cairn-vllm-") as made:
        folder = pathlib.Path(made)
        with Daemon(arguments.bin_dir, "local", folder) as daemon:
            config = config_of(daemon.control, recipe=arguments.recipe)
            rows = []
            for name in ("first", "second"):
                print(f"{name:>8} | starting an engine (half a minute on an idle machine)", flush=True)
                engine = EngineProcess(model, config, library, folder / f"{name}.log")
                with engine:
                    tokens = engine.do("prompt")["tokens"]
                    engine.generate(tokens[50:90], 4)  # what the first call of a process costs
                    text, cached, seconds, _ = engine.generate(tokens)
                rows.append((name, cached, seconds, text))
                print(f"{name:>8} | {len(tokens)} tokens, {cached} of them from Cairn:"
                      f" first token after {1000 * seconds:.0f} ms", flush=True)
                print(f"{name:>8} | {text!r}", flush=True)
            with cairn.connect(daemon.control, data=daemon.data) as client:
                stats = client.stats()
            print(f"  cairnd | {stats.block_count} blocks: {stats.image_bytes / 1e6:.1f} MB hold"
                  f" {stats.source_bytes / 1e6:.1f} MB of KV")
    (_, _, before, text), (_, cached, after, same) = rows
    if cached == 0 or (text != same and arguments.recipe in ("raw", "exact")):
        raise SystemExit("the second engine did not continue as the first")
    print(f"  result | first token {before / after:.0f} times as fast, "
          + ("the same text" if text == same else "another text"))


if __name__ == "__main__":
    main()
