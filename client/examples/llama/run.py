# SPDX-License-Identifier: Apache-2.0
"""llama.cpp takes the state of a prompt from Cairn, and keeps there what it computed.

    build/release/bin/cairnd &
    python client/examples/llama/run.py model.gguf --text FILE     # computes, and keeps
    python client/examples/llama/run.py model.gguf --text FILE     # takes it from Cairn

Needs llama-cpp-python (pip install llama-cpp-python==0.3.16, which compiles llama.cpp)."""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import cairn
import llama_cpp
from states import States

SAMPLES, SAMPLE_BYTES = 64, 1 << 16


class Engine:
    """One sequence of a model."""

    def __init__(self, path: pathlib.Path, tokens_max: int) -> None:
        self._llama = llama_cpp.Llama(str(path), n_ctx=tokens_max, seed=0, verbose=False)
        self.revision = f"{_digest(path)}, llama-cpp-python {llama_cpp.__version__}"

    def tokens_of(self, text: str) -> list[int]:
        return self._llama.tokenize(text.encode())

    def compute(self, tokens: list[int]) -> None:
        self._llama.eval(tokens)

    def state(self) -> bytes:
        context = self._llama.ctx
        count = llama_cpp.llama_state_seq_get_size(context, 0)
        memory = (ctypes.c_uint8 * count)()
        written = llama_cpp.llama_state_seq_get_data(context, memory, count, 0)
        return bytes(memory)[:written]

    def restore(self, tokens: list[int], state: bytes) -> bool:
        """False: it is not one of this engine's, and nothing is restored."""
        llama = self._llama
        llama.reset()
        memory = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if not llama_cpp.llama_state_seq_set_data(llama.ctx, memory, len(state), 0):
            return False
        llama.input_ids[: len(tokens)] = tokens
        llama.n_tokens = len(tokens)
        return True

    def write(self, count: int) -> str:
        """What it goes on with."""
        made = []
        for _ in range(count):
            made.append(self._llama.sample(temp=0.0))
            self.compute(made[-1:])
        return self._llama.detokenize(made).decode(errors="replace")


def _digest(path: pathlib.Path) -> str:
    """Which weights a file has, without reading gigabytes."""
    digest, count = hashlib.sha256(), path.stat().st_size
    with open(path, "rb") as file:
        for i in range(SAMPLES):
            file.seek(i * max(0, count - SAMPLE_BYTES) // (SAMPLES - 1), os.SEEK_SET)
            digest.update(file.read(SAMPLE_BYTES))
    return f"{count} bytes, {digest.hexdigest()[:32]}"


def serve(engine: Engine, states: States, tokens: list[int]) -> int:
    """Brings the engine to the end of a prompt; how many of its tokens came from Cairn."""
    count, state = states.find(tokens)
    if state is None or not engine.restore(tokens[:count], state):
        count = 0
    boundary = states.boundary(tokens)
    if count < boundary:
        engine.compute(tokens[count:boundary])
        states.keep(tokens[:boundary], engine.state())
    engine.compute(tokens[boundary:])
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="the prompt")
    parser.add_argument("--control", help="of cairnd [$CAIRN_CONTROL, else 127.0.0.1:50151]")
    parser.add_argument("--data", help="unix:PATH or HOST:PORT (UCX) of its data plane (a socket that it names)")
    wanted = parser.parse_args()
    text = wanted.text.read_text(encoding="utf-8")
    engine = Engine(wanted.model, tokens_max=4096)
    tokens = engine.tokens_of(text)[:4000]
    with cairn.connect(wanted.control, data=wanted.data) as client:
        states = States(client, wanted.model.name, engine.revision)
        began = time.perf_counter()
        taken = serve(engine, states, tokens)
        seconds = time.perf_counter() - began
    print(f"{taken} of {len(tokens)} tokens from Cairn, {seconds:.3f} s to the end of the prompt")
    print(repr(engine.write(24)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
