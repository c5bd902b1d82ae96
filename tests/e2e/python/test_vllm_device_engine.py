# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector in an engine whose KV lies on a CUDA device, which is emulated; and what is
refused when such an engine starts."""

import logging

import fake_torch
import fake_vllm
import pytest
from cairn import (
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    _ffi,
)
from fake_vllm import Request, prompt

fake_vllm.install()

from cairn.vllm.cuda import Cuda  # noqa: E402

log = logging.getLogger("vllm.cairn")


@pytest.fixture
def engines(device, make_engine, settings):
    def build(role="kv_both", **extra):
        return make_engine(settings | {"recipe": "raw"} | extra, role=role)

    return build


def test_a_second_engine_loads_what_the_first_computed(engines):
    tokens = prompt(1, 5 * 128 + 40)
    engines().run_one("cold", tokens)
    second = engines()
    assert second.run_one("warm", tokens).external == 5 * 128
    assert second.ranks[0].is_on_device and "saved_blocks" not in second.counts


def test_a_device_lost_in_the_middle(engines, caplog):
    tokens = prompt(2, 3 * 128 + 1)
    engine = engines()
    engine.run_one("cold", tokens)
    assert engine.run_one("warm", tokens).external == 3 * 128
    fake_torch.fail(is_dead=True)
    for i in range(3):
        engine.run_one(f"lost {i}", tokens)
    engine.run_one("another", prompt(3, 3 * 128 + 1))
    assert caplog.text.count("nothing is cached from now on") == 1


def test_requests_side_by_side(engines):
    """Steps, loads and saves of several at once, in blocks that go round."""
    engine = engines()
    roots = [prompt(20 + i, 2 * 128 + 50) for i in range(3)]
    for i in range(4):
        batch = [
            engine.add(Request(f"{i}.{j}", roots[(i + j) % 3] + prompt(40 + 3 * i + j, 60)))
            for j in range(3)
        ]
        engine.run()
        for one in batch:
            engine.check(one)
        engine.drain()
    assert engine.counts["loaded_blocks"] > 40


# ------------------------------------------------------------------- what is refused at start


def test_no_kernels_are_said_at_start():
    if fake_torch.is_there():
        pytest.skip("the library has an emulated device")
    with pytest.raises((UnimplementedError, UnavailableError), match="lies on CUDA device 0") as raised:
        Cuda(0, log)
    if raised.type is UnimplementedError:
        assert "preset `gpu` (-DCAIRN_CUDA=ON)" in str(raised.value)


def test_no_such_device(device):
    with pytest.raises(UnavailableError, match="CUDA device 1, which libcairn.so does not find"):
        Cuda(1, log)
    assert _ffi.library().cairn_check_device(0, 5) == 0, "there is always a host"
    assert _ffi.library().cairn_check_device(7, 0) == InvalidArgumentError.code


def test_an_engine_that_only_loads_takes_no_staging(engines):
    tokens = prompt(4, 128 + 1)
    engines().run_one("cold", tokens)
    fake_torch.faults.room = 0
    assert engines(role="kv_consumer").run_one("warm", tokens).external == 128
    with pytest.raises(ResourceExhaustedError, match="no room for staging_bytes"):
        engines()


def test_a_staging_that_holds_no_whole_step_is_said(engines, caplog):
    block = 4 * 2 * 128 * 64 * 2  # layers, heads, tokens, channels of K and V, bytes
    engines(staging_bytes=4 * block)
    assert "staging_bytes" not in caplog.text
    engines(staging_bytes=3 * block).run_one("long", prompt(5, 5 * 128))
    assert f"holds 384 tokens, and a step computes up to 512, for which it takes {4 * block}" in caplog.text


def test_capture_is_refused(engines, tmp_path):
    with pytest.raises(InvalidArgumentError, match="capture records KV of host memory"):
        engines(capture=str(tmp_path / "dumps"))


def test_squared_queries_are_refused(engines):
    with pytest.raises(InvalidArgumentError, match="query_squares: queries are seen in host memory"):
        engines(query_squares=True)
    engines(role="kv_consumer", query_squares=True)


def test_a_whole_graph_would_leave_out_the_waits_for_layers():
    from cairn.vllm import CairnConnector

    assert CairnConnector.requires_piecewise_for_cudagraph({"layer_wise": True})
    assert not CairnConnector.requires_piecewise_for_cudagraph({})
