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
    colors: dict = dataclasses.field(default_factory=dict)  # {series: colour}, instead of those of COLORS


GREEN, GREY, RED, ORANGE, YELLOW = "#56A64B", "#8E8E8E", "#E02F44", "#FF780A", "#F2CC0C"
BLUE, LIGHT_BLUE, PURPLE = "#3274D9", "#8AB8FF", "#A352CC"
# Of series that a label alone names: one value, one colour, in every panel and whatever else there is.
COLORS = {
    "outcome": {
        **dict.fromkeys(["hit", "stored", "written", "copied", "found", "answered"], GREEN),
        **dict.fromkeys(["miss", "duplicate", "gone", "shared", "nothing", "absent"], GREY),
        **dict.fromkeys(["corrupt", "failed", "rejected"], RED),
        **dict.fromkeys(["refused", "aborted", "late"], ORANGE),
        **{"staged": BLUE, "sliced": LIGHT_BLUE},
    },
    "state": {"ok": GREEN, "capped": YELLOW, "read-only": ORANGE, "out": RED},
    "tier": {"host": BLUE, "ssd": LIGHT_BLUE, "gpu": PURPLE},
}
# Segments of a device have states of their own.
SEGMENT_COLORS = {
    **{"absent": "#DDDDDD", "clean": "#C8F2C2", "ready": "#96D98D", "open": YELLOW, "full": ORANGE},
    **{"sealed": BLUE, "reclaiming": PURPLE, "set aside": RED},
}


def ratio(over, under):
    """Of two sums."""
    return f"{over} / ({under} > 0)"


def chosen(matchers):
    return "$I" + (f",{matchers}" if matchers else "")


def total(metric, by, matchers=""):
    return f"sum by ({by}) ({metric}{{{chosen(matchers)}}})"


def rate(metric, by, matchers=""):
    return f"sum by ({by}) (rate({metric}{{{chosen(matchers)}}}[$R]))"


def quantile(share, metric, by, matchers=""):
    labels = ",".join(["le", *by])
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels, matchers)})"


def of_asked(what, by="instance"):
    return ratio(rate(f"cairn_match_{what}_blocks_total", by), rate("cairn_match_asked_blocks_total", by))


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
        "Blocks found of those asked for, at lookup: what of the prompts was not computed again. Beside it, what a cache "
        "without bounds would have found of them since the daemon started: the most that more memory can win.",
        "percentunit",
        [
            (of_asked("found"), "{{instance}}"),
            ("1 - " + of_asked("first_missed"), "{{instance}}, without bounds"),
        ],
    ),
    Panel(
        "Gets by outcome",
        "Corrupt ones are faults; refused ones met a limit.",
        "ops",
        [(rate("cairn_gets_total", "outcome"), "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Hits by tier",
        "Where the bytes were.",
        "ops",
        [(rate("cairn_gets_total", "tier", 'outcome="hit",tier!="none"'), "{{tier}}")],
        stacked=True,
    ),
    Panel(
        "Effective capacity",
        "Source bytes that a stored byte stands for.",
        "suffix:×",
        [(ratio(total("cairn_source_bytes", "instance"), total("cairn_image_bytes", "instance")), "{{instance}}")],
    ),
    Panel(
        "Bytes in and out",
        "Payloads that the transports moved, or lent to clients of the host.",
        "Bps",
        [
            (rate("cairn_transport_received_bytes_total", "transport"), "in, {{transport}}"),
            (rate("cairn_transport_sent_bytes_total", "transport"), "out, {{transport}}"),
            (rate("cairn_transport_lent_bytes_total", "transport"), "lent, {{transport}}"),
        ],
    ),
    Panel(
        "Puts by outcome",
        "Duplicates are blocks that were there already.",
        "ops",
        [(rate("cairn_puts_total", "outcome"), "{{outcome}}")],
        stacked=True,
    ),
]

MEMORY = [
    Panel(
        "Used by tier",
        "As allocated. A full tier is a cache at work.",
        "bytes",
        [
            (total("cairn_tier_used_bytes", "tier"), "{{tier}}"),
            (total("cairn_tier_capacity_bytes", "tier"), "{{tier}}, of"),
        ],
    ),
    Panel(
        "Pinned and leased",
        "What eviction cannot take.",
        "bytes",
        [
            (total("cairn_tier_pinned_bytes", "tier"), "{{tier}}, pinned"),
            (total("cairn_tier_leased_bytes", "tier"), "{{tier}}, leased"),
        ],
    ),
    Panel(
        "Staging",
        "Payloads and answers in flight.",
        "bytes",
        [
            (total("cairn_staging_used_bytes", "instance"), "{{instance}}"),
            (total("cairn_staging_capacity_bytes", "instance"), "{{instance}}, of"),
        ],
    ),
    Panel("Blocks by tier", "With a copy in it.", "short", [(total("cairn_tier_blocks", "tier"), "{{tier}}")]),
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
            (total("cairn_path_jobs_running", "instance"), "{{instance}}, running"),
            (total("cairn_path_jobs_waiting", "instance"), "{{instance}}, waiting"),
            (total("cairn_path_threads", "instance"), "{{instance}}, threads"),
        ],
    ),
    Panel(
        "Processors",
        "Busy ones.",
        "short",
        [(rate("cairn_process_cpu_seconds", "instance"), "{{instance}}")],
    ),
]

