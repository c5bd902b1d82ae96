# SPDX-License-Identifier: Apache-2.0
"""What C and Python say to a device: it is emulated, by a library that has one in the place of CUDA's."""

import ctypes
import gc
import threading
import time
import weakref

import cairn
import numpy as np
import pytest
from cairn import InvalidArgumentError, UnavailableError, UnimplementedError, _abi, _ffi, bank, mine, paged
from cairn.attention import AttendPlan, DeviceImages, Job, Tail
from conftest import HEADS, LAYERS, TOKENS
from own_daemon import OwnDaemon

PATIENCE = 30  # seconds: kernels that are emulated take long on a busy machine
STREAM = 5  # any: what is put on a stream that the device did not open is done at once
DEFAULT_STREAM = 0
ENGINE, BLOCKS = 16, 9
DIM, ROWS = 128, 2  # ROWS query heads read a KV head


@pytest.fixture(scope="module")
def emulated():
    library = _ffi.library()
    if not hasattr(library, "cairn_emulated_allocate"):
        pytest.skip("the library has no emulated device")
    library.cairn_emulated_allocate.restype = ctypes.c_void_p
    library.cairn_emulated_allocate.argtypes = [ctypes.c_size_t]
    library.cairn_emulated_free.argtypes = [ctypes.c_void_p]
    return library


class OnDevice:
    """An array on the device, whose memory a test may read and write as well."""

    def __init__(self, library, values):
        values = np.ascontiguousarray(values)
        address = library.cairn_emulated_allocate(values.nbytes)
        memory = (ctypes.c_uint8 * values.nbytes).from_address(address)
        self.values = np.frombuffer(memory, values.dtype).reshape(values.shape)
        self.values[...] = values
        weakref.finalize(self, library.cairn_emulated_free, address)

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None):
        assert stream == -1, "the engine's stream is named elsewhere"
        return self.values.__dlpack__()


class Cache:
    """An engine's: K and V of all blocks a layer, [K and V, block, token, head, dim]."""

    def __init__(self, library, stream=STREAM):
        shape = (2, BLOCKS, ENGINE, HEADS, DIM)
        self.layers = [OnDevice(library, np.full(shape, 9, np.float16)) for _ in range(LAYERS)]
        plane, block, token, head, dim = self.layers[0].values.strides
        half = {"block": block, "head": head, "token": token, "dim": dim}
        placements = {"k": paged.Placement(**half), "v": paged.Placement(**half, offset=plane)}
        self.cache = paged.PagedCache(
            self.layers, tokens_per_block=ENGINE, block_count=BLOCKS, stream=stream, **placements
        )

    def set(self, blocks, k, v):
        """Writes [layer, head, token, dim] into the blocks."""
        for layer, kv in enumerate(self.layers):
            for plane, values in enumerate((k, v)):
                pages = values[layer].swapaxes(0, 1).reshape(len(blocks), ENGINE, HEADS, DIM)
                kv.values[plane, blocks] = pages

    def take(self, blocks):
        both = np.stack([kv.values[:, blocks] for kv in self.layers])
        both = both.reshape(LAYERS, 2, -1, HEADS, DIM).swapaxes(2, 3)
        return both[:, 0], both[:, 1]


@pytest.fixture
def open_recipe(client, request):
    def build(recipe):
        groups = [cairn.KvGroup(layers=LAYERS, kv_heads=HEADS, dim=DIM)]
        return client.open_space(
            "device", f"{request.node.name} {recipe}", groups, dtype="fp16", tokens_per_block=TOKENS, recipe=recipe
        )

    return build


def values_of(rng, tokens=TOKENS):
    return tuple(rng.normal(size=(LAYERS, HEADS, tokens, DIM)).astype(np.float16) for _ in "kv")


def test_a_cache_on_a_device(emulated, open_recipe):
    rng = np.random.default_rng(3)
    space, source, target = open_recipe("exact"), Cache(emulated), Cache(emulated, DEFAULT_STREAM)
    keys = space.keys(range(3 * TOKENS))
    blocks = [4, 0, 2, 7, 1, 8]
    k, v = values_of(rng, 3 * TOKENS)
    source.set(blocks, k, v)
    put = paged.put(space, source.cache, keys, blocks, timeout=PATIENCE)
    assert put.statuses == [paged.OK] * 3 and put.wire_bytes < put.bytes, "it was encoded"
    got = paged.get(space, target.cache, keys, blocks[::-1], timeout=PATIENCE)
    assert got.statuses == [paged.OK] * 3
    for taken, given in zip(target.take(blocks[::-1]), (k, v), strict=True):
        assert np.array_equal(taken, given)


