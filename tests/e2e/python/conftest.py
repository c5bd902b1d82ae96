# SPDX-License-Identifier: Apache-2.0
"""A cairnd of our own per test session, and clients to it."""

import itertools
import os
import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / path) for path in ("client/examples/demo", "client/python", "tests/support")]

import cairn  # noqa: E402
from daemon import Daemon  # noqa: E402

LAYERS, HEADS, TOKENS, DIM = 4, 2, 32, 64

# Of engines here, but where a test says otherwise: a busy machine is no fault of theirs.
PATIENT = {"lookup_timeout": 10.0, "load_timeout": 20.0, "save_timeout": 20.0}

_revisions = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """Digests of weights are kept in a folder of our own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def bin_dir():
    return pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))


@pytest.fixture(scope="session")
def daemon(bin_dir, tmp_path_factory):
    with Daemon(bin_dir, "local", tmp_path_factory.mktemp("cairnd"), "128MiB") as started:
        yield started


@pytest.fixture
def client(daemon):
    with cairn.connect(daemon.control, data=daemon.data, tenant="test") as connected:
        yield connected


@pytest.fixture
def settings(daemon):
    """What an engine's adapter is told, of weights that no other test has."""
    return {
        "control": daemon.control,
        "data": daemon.data,
        "weights_revision": f"engine {next(_revisions)}",
    }


@pytest.fixture
def make_engine(request):
    """Stand-ins for vLLM, which are closed at the end, and whose sessions are open."""
    from cairn.vllm import CairnConnector
    from fake_vllm_engine import Engine

    def build(extra, wait=True, connector_class=CairnConnector, **changed):
        engine = Engine(connector_class, PATIENT | extra, **changed)
        request.addfinalizer(engine.close)
        connectors = [engine.scheduler, *(rank.connector for rank in engine.ranks)]
        assert not wait or all(one._session.wait(30) for one in connectors)
        return engine

    return build


@pytest.fixture
def device():
    """An emulated one, and a stand-in for torch over it, both whole again at the end."""
    import fake_torch

    if not fake_torch.is_there():
        pytest.skip("the library has no emulated device")
    fake_torch.install()
    fake_torch.waits.clear()
    fake_torch.copies.clear()
    yield
    fake_torch.fail()
    fake_torch.faults.room = None


def open_space(client, recipe="raw", dtype="bf16", **changed):
    """A space that no other test has."""
    group = cairn.KvGroup(LAYERS, HEADS, DIM, rope=cairn.Rope("half", DIM, 10000.0))
    arguments = {
        "model": "synthetic",
        "weights_revision": f"r{next(_revisions)}",
        "groups": [group],
        "dtype": dtype,
        "tokens_per_block": TOKENS,
        "recipe": recipe,
    }
    return client.open_space(**(arguments | changed))


def make_kv(seed, shape=(LAYERS, HEADS, TOKENS, DIM)):
    """Two planes of bf16 bits of normal numbers."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for _ in range(2)
    ]


def as_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)
