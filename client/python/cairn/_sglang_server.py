# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration of SGLang's server. It returns the settings that K and V depend on
besides the weights, which a space's revision must include, and rejects settings that Cairn does not
support. It is read once, when a backend is made.

SGLang names a page by tokens, adapter and salt. Every other dependency must be in the revision, or
a page would be used in the wrong place.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

from . import identity
from .errors import FailedPreconditionError, InvalidArgumentError

FLOOR = (0, 5, 20)  # earlier versions name pages by tokens alone
_FLOOR = ".".join(str(number) for number in FLOOR)

# Settings of the namespace `model`. All are included except these, which only say how the weights
# are loaded.
_LEFT_OUT = {
    "model_path": "where the weights lie; `weights_revision` says which they are",
    "download_dir": "likewise",
    "modelopt_checkpoint_save_path": "where they are written to",
    "modelopt_export_path": "likewise",
    "weight_loader_disable_mmap": "how they are read",
    "weight_loader_prefetch_checkpoints": "likewise",
    "weight_loader_prefetch_num_threads": "likewise",
    "weight_loader_drop_cache_after_load": "likewise",
    "startup_weight_load_mode": "when they are read",
    "checkpoint_engine_wait_weights_before_ready": "likewise",
    "delete_ckpt_after_loading": "what becomes of the files",
    "model_checksum": "checks them",
    "remote_instance_weight_loader_seed_instance_ip": "which process they come from",
    "remote_instance_weight_loader_seed_instance_service_port": "likewise",
    "remote_instance_weight_loader_send_weights_group_ports": "likewise",
    "remote_instance_weight_loader_backend": "likewise",
    "remote_instance_weight_loader_start_seed_via_transfer_engine": "likewise",
    "engine_info_bootstrap_port": "likewise",
    "modelexpress_config": "likewise",
    "weight_cache_mode": "likewise",
    "weight_cache_socket": "likewise",
    "weight_cache_timeout": "likewise",
}
# Settings of other namespaces that change K, V or a state by more than the rounding of another GPU,
# or that change the content of a pool. A setting that this SGLang does not have is skipped.
_COUNTED = (
    # Settings of the computation of layers.
    "dllm_algorithm",
    "dllm_algorithm_config",
    "enable_mis",
    "enable_tf32_matmul",
    "enable_encoder_swa_bounded_replay",
    "enable_decoder_swa_bounded_replay",
    "enable_quant_communications",
    "enable_w4a4_mxfp4_megamoe",
    "flashinfer_mxfp4_moe_precision",
    "deepep_dispatcher_output_dtype",
    "kt_method",
    "kt_weight_path",
    "kt_max_deferred_experts_per_token",
    "rl_on_policy_target",
    "enable_hisparse",
    "hisparse_config",
    # Settings of the format of a pool's content.
    "prefill_kv_cache_dequant_dtype",
    "enable_deepseek_v4_fp4_indexer",
    "mamba_ssm_dtype",
    "enable_mamba_cache_stochastic_rounding",
    "enable_int8_mamba_checkpoint",
    "enable_linear_replayssm",
    "linear_replayssm_cache_len",
    "disable_hybrid_swa_memory",
    "c128_page_size",
    # Settings of the preprocessing of images and audio.
    "enable_multimodal",
    "mm_process_config",
    "image_processor_backend",
    "disable_fast_image_processor",
    "enable_precise_embedding_interpolation",
    # Settings of the draft model, whose KV is stored, too.
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_model_quantization",
    "speculative_draft_load_format",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_window_size",
    "speculative_draft_sink_size",
    "enable_multi_layer_eagle",
    "uno_lora_path",
)
# Attributes of SGLang's own model configuration, in addition to the fields of the file with
# overrides.
_DERIVED = (
    "dtype",
    "quantization",
    "context_len",
    "sliding_window_size",
    "attention_chunk_size",
    "is_fp4_experts",
)

# Ways to split a model, of the namespace `parallel`, and the place where each is included.
_KNOWN_SPLITS = {
    "tp_size": "the part's heads, or the rank of a pool of bytes",
    "pp_size": "the group's layers, or the stage and the layers of a pool of bytes",
    "attn_cp_size": "the revision's context rank",
    "enable_prefill_cp": "likewise",
    "cp_strategy": "likewise",
    "enable_cp_decode_attn_tp": "likewise; weights are cut, not KV",
    "dp_size": "replicas, which have the same pages",
    "attn_dp_size": "likewise, each with ranks of its own",
    "enable_dp_attention": "likewise",
    "ep_size": "experts, which have no KV",
    "moe_dp_size": "likewise",
    "moe_dense_tp_size": "likewise",
    "dwdp_size": "likewise",
    "max_ep_size": "likewise",
    "elastic_ep_initial_size": "likewise",
    "ep_join_rank_offset": "likewise",
    "enable_shared_experts_attn_tp": "likewise",
    "shared_experts_tp_size": "likewise",
    "enable_dense_mlp_attn_tp": "dense layers, which have no KV",
    "enable_layernorm_sp": "activations, between layers",
    "enable_megamoe_for_layernorm_sp": "likewise",
    "enable_attn_tp_input_scattered": "likewise",
    "disable_attn_tp_gather": "likewise",
    "enable_dp_lm_head": "the head, which has no KV",
    "enable_tp_lm_head_all_to_all": "likewise",
    "dcp_comm_backend": "how ranks talk",
    "dcp_replicate_q_proj": "Q, which is not kept",
    "enable_dp_attention_local_control_broadcast": "likewise",
    "enable_p2p_check": "likewise",
    "load_balance_method": "likewise",
    "pp_max_micro_batch_size": "how much at once",
    "pp_async_batch_depth": "likewise",
    "nccl_port": "where ranks meet",
    "dist_timeout": "likewise",
    "dist_init_addr": "likewise",
    "gated_launch_port": "likewise",
    "nnodes": "likewise",
    "node_rank": "likewise",
}
_ADAPTERS = "lora_paths"
_OF_ADAPTERS = ("lora_target_modules", "experts_shared_outer_loras", "lora_strict_loading")


