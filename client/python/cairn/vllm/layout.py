# SPDX-License-Identifier: Apache-2.0
"""Finds the layout of vLLM's KV cache from shapes and strides. On a CPU, the shape does not show
the layout, so it is derived from vLLM's kernels. An unknown layout is refused by name and never
guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgumentError
from ..paged import PagedCache, Placement
from ..tensors import Tensor, describe
from .kinds import Shape

_ORDERS = ("NH", "HN")  # of the tokens and heads of a block in the names of vLLM's layouts

TILED = "amx"  # K in tiles [token/16, dim/2, 16, 2], V in tiles [dim/16, token/2, 16, 2]
TRANSPOSED = "vec"  # K as [dim, token], V as [token, dim]


def paged_cache(
    layers: Sequence[Any],
    shape: Shape,
    kernels: str | None,
    stream: int | None = None,
) -> PagedCache:
    """Describes the layers' arrays. kernels: the layout's name in vLLM's CPU backend; None for
    other backends. stream: the stream of moves for arrays on a CUDA device. Raises
    InvalidArgumentError, which names the layout, if it is unknown."""
    first = describe("the KV cache", layers[0], may_be_cuda=True)
    v: Placement | None
    if kernels is not None and first.cuda_device is None:
        if shape.is_latent or shape.v_dim is not None:
            raise _refuse(f"vLLM's kernels are {kernels!r}, which have K and V alike", first, shape)
        tokens, k, v = _of_processor(first, shape, kernels)
        blocks = first.shape[0]
    else:
        blocks, tokens, k, v = _of_strides(first, shape)
    if first.cuda_device is not None and (k.dim != first.itemsize or min(first.strides) < 0):
        raise _refuse("on a device the channels of a row are adjacent", first, shape)
    return PagedCache(layers, tokens_per_block=tokens, block_count=blocks, k=k, v=v, stream=stream)


def coded_order(engine_layout: str | None) -> str:
    """Returns the order of tokens and heads of a block in one of vLLM's layouts, such as LBNHC.
    Empty: vLLM does not tell the layout."""
    order = "".join(axis for axis in engine_layout or "" if axis in "NH")
    return order if order in _ORDERS else ""


def coded_arrays(
    layers: Sequence[Any], shape: Shape, block_tokens: int, engine_layout: str | None
) -> list[Any]:
    """Returns views of arrays [blocks, slots, tokens, bytes] of coded rows, in which the bytes of a
    block are in the order of its memory. block_tokens: tokens of one of the scheduler's blocks. Raises
    InvalidArgumentError, which names the layout, if it is not the one that the space is named after."""
    first = describe("the KV cache", layers[0], may_be_cuda=True)
    if len(first.shape) != 4 or first.shape[1:3] != (shape.slots, block_tokens):
        raise InvalidArgumentError(
            "the KV cache's layout is not known: coded rows are not [blocks, slots, tokens, bytes] of"
            f" {shape.slots} slots and {block_tokens} tokens, but {first.dtype} {first.shape}"
        )
    if 1 in first.shape[1:3]:  # there is one order
        return list(layers)
    is_tokens_first = first.strides[2] > first.strides[1]
    found = _ORDERS[0] if is_tokens_first else _ORDERS[1]
    if found != coded_order(engine_layout):
        raise InvalidArgumentError(
            f"the KV cache's layout is not known: vLLM names it {engine_layout}, and coded rows have"
            f" strides {first.strides} for {first.shape}"
        )
    return [layer.swapaxes(1, 2) for layer in layers] if is_tokens_first else list(layers)


def cuda_device(layer: Any) -> int | None:
    """Returns the number of the CUDA device that has a layer's array. None: it is in host memory.
    """
    return describe("the KV cache", layer, may_be_cuda=True).cuda_device


def _refuse(what: str, tensor: Tensor, shape: Shape) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the KV cache's layout is not known: {what}; {tensor.dtype} {tensor.shape}, strides"
        f" {tensor.strides}, for {shape.heads} heads of {shape.dim}"
        f"{'' if shape.v_dim is None else f' and {shape.v_dim}'}"
    )


def _of_processor(
    tensor: Tensor, shape: Shape, kernels: str
) -> tuple[int, Placement, Placement]:
    """The shape is [blocks, heads, tokens, 2 * dim], but each head has all of K first, then all of
    V."""
    if kernels not in (TILED, TRANSPOSED):
        raise _refuse(f"vLLM's kernels are {kernels!r}", tensor, shape)
    item = tensor.itemsize
    if len(tensor.shape) != 4 or tensor.shape[1] != shape.heads:
        raise _refuse("it is not [blocks, heads, tokens, 2 * dim]", tensor, shape)
    tokens, row = tensor.shape[2:]
    if row != 2 * shape.dim or tensor.strides[2:] != (row * item, item):
        raise _refuse("a head's K and V are not one piece", tensor, shape)
    block, head = tensor.strides[:2]
    half = tokens * shape.dim * item
    if kernels == TRANSPOSED:
        if item > 2:
            raise _refuse(f"{kernels!r} with elements of {item} bytes", tensor, shape)
        return (
            tokens,
            Placement(block, head, token=item, dim=tokens * item),
            Placement(block, head, token=shape.dim * item, dim=item, offset=half),
        )
    if item > 2 or tokens % 32 or shape.dim % 32:
        raise _refuse(f"{kernels!r} needs bf16 or 8 bits, and tokens and dim in 32s", tensor, shape)
    return (
        tokens,
        Placement(
            block,
            head,
            token=2 * item,
            dim=item,
            tokens_per_run=16,
            token_run=16 * shape.dim * item,
            dims_per_run=2,
            dim_run=32 * item,
        ),
        Placement(
            block,
            head,
            token=item,
            dim=2 * item,
            offset=half,
            tokens_per_run=2,
            token_run=32 * item,
            dims_per_run=16,
            dim_run=16 * tokens * item,
        ),
    )


def _of_strides(tensor: Tensor, shape: Shape) -> tuple[int, int, Placement, Placement | None]:
    """Returns the placement from strides: [blocks, heads, tokens, K then V], with any strides. A
    latent has only K."""
    extents = tensor.shape
    if len(extents) != 4 or (extents[1], extents[3]) != (shape.heads, shape.row):
        row = "dim" if shape.is_latent else "2 * dim"
        if shape.v_dim is not None:
            row = "channels of K and of V"
        raise _refuse(f"it is not [blocks, heads, tokens, {row}]", tensor, shape)
    block, head, token, dim = tensor.strides
    k = Placement(block, head, token, dim)
    if shape.is_latent:
        return extents[0], extents[2], k, None
    return extents[0], extents[2], k, Placement(block, head, token, dim, offset=shape.dim * dim)