@pytest.fixture
def own_space(emulated, bin_dir):
    """A space of a daemon that a test may freeze, and the daemon."""
    with OwnDaemon(bin_dir) as own:
        own.start()
        with cairn.connect(own.control, data=own.data) as client:
            groups = [cairn.KvGroup(layers=LAYERS, kv_heads=HEADS, dim=DIM)]
            yield client.open_space("device", "own", groups, dtype="fp16", tokens_per_block=TOKENS), own
            own.thaw()
            emulated.cairn_emulated_fail(0, 0)


def test_a_slow_put_delays_no_get_on_another_stream(emulated, own_space):
    """And one on the same stream, or another put, no longer than it may take."""
    space, own = own_space
    caches = [Cache(emulated, stream) for stream in (5, 6, 5, 6)]
    keys = space.keys(range(4 * TOKENS))
    assert paged.put(space, caches[0].cache, keys[:1], [4, 0], timeout=PATIENCE).statuses == [paged.OK]
    assert paged.get(space, caches[1].cache, keys[:1], [4, 0], timeout=PATIENCE).statuses == [paged.OK]
    own.freeze()
    slow = threading.Thread(target=paged.put, args=(space, caches[0].cache, keys[1:2], [1, 2]), kwargs={"timeout": 8})
    slow.start()
    time.sleep(0.3)  # until it is at it
    began = time.monotonic()
    late = paged.get(space, caches[1].cache, keys[:1], [4, 0], timeout=0.3)
    assert late.statuses == [cairn.DeadlineExceededError.code], "of the daemon's"
    with pytest.raises(cairn.DeadlineExceededError, match="other calls used the device"):
        paged.get(space, caches[2].cache, keys[:1], [4, 0], timeout=0.3)
    with pytest.raises(cairn.DeadlineExceededError, match="other calls used the device"):
        paged.put(space, caches[3].cache, keys[2:3], [4, 0], timeout=0.3)
    assert time.monotonic() - began < 6
    own.thaw()
    slow.join()


def test_a_device_that_failed_is_lost_for_good(emulated, own_space):
    space, _ = own_space
    cache, keys = Cache(emulated).cache, space.keys(range(2 * TOKENS))
    assert paged.put(space, cache, keys[:1], [4, 0], timeout=PATIENCE).statuses == [0]
    emulated.cairn_emulated_fail(1, 0)
    last = keys[1:]
    assert paged.put(space, cache, last, [4, 0], timeout=PATIENCE).statuses == [UnavailableError.code]
    emulated.cairn_emulated_fail(0, 0)
    with pytest.raises(UnavailableError, match="the device is lost: emulated"):
        paged.put(space, cache, last, [4, 0], timeout=PATIENCE)


def test_a_device_that_was_lost_before_is_not_taken_for_a_full_one(emulated, own_space):
    space, _ = own_space
    cache, keys = Cache(emulated).cache, space.keys(range(TOKENS))
    emulated.cairn_emulated_fail(1, 0)
    with pytest.raises(UnavailableError, match="the device is lost: emulated"):
        paged.put(space, cache, keys, [4, 0], timeout=PATIENCE)
    emulated.cairn_emulated_fail(0, 0)


def test_which_devices_there_are(emulated):
    paged.check_cuda(0)
    with pytest.raises(UnavailableError, match="device_number is 1: no such device"):
        paged.check_cuda(1)


def attended(queries, k, v, scale):
    """[tokens, heads, dim] of queries over [head, token, dim]: outputs and log sums."""
    heads = np.repeat(np.arange(HEADS), ROWS)
    scores = scale * np.einsum("qhd,htd->qht", queries.astype(np.float64), k.astype(np.float64)[heads])
    top = scores.max(axis=2, keepdims=True)
    weights = np.exp(scores - top)
    sums = weights.sum(axis=2, keepdims=True)
    outputs = np.einsum("qht,htd->qhd", weights / sums, v.astype(np.float64)[heads])
    return outputs, (top + np.log(sums))[..., 0]


