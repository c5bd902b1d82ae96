# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine of `engine.py` as a process that is asked and answers."""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
END_SECONDS_MAX = 600  # of an engine, on a machine that others use


def config_of(control, **extra):
    """What --kv-transfer-config takes."""
    return {
        "kv_connector": "CairnConnector",
        "kv_connector_module_path": "cairn.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"control": control, **extra},
    }


class EngineProcess:
    """config: None is vLLM alone. script: what runs it, `engine.py` or a program that knows more
    commands. options: of vLLM's own. Its output is in the file `log`. A context manager."""

    def __init__(self, model, config, library, log, script=HERE / "engine.py", options=None):
        environment = dict(
            os.environ,
            PYTHONPATH=str(ROOT / "client" / "python"),
            CAIRN_LIBRARY=str(library),
        )
        self.log = pathlib.Path(log)
        command = [sys.executable, str(script), str(model)]
        command.append("-" if config is None else json.dumps(config))
        command += [json.dumps(options)] if options else []
        with open(self.log, "w", encoding="utf-8") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=environment,
            )
        self._answer()

    def do(self, what, **more):
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def generate(self, tokens, max_tokens=24, **more):
        """One prompt: its text, how many of its tokens came from a cache, seconds to the first."""
        answer = self.do("generate", tokens=[tokens], max_tokens=max_tokens, **more)
        names = ("texts", "cached", "first_token", "reasons")
        return tuple(answer[name][0] for name in names)

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.write('{"do": "end"}\n')
            self.process.stdin.close()
            self.process.wait(END_SECONDS_MAX)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            if exception[0] is None:
                self.end()
        finally:
            self.process.kill()
            self.process.wait()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise SystemExit("\n".join([*lines[-30:], f"the engine ended; its log is {self.log}"]))
        return json.loads(line)