def check_page_names() -> None:
    """Raises FailedPreconditionError if this SGLang names pages by tokens alone: requests with
    other adapters or salts would get each other's KV."""
    from sglang import version

    text = str(version.__version__)
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    numbers = tuple(int(number) for number in found.groups()) if found else (0, 0, 0)
    is_told = numbers != (0, 0, 0)  # 0.0.0: a checkout that is not installed
    if (is_told and numbers < FLOOR) or not _has_namespaces():
        raise FailedPreconditionError(
            f"SGLang {text} names pages by their tokens alone: adapters and salts would share them."
            f" Install SGLang {_FLOOR} or newer"
        )


def _has_namespaces() -> bool:
    """Returns whether chains of pages begin with a name of the adapter and the salt."""
    try:
        from sglang.srt.mem_cache.utils import storage_namespace_seed as seed
    except ImportError:
        return False
    asked = [(None, None), ("a", None), ("b", None), (None, "a"), ("a", "a"), ("a", "b")]
    return len({seed(*one) for one in asked}) == len(asked)


class Server:
    """The configuration of this SGLang process."""

    def __init__(self) -> None:
        try:
            from sglang.srt import runtime_context
            from sglang.srt.arg_groups.arg_utils import namespace_of, record_fields

            self._context = runtime_context
            self._given = runtime_context.get_server_args()
            self._model = runtime_context.process_model_config()
            self._places = dict(namespace_of(type(self._given)))
            self._fields = {field.name: field for field in record_fields(type(self._given))}
        except Exception as error:  # other versions may raise anything
            raise FailedPreconditionError(
                "SGLang's configuration, which K and V depend on, cannot be read"
                f" ({type(error).__name__}: {error}). Cairn was tried with SGLang 0.5.23"
            ) from error

    def check_splits(self) -> None:
        """Raises InvalidArgumentError, which names a way to split KV that Cairn does not know."""
        for name, place in self._places.items():
            if place != "parallel" or name in _KNOWN_SPLITS:
                continue
            given, default = getattr(self._given, name, None), self._fields[name].default
            if given != default or self._value(name) != default:
                raise InvalidArgumentError(
                    f"SGLang's {_flag(name)} is {self._value(name)!r}: Cairn does not know how"
                    f" pages are split by it. Leave it at {default!r}"
                )

    def revision(self) -> str:
        """Returns the server's part of a space's revision. Servers with equal parts have equal
        pages."""
        told = {name: self._told(name) for name in self._counted()}
        derived = {name: getattr(self._model, name, None) for name in _DERIVED}
        dtype = str(derived.pop("dtype"))
        text = identity.digest(self._model.hf_config, dtype=dtype, derived=derived, told=told)
        adapters = self._adapters()
        return f"config {text}" + (f", adapters {adapters}" if adapters else "")

    def cache_dtype(self) -> str:
        """Returns what SGLang was told of its cache's elements: "auto", "fp8_e4m3", …"""
        name = "kv_cache_dtype"
        return str(self._value(name)) if name in self._places else "auto"

    def _counted(self) -> Iterator[str]:
        for name, place in self._places.items():
            if name in _COUNTED or (place == "model" and name not in _LEFT_OUT):
                yield name

    def _told(self, name: str) -> Any:
        """Returns the value of a setting; a file name is replaced by a digest of the file."""
        value = self._value(name)
        if isinstance(value, str) and os.path.isfile(value):
            return f"file {_digest_of_file(value)}"
        return value

    def _value(self, name: str) -> Any:
        """Returns the resolved value of a setting if there is one, else the given value."""
        top, *below = self._places[name].split(".")
        context = self._context
        try:
            if top == "parallel":
                at = context.get_parallel()
            else:
                at = context.get_context().config_bag(top)
            for one in below:
                at = getattr(at, one)
            return getattr(at, name)
        except (AttributeError, ValueError):
            return getattr(self._given, name)

    def _adapters(self) -> str:
        """Returns the adapters given at the start. SGLang names them by name and path, which do not
        identify their content. Adapters that are loaded later get random names, so no server shares
        their pages."""
        adapters = self._value(_ADAPTERS) if _ADAPTERS in self._places else None
        if not adapters:
            return ""
        how = {name: self._value(name) for name in _OF_ADAPTERS if name in self._places}
        files = {
            f"{one.lora_name}\0{one.lora_path}": _files_of(one.lora_path) for one in adapters
        }
        return identity.digest(files, how=how)[:16]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _digest_of_file(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _files_of(path: str) -> dict[str, str]:
    """Returns the files of an adapter by name, each as a digest of its bytes. path: a folder, or a
    name of the hub, whose files have been downloaded."""
    folder = path
    if not os.path.isdir(folder):
        try:
            from huggingface_hub import snapshot_download

            folder = snapshot_download(path, local_files_only=True)
        except Exception as error:
            raise InvalidArgumentError(
                f"--lora-paths: {path!r} is neither a folder of this machine nor in the hub's"
                " cache: what is in it cannot be told. Give the folder that it lies in"
            ) from error
    return {
        one.name: _digest_of_file(one.path)
        for one in os.scandir(folder)
        if one.is_file() and one.name.endswith((".safetensors", ".bin", ".json", ".pt"))
    }