@pytest.fixture
def problem(emulated, open_recipe):
    """Three blocks in the store, a tail of 20 tokens on the device, and queries."""

    class Problem:
        rng = np.random.default_rng(11)
        space = open_recipe("kivi:8")
        keys = space.keys(range(4 * TOKENS))[:3]
        layer, scale, tail_tokens, tail_blocks = 2, DIM**-0.5, 20, [5, 3]
        k, v = (np.empty((LAYERS, HEADS, 0, DIM), np.float16) for _ in "kv")

    made = Problem()
    for i, key in enumerate(made.keys):
        made.space.put(key, *values_of(made.rng), parent=made.keys[i - 1] if i else None, first_position=i * TOKENS)
        k, v = (np.empty((LAYERS, HEADS, TOKENS, DIM), np.float16) for _ in "kv")
        assert made.space.get(key, k, v), "as it was encoded"
        made.k, made.v = np.concatenate([made.k, k], axis=2), np.concatenate([made.v, v], axis=2)
    made.tail = Cache(emulated)
    k, v = values_of(made.rng, 2 * ENGINE)
    made.tail.set(made.tail_blocks, k, v)
    made.k = np.concatenate([made.k, k[:, :, : made.tail_tokens]], axis=2)
    made.v = np.concatenate([made.v, v[:, :, : made.tail_tokens]], axis=2)
    made.queries = OnDevice(emulated, made.rng.normal(size=(1, HEADS * ROWS, DIM)).astype(np.float16))
    made.outputs = OnDevice(emulated, np.zeros((1, HEADS * ROWS, DIM), np.float32))
    made.log_sums = OnDevice(emulated, np.zeros((1, HEADS * ROWS), np.float32))
    made.blocks = OnDevice(emulated, np.array(made.tail_blocks, np.int32))
    made.tokens = OnDevice(emulated, np.array([made.tail_tokens], np.int32))
    return made


def job_of(problem, images, **changed):
    fields = {
        "layer": problem.layer, "queries": problem.queries, "outputs": problem.outputs,
        "log_sums": problem.log_sums, "scale": problem.scale,
        "tail": Tail(problem.tail.cache, problem.blocks, tokens_max=2 * ENGINE, tokens=problem.tokens),
    }  # fmt: skip
    return Job(images, **(fields | changed))


def test_attention_to_blocks_and_a_tail(problem):
    with DeviceImages(problem.space) as images:
        assert images.append(problem.keys[:2], stream=STREAM, timeout=PATIENCE) == 2
        assert images.append([problem.keys[2], b"\1" * 32], stream=STREAM, timeout=PATIENCE) == 1, "the second is a miss"
        assert len(images) == 3
        with AttendPlan(problem.space, [job_of(problem, images)], stream=STREAM) as plan:
            for tokens in (problem.tail_tokens, 3):
                problem.tokens.values[0] = tokens
                plan.launch(STREAM)
                plan.check()
                cut = slice(0, 3 * TOKENS + tokens)
                outputs, log_sums = attended(
                    problem.queries.values, problem.k[problem.layer][:, cut], problem.v[problem.layer][:, cut], problem.scale
                )
                assert np.abs(problem.outputs.values - outputs).max() < 0.01
                assert np.abs(problem.log_sums.values - log_sums).max() < 0.01
        # Some of the heads, which are the first of theirs.
        one = {name: getattr(problem, name).values[:, :ROWS] for name in ("queries", "outputs", "log_sums")}
        one = {name: OnDevice(_ffi.library(), values) for name, values in one.items()}
        one["queries"].values[...] = problem.queries.values[:, ROWS : 2 * ROWS]
        with AttendPlan(problem.space, [job_of(problem, images, heads=range(1, 2), **one)], stream=STREAM) as plan:
            plan.launch(STREAM)
            plan.check()
            assert np.abs(one["outputs"].values - outputs[:, ROWS : 2 * ROWS]).max() < 0.01


