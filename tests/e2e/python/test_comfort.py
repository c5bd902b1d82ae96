# SPDX-License-Identifier: Apache-2.0
"""What the package's objects say of themselves, and the dtypes that it takes."""

import subprocess
import sys

import cairn
import numpy as np
import pytest
from cairn import Capture, InvalidArgumentError, image, keys
from conftest import LAYERS, ROOT, TOKENS, make_kv, open_space


class TorchDtype:
    """As torch's own: an object that only its text tells."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return f"torch.{self._name}"


class bfloat16:  # as ml_dtypes and jax name theirs: a class
    pass


@pytest.mark.parametrize(
    "given, name",
    [
        ("bf16", "bf16"),
        ("fp32", "fp32"),
        (TorchDtype("bfloat16"), "bf16"),
        (TorchDtype("float16"), "fp16"),
        (bfloat16, "bf16"),
        (np.float16, "fp16"),
        (np.dtype("float32"), "fp32"),
        ("float16", "fp16"),
    ],
)
def test_a_dtype_by_any_of_its_names(given, name):
    spec = keys.SpaceSpec("m", "r", (cairn.KvGroup(1, 1, 64),), given)
    assert spec.dtype == name and spec == keys.SpaceSpec("m", "r", spec.groups, name)
    assert keys.fingerprint("t", spec) == keys.fingerprint("t", keys.SpaceSpec("m", "r", spec.groups, name))
    assert image.ImageSpec("raw", 1, 1, 16, 64, 64, given).dtype == name


@pytest.mark.parametrize("given", ["fp8", np.uint16, np.float64, TorchDtype("float8_e8m0fnu"), None, 1])
def test_no_dtype_of_a_space(given, client):
    with pytest.raises(InvalidArgumentError, match="expected bf16, fp16, fp32, fp8_e4m3, fp8_e5m2"):
        open_space(client, dtype=given)
    with pytest.raises(InvalidArgumentError, match="expected bf16, fp16, fp32, fp8_e4m3, fp8_e5m2"):
        image.ImageSpec("raw", 1, 1, 16, 64, 64, given)


def test_a_space_of_a_dtype_of_numpy(client):
    one = open_space(client, dtype=np.float16)
    assert one.spec.dtype == "fp16"
    model, revision, groups = "synthetic", one.spec.weights_revision, one.spec.groups
    options = {"dtype": "fp16", "tokens_per_block": TOKENS}
    with client.open_space(model, revision, groups, **options) as same:
        assert same.fingerprint == one.fingerprint


def test_modules_are_loaded_when_they_are_named():
    program = (
        "import sys, cairn\n"
        "assert not {'numpy', 'asyncio', 'cairn.paged', 'cairn.evaluate'} & sys.modules.keys()\n"
        "print(cairn.aio.call.__name__, cairn.paged.SKIPPED, cairn.bank.mine.__name__)\n"
        "print(hasattr(cairn, 'nothing'))"
    )
    environment = {"PYTHONPATH": str(ROOT / "client" / "python")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "call -1 mine\nFalse\n", done.stderr


def test_how_many_blocks_a_match_has(client):
    space = open_space(client)
    wanted = space.keys(range(3 * TOKENS))
    for key in wanted[:2]:
        space.put(key, *make_kv(1))
    with space.match(wanted) as match:
        assert match and len(match) == 2
        assert repr(match) == f"<cairn.Match: 2 blocks, {2 * TOKENS} tokens, leased>"
    assert repr(match) == f"<cairn.Match: 2 blocks, {2 * TOKENS} tokens>"
    miss = space.match(wanted[2:])
    assert not miss and len(miss) == 0
    assert repr(miss) == "<cairn.Match: 0 blocks, 0 tokens>"


def test_what_they_say_of_themselves(daemon, tmp_path):
    client = cairn.connect(daemon.control, data=daemon.data, tenant="test")
    assert repr(client) == f"<cairn.Client of {daemon.control}, tenant test>"
    space = open_space(client)
    revision, name = space.spec.weights_revision, space.fingerprint.hex()[:12]
    said = f"cairn.Space {name} of synthetic, weights {revision}, bf16, blocks of {TOKENS} tokens, recipe raw"
    assert repr(space) == f"<{said}>"
    watch, buffer = space.watch(), client.allocate_buffer(4096)
    assert repr(watch) == "<cairn.EventWatch>" and repr(buffer) == "<cairn.Buffer of 4096 bytes>"
    capture = Capture(space, tmp_path / "capture", sequences=3)
    assert repr(capture) == f"<cairn.Capture into {tmp_path / 'capture'}: 0 of 3 sequences>"
    capture.close()
    buffer.close()
    client.close()
    assert repr(client) == f"<cairn.Client of {daemon.control}, tenant test, closed>"
    assert repr(space) == f"<{said}, closed>"
    assert repr(watch) == "<cairn.EventWatch, closed>" and repr(buffer) == "<cairn.Buffer, closed>"
    assert LAYERS == space.spec.groups[0].layers
