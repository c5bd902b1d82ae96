# SPDX-License-Identifier: Apache-2.0
"""Of the tests with the engines' own packages, without a run of an engine: `make test-connectors`.
A file is of the engine that its name says (test_vllm_names.py), whose files share a process."""

import json
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "client/examples/demo", "tests/engines"):
    sys.path.insert(0, str(ROOT / folder))
ENGINES = ROOT / "build" / "engines"  # SGLang's and LMCache's packages are folders in it

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """Digests of weights are kept in a folder of our own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def bin_dir():
    return pathlib.Path(os.environ["CAIRN_BIN_DIR"])


@pytest.fixture(scope="session")
def daemon(bin_dir, tmp_path_factory):
    """A cairnd of our own."""
    from daemon import Daemon

    with Daemon(bin_dir, "local", tmp_path_factory.mktemp("cairnd"), "128MiB") as started:
        yield started


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Folders of a small model: its configuration, and a file in the place of weights."""

    def make(**changed):
        folder = tmp_path_factory.mktemp("model") / "small"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA | changed))
        (folder / "model.safetensors").write_bytes(b"weights")
        return folder

    return make


@pytest.fixture(scope="session")
def vllm_config(make_model):
    """What vLLM makes of its options, with the connector: of a small Llama, or of `model`."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda call: call()  # which would import vLLM once more
    llama = make_model()

    def make(model=llama, extra=None, **options):
        transfer = KVTransferConfig(
            kv_connector="CairnConnector",
            kv_connector_module_path="cairn.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"control": "127.0.0.1:1", **(extra or {})},
        )
        options = {"skip_tokenizer_init": True, "block_size": 32} | options
        return EngineArgs(
            model=str(model), kv_transfer_config=transfer, **options
        ).create_engine_config()

    return make