def test_images_stay_until_their_plans_are_closed(problem):
    images = DeviceImages(problem.space)
    assert images.append(problem.keys, stream=DEFAULT_STREAM, timeout=PATIENCE) == 3
    plan = AttendPlan(problem.space, [job_of(problem, images)], stream=DEFAULT_STREAM)
    images.close()
    problem.space.close()
    with pytest.raises(cairn.FailedPreconditionError, match="the set of images is closed"):
        images.append(problem.keys, stream=STREAM, timeout=PATIENCE)
    plan.launch(STREAM)
    plan.check()
    outputs, _ = attended(problem.queries.values, problem.k[problem.layer], problem.v[problem.layer], problem.scale)
    assert np.abs(problem.outputs.values - outputs).max() < 0.01
    plan.close()


def test_what_a_space_has_on_a_device_goes_before_its_client(emulated, daemon):
    def sessions():
        with cairn.connect(daemon.control, data=daemon.data) as other:
            return other.stats().session_count

    client = cairn.connect(daemon.control, data=daemon.data)
    groups = [cairn.KvGroup(layers=LAYERS, kv_heads=HEADS, dim=DIM)]
    space = client.open_space("device", "dropped", groups, dtype="fp16", tokens_per_block=TOKENS)
    put = paged.put(space, Cache(emulated).cache, space.keys(range(TOKENS)), [4, 0], timeout=PATIENCE)
    assert put.statuses == [paged.OK], "memory of the connection is lent to the device now"
    images = DeviceImages(space)
    before = sessions()
    del space
    gc.collect()
    client.close()
    assert sessions() == before, "the images are open"
    images.close()
    assert sessions() == before - 1


def test_what_cannot_be_attended_to(problem, open_recipe):
    space = open_recipe("exact")
    space.put(space.keys(range(TOKENS))[0], *values_of(problem.rng))
    with DeviceImages(space) as images:
        with pytest.raises(UnimplementedError, match="decode first: entropy-coded"):
            images.append(space.keys(range(TOKENS)), stream=STREAM, timeout=PATIENCE)
        with pytest.raises(InvalidArgumentError, match="stream is null"), images._handle.use() as native:
            count, key = ctypes.c_size_t(), space.keys(range(TOKENS))[0]
            append = _ffi.library().cairn_device_images_append
            _ffi.check(append(native, key, 1, None, None, 1000, ctypes.byref(count)))
        with pytest.raises(InvalidArgumentError, match="lease has 3 bytes"):
            images.append(space.keys(range(TOKENS)), stream=STREAM, lease=b"abc")
        assert len(images) == 0
    with pytest.raises(UnavailableError, match="device_number is 1: no such device"):
        DeviceImages(problem.space, device=1)
    with DeviceImages(problem.space) as images:
        images.append(problem.keys, stream=STREAM, timeout=PATIENCE)
        other, narrow = (OnDevice(_ffi.library(), np.zeros(shape, np.float32)) for shape in ((2, 1, DIM), (1, HEADS * ROWS, 64)))
        two = OnDevice(_ffi.library(), np.zeros(2, np.int32))
        elsewhere = Cache(_ffi.library())
        elsewhere.cache.native.device_number = 1
        wrong = {
            rf"jobs\[0\]: layer is {LAYERS}, the images' are 0 to {LAYERS - 1}": {"layer": LAYERS},
            r"jobs\[0\]: invalid shape": {"scale": -1.0},
            r"jobs\[0\]: head_first is 7 and head_count 1": {"heads": range(7, 8)},
            "outputs and log_sums differ": {"outputs": other},
            f"outputs have rows of 64, expected {DIM}": {"outputs": narrow},
            r"jobs\[0\]: tail.device_number is 1, expected the plan's, 0": {"tail": Tail(elsewhere.cache, problem.blocks, 8)},
            "tail.tokens has 2 numbers, expected 1": {"tail": Tail(problem.tail.cache, problem.blocks, 8, tokens=two)},
            "queries has dtype float32": {"queries": problem.outputs},
        }
        for message, changed in wrong.items():
            with pytest.raises(InvalidArgumentError, match=message):
                AttendPlan(problem.space, [job_of(problem, images, **changed)], stream=STREAM)
        with pytest.raises(InvalidArgumentError, match="the jobs are of one device"):
            AttendPlan(problem.space, [], stream=STREAM)
        host = np.zeros((1, HEADS * ROWS, DIM), np.float16)
        with pytest.raises(InvalidArgumentError, match="queries does not lie on CUDA device 0"):
            AttendPlan(problem.space, [job_of(problem, images, queries=host)], stream=STREAM)
        problem.blocks.values[1] = BLOCKS  # a page that is none, which only the device sees
        with AttendPlan(problem.space, [job_of(problem, images)], stream=STREAM) as plan:
            plan.launch(STREAM)
            with pytest.raises(InvalidArgumentError, match="sequence 0, tail: "):
                plan.check()