LOSSES = [
    Panel(
        "Evictions by reason",
        "Blocks. A full cache evicts.",
        "ops",
        [(rate("cairn_evictions_total", "tier,reason"), "{{tier}}, {{reason}}")],
    ),
    Panel(
        "Evicted before they were written down", "Images that the SSD tier did not get in time.", "ops",
        [(rate("cairn_dirty_evictions_total", "instance"), "{{instance}}")],
    ),
    Panel(
        "Reuse and retention",
        "Nine in ten of the blocks used again had been left alone for less than *reused*: a tier that evicts sooner is too small.",
        "s",
        [
            (quantile(0.9, "cairn_block_reuse_seconds", ["instance"]), "{{instance}}, reused"),
            (quantile(0.5, "cairn_evicted_unused_seconds", ["instance", "tier"]), "{{instance}}, evicted from {{tier}}"),
        ],
    ),
    Panel(
        "Refused by code",
        "Requests of the data plane that did not go through.",
        "ops",
        [(rate("cairn_data_requests_total", "code", 'code!~"ok|not_found"'), "{{code}}")],
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
        [(rate("cairn_limit_refusals_total", "limit"), "{{limit}}")],
    ),
    Panel(
        "Broken peers and late transfers",
        "Clients that broke the rules, and transfers that were not over in time.",
        "ops",
        [
            (rate("cairn_data_peers_broken_total", "transport"), "broken, {{transport}}"),
            (rate("cairn_transport_late_transfers_total", "transport"), "late, {{transport}}"),
        ],
    ),
]

CLIENTS = [
    Panel("Sessions", "Open ones.", "short", [(total("cairn_sessions", "instance"), "{{instance}}")]),
    Panel(
        "Leases and waiters",
        "Leases keep blocks; waiters are calls of Match that wait for some.",
        "short",
        [
            (total("cairn_leases", "instance"), "{{instance}}, leases"),
            (total("cairn_waiters", "instance"), "{{instance}}, waiters"),
        ],
    ),
    Panel(
        "In flight",
        "Requests of the data plane that have arrived and are not over.",
        "short",
        [(total("cairn_data_requests_in_flight", "transport"), "{{transport}}")],
    ),
]

