# SPDX-License-Identifier: Apache-2.0
"""The dashboards as data: rows of panels, each with its expressions.

$I stands for the instances that are chosen, $R for the range of a rate. Ratios come from rates, never from lifetime counters; a
denominator of 0 gives no value rather than NaN.
"""

import dataclasses


@dataclasses.dataclass
class Panel:
    title: str
    description: str
    unit: str  # as Grafana calls it
    queries: list  # of (expression, legend)
    kind: str = "timeseries"  # or "stat"
    width: int = 8
    stacked: bool = False


def ratio(over, under):
    """Of two sums."""
    return f"{over} / ({under} > 0)"


def quantile(share, metric, by, matchers=""):
    labels = ",".join(["le", *by])
    chosen = "$I" + (f",{matchers}" if matchers else "")
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{chosen}}}[$R])))"


def steps(metric, what):
    return Panel(
        f"Steps of a {what}, p99",
        f"Where the time of a {what} goes.",
        "s",
        [(quantile(0.99, metric, ["step"]), "{{step}}")],
    )


USEFUL = [
    Panel(
        "Hit rate",
        "Blocks found of those asked for, at lookup: what of the prompts was not computed again.",
        "percentunit",
        [
            (
                ratio(
                    "sum by (instance) (rate(cairn_match_found_blocks_total{$I}[$R]))",
                    "sum by (instance) (rate(cairn_match_asked_blocks_total{$I}[$R]))",
                ),
                "{{instance}}",
            )
        ],
    ),
    Panel(
        "Gets by outcome",
        "Corrupt ones are faults; refused ones met a limit.",
        "ops",
        [("sum by (outcome) (rate(cairn_gets_total{$I}[$R]))", "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Hits by tier",
        "Where the bytes were.",
        "ops",
        [('sum by (tier) (rate(cairn_gets_total{$I,outcome="hit",tier!="none"}[$R]))', "{{tier}}")],
        stacked=True,
    ),
    Panel(
        "Effective capacity",
        "Source bytes that a stored byte stands for.",
        "none",
        [(ratio("sum by (instance) (cairn_source_bytes{$I})", "sum by (instance) (cairn_image_bytes{$I})"), "{{instance}}")],
    ),
    Panel(
        "Bytes in and out",
        "Payloads that the transports moved.",
        "Bps",
        [
            ("sum by (transport) (rate(cairn_transport_received_bytes_total{$I}[$R]))", "in, {{transport}}"),
            ("sum by (transport) (rate(cairn_transport_sent_bytes_total{$I}[$R]))", "out, {{transport}}"),
        ],
    ),
    Panel(
        "Puts by outcome",
        "Duplicates are blocks that were there already.",
        "ops",
        [("sum by (outcome) (rate(cairn_puts_total{$I}[$R]))", "{{outcome}}")],
        stacked=True,
    ),
]

MEMORY = [
    Panel(
        "Used by tier",
        "As allocated. A full tier is a cache at work.",
        "bytes",
        [
            ("sum by (tier) (cairn_tier_used_bytes{$I})", "{{tier}}"),
            ("sum by (tier) (cairn_tier_capacity_bytes{$I})", "{{tier}}, of"),
        ],
    ),
    Panel(
        "Pinned and leased",
        "What eviction cannot take.",
        "bytes",
        [
            ("sum by (tier) (cairn_tier_pinned_bytes{$I})", "{{tier}}, pinned"),
            ("sum by (tier) (cairn_tier_leased_bytes{$I})", "{{tier}}, leased"),
        ],
    ),
    Panel(
        "Staging",
        "Payloads and answers in flight.",
        "bytes",
        [
            ("sum by (instance) (cairn_staging_used_bytes{$I})", "{{instance}}"),
            ("sum by (instance) (cairn_staging_capacity_bytes{$I})", "{{instance}}, of"),
        ],
    ),
    Panel("Blocks by tier", "With a copy in it.", "short", [("sum by (tier) (cairn_tier_blocks{$I})", "{{tier}}")]),
    Panel(
        "Stored by recipe",
        "Bytes of the images published.",
        "bytes",
        [("sum by (recipe) (cairn_recipe_image_bytes{$I}) > 0", "{{recipe}}")],
        stacked=True,
    ),
    Panel(
        "The process",
        "Anonymous memory is the daemon's own, shared memory the clients'.",
        "bytes",
        [
            ("cairn_process_anonymous_bytes{$I}", "{{instance}}, anonymous"),
            ("cairn_process_shared_bytes{$I}", "{{instance}}, shared"),
        ],
    ),
]

LATENCY = [
    Panel(
        "Requests",
        "From the arrival of a request until its reply is out.",
        "s",
        [
            (quantile(0.5, "cairn_data_request_seconds", ["op"]), "{{op}}, p50"),
            (quantile(0.99, "cairn_data_request_seconds", ["op"]), "{{op}}, p99"),
        ],
    ),
    steps("cairn_get_step_seconds", "get"),
    steps("cairn_put_step_seconds", "put"),
    Panel(
        "Match",
        "In the index, the turns of others included.",
        "s",
        [(quantile(0.5, "cairn_match_seconds", []), "p50"), (quantile(0.99, "cairn_match_seconds", []), "p99")],
    ),
    Panel(
        "Path pool",
        "Jobs that run and wait, of the threads that there are.",
        "short",
        [
            ("sum by (instance) (cairn_path_jobs_running{$I})", "{{instance}}, running"),
            ("sum by (instance) (cairn_path_jobs_waiting{$I})", "{{instance}}, waiting"),
            ("sum by (instance) (cairn_path_threads{$I})", "{{instance}}, threads"),
        ],
    ),
    Panel(
        "Processors",
        "Busy ones.",
        "short",
        [("sum by (instance) (rate(cairn_process_cpu_seconds{$I}[$R]))", "{{instance}}")],
    ),
]

LOSSES = [
    Panel(
        "Evictions by reason",
        "Blocks. A full cache evicts.",
        "ops",
        [("sum by (tier,reason) (rate(cairn_evictions_total{$I}[$R]))", "{{tier}}, {{reason}}")],
    ),
    Panel(
        "Evicted before they were written down",
        "Images that the SSD tier did not get in time.",
        "ops",
        [("sum by (instance) (rate(cairn_dirty_evictions_total{$I}[$R]))", "{{instance}}")],
    ),
    Panel(
        "Refused by code",
        "Requests of the data plane that did not go through.",
        "ops",
        [('sum by (code) (rate(cairn_data_requests_total{$I,code!~"ok|not_found"}[$R]))', "{{code}}")],
    ),
    Panel(
        "Corrupt tiles",
        "Anything above 0 is a fault of memory, a drive or the network. The reader got a miss.",
        "short",
        [("sum by (where) (increase(cairn_corrupt_tiles_total{$I}[$R]))", "{{where}}")],
    ),
    Panel(
        "Tenants at their share",
        "Refusals by limit.",
        "ops",
        [("sum by (limit) (rate(cairn_limit_refusals_total{$I}[$R]))", "{{limit}}")],
    ),
    Panel(
        "Broken peers and late transfers",
        "Clients that broke the rules, and transfers that were not over in time.",
        "ops",
        [
            ("sum by (transport) (rate(cairn_data_peers_broken_total{$I}[$R]))", "broken, {{transport}}"),
            ("sum by (transport) (rate(cairn_transport_late_transfers_total{$I}[$R]))", "late, {{transport}}"),
        ],
    ),
]

CLIENTS = [
    Panel("Sessions", "Open ones.", "short", [("sum by (instance) (cairn_sessions{$I})", "{{instance}}")]),
    Panel(
        "Leases and waiters",
        "Leases keep blocks; waiters are calls of Match that wait for some.",
        "short",
        [
            ("sum by (instance) (cairn_leases{$I})", "{{instance}}, leases"),
            ("sum by (instance) (cairn_waiters{$I})", "{{instance}}, waiters"),
        ],
    ),
    Panel(
        "In flight",
        "Requests of the data plane that have arrived and are not over.",
        "short",
        [("sum by (transport) (cairn_data_requests_in_flight{$I})", "{{transport}}")],
    ),
]

SUMMARY = [
    Panel("Daemons", "That answer Prometheus.", "none", [('sum(up{job="cairn"})', "")], "stat", 4),
    Panel(
        "Hit rate",
        "Of all daemons together.",
        "percentunit",
        [
            (
                ratio(
                    "sum(rate(cairn_match_found_blocks_total{$I}[$R]))", "sum(rate(cairn_match_asked_blocks_total{$I}[$R]))"
                ),
                "",
            )
        ],
        "stat",
        4,
    ),
    Panel("Kept", "In source bytes.", "bytes", [("sum(cairn_source_bytes{$I})", "")], "stat", 4),
    Panel("Blocks", "With an image.", "short", [("sum(cairn_blocks{$I})", "")], "stat", 4),
    Panel("Draining", "Daemons that take nothing new.", "none", [("sum(cairn_draining_state{$I})", "")], "stat", 4),
    Panel(
        "Versions",
        "More than one for long is an upgrade that did not end.",
        "none",
        [("count(count by (version) (cairn_build_info{$I}))", "")],
        "stat",
        4,
    ),
]

DRIVES = [
    Panel(
        "Devices by state",
        "Anything but ok wants a look.",
        "none",
        [('sum by (state) (cairn_ssd_state{$I})', "{{state}}")],
        stacked=True,
    ),
    Panel(
        "Written to the drives",
        "Images for the first time, and those that reclaim wrote again.",
        "Bps",
        [
            ("sum by (instance,device) (rate(cairn_ssd_written_bytes_total{$I}[$R]))", "{{instance}} {{device}}"),
            ("sum by (instance,device) (rate(cairn_ssd_carried_bytes_total{$I}[$R]))", "{{instance}} {{device}}, carried"),
        ],
    ),
    Panel(
        "Write amplification",
        "Bytes written to a drive for a byte of an image.",
        "none",
        [
            (
                ratio(
                    'sum by (instance,device) (rate(cairn_ssd_io_bytes_total{$I,op="write"}[$R]))',
                    "sum by (instance,device) (rate(cairn_ssd_written_bytes_total{$I}[$R]))",
                ),
                "{{instance}} {{device}}",
            )
        ],
    ),
    Panel(
        "Written in a day",
        "At the rate of now, of the images alone: what a drive is rated for stands in its data sheet.",
        "bytes",
        [('86400 * sum by (instance,device) (rate(cairn_ssd_io_bytes_total{$I,op="write"}[$R]))', "{{instance}} {{device}}")],
    ),
    Panel(
        "Read from the drives",
        "Images, for gets.",
        "Bps",
        [("sum by (instance,device) (rate(cairn_ssd_read_bytes_total{$I}[$R]))", "{{instance}} {{device}}")],
    ),
    Panel(
        "Transfers, p99",
        "How long the kernel had one.",
        "s",
        [(quantile(0.99, "cairn_ssd_io_seconds", ["instance", "device", "op"]), "{{instance}} {{device}}, {{op}}")],
    ),
    Panel(
        "Transfers that failed or came late",
        "A drive that fails shows here before it is out.",
        "ops",
        [
            ("sum by (instance,device,op) (rate(cairn_ssd_io_errors_total{$I}[$R]))", "{{instance}} {{device}}, {{op}} failed"),
            ("sum by (instance,device,op) (rate(cairn_ssd_io_late_total{$I}[$R]))", "{{instance}} {{device}}, {{op}} late"),
        ],
    ),
    Panel(
        "Segments by state",
        "Too few ready ones, and reclaim does not keep up.",
        "short",
        [("sum by (state) (cairn_ssd_segments{$I})", "{{state}}")],
        stacked=True,
    ),
    Panel(
        "Waiting to be written",
        "Images that are in memory alone and are to be on a drive.",
        "short",
        [("sum by (instance) (cairn_images_uncopied{$I})", "{{instance}}")],
    ),
    Panel(
        "Write-downs",
        "By how they ended.",
        "ops",
        [("sum by (outcome) (rate(cairn_write_downs_total{$I}[$R]))", "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Promotions",
        "Reads of the tier that gets asked for, by how they ended.",
        "ops",
        [("sum by (outcome) (rate(cairn_promotions_total{$I}[$R]))", "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Write budget",
        "What may be written a day, where there is a budget, and what is left of it.",
        "bytes",
        [
            ("sum by (instance) (cairn_write_budget_bytes{$I})", "{{instance}}, a day"),
            ("sum by (instance) (cairn_write_budget_left_bytes{$I})", "{{instance}}, left"),
        ],
    ),
    Panel(
        "Scrubbed",
        "Read in the background to find what rots, and what that may read.",
        "Bps",
        [
            ("sum by (instance) (rate(cairn_scrubbed_bytes_total{$I}[$R]))", "{{instance}}"),
            ("sum by (instance) (cairn_scrub_rate_bytes{$I})", "{{instance}}, at most"),
        ],
    ),
    Panel(
        "Found again at the start",
        "Images that outlived the process before.",
        "short",
        [("sum by (instance) (cairn_recovered_images_total{$I})", "{{instance}}")],
    ),
]

# By file: title, uid, rows of (title, panels).
DASHBOARDS = {
    "overview": (
        "Cairn",
        "cairn-overview",
        [
            ("", SUMMARY),
            ("Is it useful", USEFUL),
            ("Memory", MEMORY),
            ("Time", LATENCY),
            ("What goes wrong, and what goes", LOSSES),
            ("Clients", CLIENTS),
        ],
    ),
    "ssd": ("Cairn: SSD tier", "cairn-ssd", [("", DRIVES)]),
}