def test_what_is_mined_of_a_cache(emulated, open_recipe):
    rng, cache = np.random.default_rng(7), Cache(emulated)
    k, v = values_of(rng, 2 * TOKENS)
    blocks = [4, 0, 2, 7]
    cache.set(blocks, k, v)
    texts = [mine.Text(blocks[:2]), mine.Text([blocks[2], paged.SKIPPED], first_position=96)]
    space = open_recipe("patternkv:2")
    mined = mine.bank(space, cache.cache, texts, patterns=3, timeout=PATIENCE)
    left = slice(ENGINE, 3 * ENGINE)  # the first block has the first tokens of a chain
    assert mined == bank.mine(k[:, :, left].astype(np.float32), v[:, :, left].astype(np.float32), patterns=3)
    assert space.install_bank(0, mined) == space.current_bank(0)
    space = open_recipe("cairn:3.0")
    squares = np.ones((LAYERS, HEADS, DIM), np.float32)
    profiles = [
        mine.profile(space, cache.cache, texts[1:], rates=(3.0,), q_squares=given, timeout=PATIENCE) for given in (squares, 4 * squares)
    ]
    assert profiles[0] == profiles[1], "how large all queries are says nothing of a channel"
    assert space.install_profile(0, profiles[0]) == space.current_profile(0)
    refused = {
        "patterns is 0, expected 1 to 256": lambda: mine.bank(space, cache.cache, texts, patterns=0),
        "texts have 0 tokens": lambda: mine.bank(space, cache.cache, []),
        rf"texts\[0\]: blocks\[1\] is {BLOCKS}": lambda: mine.bank(space, cache.cache, [mine.Text([0, BLOCKS])]),
        "rates\\[0\\] is 5, expected 10 to 160": lambda: mine.profile(space, cache.cache, texts, rates=(0.5,)),
        "query_squares has 2 numbers": lambda: mine.profile(space, cache.cache, texts, q_squares=squares[0, 0, :2]),
        "q_squares has dtype float64": lambda: mine.profile(space, cache.cache, texts, q_squares=squares.astype(np.float64)),
    }
    for message, call in refused.items():
        with pytest.raises(InvalidArgumentError, match=message):
            call()


def test_without_a_device(client):
    if hasattr(_ffi.library(), "cairn_emulated_allocate"):
        pytest.skip("the library has an emulated device")
    space = client.open_space("no device", "1", [cairn.KvGroup(layers=1, kv_heads=1, dim=64)])
    try:
        paged.check_cuda(0)
    except (UnimplementedError, UnavailableError) as error:
        assert "kernels are unavailable" in str(error)
    try:
        DeviceImages(space).close()
    except (UnimplementedError, UnavailableError) as error:
        assert "kernels are unavailable" in str(error)
    else:
        pytest.skip("there is a device")
    k, v = (paged.Placement(block=2048, head=128, token=128, dim=2, offset=offset) for offset in (0, 2048))
    native = paged.PagedCache([np.zeros((2, 1, 16, 1, 64), np.uint16)], tokens_per_block=16, block_count=1, k=k, v=v)
    with pytest.raises(InvalidArgumentError, match=r"sample.cache.device is 0, expected 1: a CUDA device"):
        mine.bank(space, native, [mine.Text([0])])
    native.native.device = _abi.DEVICE_CUDA
    native.native.stream = STREAM
    with pytest.raises((UnimplementedError, UnavailableError), match="kernels are unavailable"):
        mine.profile(space, native, [mine.Text([0])])