SUMMARY = [
    Panel("Daemons", "That answer Prometheus.", "none", [('sum(up{job="cairn"})', "")], "stat", 4),
    Panel("Hit rate", "Of all daemons together.", "percentunit", [(of_asked("found", by=""), "")], "stat", 4),
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
        [(total("cairn_ssd_state", "state"), "{{state}}")],
        stacked=True,
    ),
    Panel(
        "Written to the drives",
        "Images for the first time, and those that reclaim wrote again.",
        "Bps",
        [
            (rate("cairn_ssd_written_bytes_total", "instance,device"), "{{instance}} {{device}}"),
            (rate("cairn_ssd_carried_bytes_total", "instance,device"), "{{instance}} {{device}}, carried"),
        ],
    ),
    Panel(
        "Write amplification",
        "Bytes written to a drive for a byte of an image.",
        "suffix:×",
        [
            (
                ratio(
                    rate("cairn_ssd_io_bytes_total", "instance,device", 'op="write"'),
                    rate("cairn_ssd_written_bytes_total", "instance,device"),
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
        [(rate("cairn_ssd_read_bytes_total", "instance,device"), "{{instance}} {{device}}")],
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
            (rate("cairn_ssd_io_errors_total", "instance,device,op"), "{{instance}} {{device}}, {{op}} failed"),
            (rate("cairn_ssd_io_late_total", "instance,device,op"), "{{instance}} {{device}}, {{op}} late"),
        ],
    ),
    Panel(
        "Segments by state",
        "Too few ready ones, and reclaim does not keep up.",
        "short",
        [(total("cairn_ssd_segments", "state"), "{{state}}")],
        stacked=True,
        colors=SEGMENT_COLORS,
    ),
    Panel(
        "Waiting to be written",
        "Images that are in memory alone and are to be on a drive.",
        "short",
        [(total("cairn_images_uncopied", "instance"), "{{instance}}")],
    ),
    Panel(
        "Write-downs",
        "By how they ended.",
        "ops",
        [(rate("cairn_write_downs_total", "outcome"), "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Promotions",
        "Reads of the tier that gets asked for, by how they ended.",
        "ops",
        [(rate("cairn_promotions_total", "outcome"), "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Write budget",
        "What may be written a day, where there is a budget, and what is left of it.",
        "bytes",
        [
            (total("cairn_write_budget_bytes", "instance"), "{{instance}}, a day"),
            (total("cairn_write_budget_left_bytes", "instance"), "{{instance}}, left"),
        ],
    ),
    Panel(
        "Scrubbed",
        "Read in the background to find what rots, and what that may read.",
        "Bps",
        [
            (rate("cairn_scrubbed_bytes_total", "instance"), "{{instance}}"),
            (total("cairn_scrub_rate_bytes", "instance"), "{{instance}}, at most"),
        ],
    ),
    Panel(
        "Found again at the start",
        "Images that outlived the process before.",
        "short",
        [(total("cairn_recovered_images_total", "instance"), "{{instance}}")],
    ),
]

# Of daemons with `--members`. Others have no such series.
MEMBERS = [
    Panel(
        "Members by state",
        "As each daemon knows them, itself included. Held ones are no longer in its list.",
        "none",
        [("sum by (instance,state) (cairn_members{$I}) > 0", "{{instance}}, {{state}}")],
    ),
    Panel(
        "Members that differ",
        "Members that for a minute or more know other members than this daemon.",
        "none",
        [(total("cairn_members_differing", "instance"), "{{instance}}")],
    ),
    Panel(
        "Silence of the source",
        "Time since the list of the members was last read.",
        "s",
        [(total("cairn_member_source_seconds", "instance"), "{{instance}}")],
    ),
    Panel(
        "Matches that asked members",
        "Found: some member had blocks that this daemon lacks. Refused: too many at once.",
        "ops",
        [(rate("cairn_peer_matches_total", "outcome"), "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Blocks read from members",
        "Absent: the member no longer had it. Rejected: it failed a check, there was no room, or the member did not answer.",
        "ops",
        [(rate("cairn_peer_reads_total", "outcome"), "{{outcome}}")],
        stacked=True,
    ),
    Panel(
        "Bytes read from members",
        "Of images, as they are stored.",
        "Bps",
        [(rate("cairn_peer_read_bytes_total", "instance"), "{{instance}}")],
    ),
    Panel(
        "Time of a match at members",
        "It ends at --peer-match-ms.",
        "s",
        [(quantile(0.5, "cairn_peer_match_seconds", []), "p50"), (quantile(0.99, "cairn_peer_match_seconds", []), "p99")],
    ),
    Panel(
        "Time of a read from a member",
        "Of up to 8 blocks.",
        "s",
        [(quantile(0.5, "cairn_peer_read_seconds", []), "p50"), (quantile(0.99, "cairn_peer_read_seconds", []), "p99")],
    ),
    Panel("Greetings", "Calls that greet other members.", "ops", [(rate("cairn_member_hellos_total", "outcome"), "{{outcome}}")]),
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
    "members": ("Cairn: members", "cairn-members", [("", MEMBERS)]),
}
