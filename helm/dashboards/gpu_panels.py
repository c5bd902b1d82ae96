# SPDX-License-Identifier: Apache-2.0
"""Panels of daemons with `--gpu`: what the device codes, and copies in its memory. Others have no such series."""

from panels import Panel, quantile, rate, ratio, total

GPU = [
    Panel(
        "Coded on the device",
        "Source bytes that the device encoded for puts and decoded for gets.",
        "Bps",
        [(rate("cairn_gpu_codec_source_bytes_total", "op"), "{{op}}")],
    ),
    Panel(
        "Images of a batch",
        "Work that waits together is coded together: more is better for the device.",
        "short",
        [(ratio(rate("cairn_gpu_codec_batch_images_sum", "op"), rate("cairn_gpu_codec_batch_images_count", "op")), "{{op}}")],
    ),
    Panel(
        "Time of a batch, p50, by recipe",
        "From the time that a batch is put on the device until it is known to be over.",
        "s",
        [(quantile(0.5, "cairn_gpu_codec_seconds", ["op", "recipe"]), "{{op}} {{recipe}}")],
    ),
    Panel(
        "Left to processors",
        "Images that the device was to code and did not, by reason. None of them costs an answer.",
        "ops",
        [(rate("cairn_gpu_codec_fallbacks_total", "reason"), "{{reason}}")],
        stacked=True,
    ),
    Panel(
        "Waiting for the device",
        "Images that are to be coded, and blocks that are to be copied to it.",
        "short",
        [
            (total("cairn_gpu_codec_waiting", "op"), "{{op}}"),
            (total("cairn_gpu_copies_waiting", "instance"), "{{instance}}, copies"),
        ],
    ),
    Panel(
        "State",
        "1 is the state that the device is in. One that is out stays so until the daemon starts again; processors and drives serve.",
        "short",
        [(total("cairn_gpu_state", "state"), "{{state}}")],
    ),
    Panel(
        "Copies on the device",
        "Bytes of the GPU tier.",
        "bytes",
        [(total("cairn_tier_used_bytes", "instance", 'tier="gpu"'), "{{instance}}")],
        stacked=True,
    ),
    Panel(
        "Copied",
        "Bytes of images to the device, and back from it for gets.",
        "Bps",
        [(rate("cairn_gpu_bytes_total", "op"), "{{op}}")],
    ),
    Panel(
        "Faults",
        "Copies to and from the device that failed.",
        "short",
        [(total("cairn_gpu_faults_total", "instance"), "{{instance}}")],
    ),
]
