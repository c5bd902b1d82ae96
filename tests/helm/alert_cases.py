# SPDX-License-Identifier: Apache-2.0
"""For each alert, series on which it fires and series on which it does not, one sample a minute, looked at after MINUTES.

In promtool's notation 0+6x40 begins at 0 and grows by 6 in each of 40 minutes. A counter begins at 0: increase() does not see its
first sample.
"""

import dataclasses

MINUTES = 40
FLAT = "0x40"


@dataclasses.dataclass
class Case:
    fires: dict  # values by series
    silent: dict
    labels: dict  # of the alert, instance and severity aside
    summary: str
    severity: str = "warning"
    instance: str = "n1"


def one(name, values, labels=""):
    joined = ",".join(part for part in ['instance="n1"', labels] if part)
    return {f"{name}{{{joined}}}": values}


def both(name, fires, silent, labels=""):
    """One series that fires by its values alone."""
    return one(name, fires, labels), one(name, silent, labels)


def grows(step, begin=0):
    return f"{begin}+{step}x{MINUTES}"


CASES = {
    "CairnDown": Case(
        one("up", "1 1 1 0x37", 'job="cairn"'),
        one("up", "1x38 0 0", 'job="cairn"') | {'up{instance="n2",job="other"}': FLAT},
        {"job": "cairn"},
        "n1 does not answer",
        "critical",
    ),
    "CairnCorruptTiles": Case(
        *both("cairn_corrupt_tiles_total", "0x30 1x10", "0 1x39", 'where="ssd"'),
        {"where": "ssd"},
        "n1 found damaged bytes: ssd",
        "critical",
    ),
    "CairnDeviceOut": Case(
        one("cairn_ssd_state", "0x30 1x10", 'device="1",state="read-only"'),
        one("cairn_ssd_state", "1x40", 'device="1",state="capped"') | one("cairn_ssd_state", FLAT, 'device="1",state="out"'),
        {"device": "1", "state": "read-only"},
        "device 1 of n1 is read-only",
        "critical",
    ),
    "CairnGpuOut": Case(
        one("cairn_gpu_state", "0x30 1x10", 'state="out"'),
        one("cairn_gpu_state", "1x40", 'state="read-only"') | one("cairn_gpu_state", FLAT, 'state="out"'),
        {"state": "out"},
        "the GPU of n1 is out",
    ),
    "CairnDeviceErrors": Case(
        *both("cairn_ssd_io_errors_total", "0x30 2x10", "0 2x39", 'device="0",op="write"'),
        {"device": "0"},
        "device 0 of n1 failed transfers",
    ),
    "CairnWriteDownLags": Case(
        one("cairn_dirty_evictions_total", grows(120), 'tier="host"')
        | one("cairn_tier_capacity_bytes", "9x40", 'tier="ssd"')
        | one("cairn_write_budget_bytes", FLAT),
        # Without an SSD tier nothing is written down; with a budget, as n2 has, not everything is to be.
        one("cairn_dirty_evictions_total", grows(120), 'tier="host"')
        | one("cairn_tier_capacity_bytes", "9x40", 'tier="host"')
        | one("cairn_write_budget_bytes", FLAT)
        | {
            'cairn_dirty_evictions_total{instance="n2",tier="host"}': grows(120),
            'cairn_tier_capacity_bytes{instance="n2",tier="ssd"}': "9x40",
            'cairn_write_budget_bytes{instance="n2"}': "5x40",
        },
        {},
        "n1 evicts images that its SSD tier did not get",
    ),
    "CairnRefusesMemory": Case(
        *both("cairn_arena_refused_total", grows(60), grows(3), 'use="placed"'),
        {},
        "n1 has no room that it may evict",
    ),
    "CairnPinnedFull": Case(
        one("cairn_tier_pinned_bytes", "95x40", 'tier="host"') | one("cairn_tier_capacity_bytes", "100x40", 'tier="host"'),
        one("cairn_tier_pinned_bytes", "89x40", 'tier="host"') | one("cairn_tier_capacity_bytes", "100x40", 'tier="host"'),
        {"tier": "host"},
        "the host tier of n1 is pinned",
    ),
    "CairnRefusesRequests": Case(
        one("cairn_data_requests_total", grows(10), 'code="resource_exhausted"')
        | one("cairn_data_requests_total", grows(90), 'code="ok"'),
        one("cairn_data_requests_total", grows(1), 'code="resource_exhausted"')
        | one("cairn_data_requests_total", grows(99), 'code="ok"'),
        {},
        "n1 refuses 10% of its requests",
    ),
    "CairnGetsSlow": Case(
        one("cairn_data_request_seconds_bucket", grows(90), 'op="get",le="0.25"')
        | one("cairn_data_request_seconds_bucket", grows(100), 'op="get",le="0.5"')
        | one("cairn_data_request_seconds_bucket", grows(100), 'op="get",le="+Inf"'),
        one("cairn_data_request_seconds_bucket", grows(100), 'op="get",le="0.25"')
        | one("cairn_data_request_seconds_bucket", grows(100), 'op="get",le="+Inf"'),
        {},
        "one get in a hundred of n1 takes 475ms",
    ),
    "CairnStuckTransfers": Case(
        *both("cairn_transport_stuck_transfers_total", "0x30 1x10", "0 1x39", 'transport="ucx"'),
        {"transport": "ucx"},
        "n1 lost memory to a transfer over ucx",
    ),
    "CairnDrainingLong": Case(
        *both("cairn_draining_state", "0x20 1x20", "0x30 1x10"),
        {},
        "n1 drains and does not end",
    ),
    "CairnLeasesExpire": Case(
        one("cairn_leases_expired_total", grows(10)) | one("cairn_leases_taken_total", grows(100)),
        one("cairn_leases_expired_total", grows(4)) | one("cairn_leases_taken_total", grows(100)),
        {},
        "clients of n1 do not give their leases back",
    ),
    "CairnCertificateEnds": Case(
        one("cairn_tls_not_after_seconds", "600000x100"),
        # Ended later, or renewed within the week.
        one("cairn_tls_not_after_seconds", "700000x100") | {'cairn_tls_not_after_seconds{instance="n2"}': "3600x30 5400x70"},
        {},
        "the certificate of n1 ends within a week",
    ),
    "CairnCertificateEndsTomorrow": Case(
        *both("cairn_tls_not_after_seconds", "80000x100", "100000x100"),
        {},
        "the certificate of n1 ends within a day",
        "critical",
    ),
    "CairnTlsFilesNotTaken": Case(
        one("cairn_tls_reload_failures_total", "0x20 1x20") | one("cairn_tls_reloads_total", FLAT),
        one("cairn_tls_reload_failures_total", "0x20 1x20") | one("cairn_tls_reloads_total", "0x21 1x19"),
        {},
        "n1 does not take its new TLS files",
    ),
    "CairnPolicyNotTaken": Case(
        one("cairn_policy_load_failures_total", "0x20 1x20") | one("cairn_policy_loads_total", "1x40"),
        one("cairn_policy_load_failures_total", "0x20 1x20") | one("cairn_policy_loads_total", "1x21 2x19"),
        {},
        "n1 does not take its new policy",
    ),
    "CairnMemberSourceSilent": Case(
        # It fires on a silence, not on an age of a list that is read each second.
        *both("cairn_member_source_seconds", "0x33 0+60x6", "0x30 0+60x4 0x5"),
        {},
        "n1 has not read its list of members for 6m 0s",
    ),
    "CairnMembersGuarded": Case(
        *both("cairn_members_guarded_state", "0x39 1", "1x39 0"),
        {},
        "n1 keeps members that its list has lost",
    ),
    "CairnMembersDiffer": Case(
        # A list that the others read a moment later is none.
        *both("cairn_members_differing", "0x30 2x10", "0x37 2x3"),
        {},
        "2 members know other members than n1",
    ),
    "CairnPeerReadsFail": Case(
        one("cairn_peer_reads_total", grows(20), 'outcome="rejected"')
        | one("cairn_peer_reads_total", grows(60), 'outcome="stored"')
        | one("cairn_peer_reads_total", FLAT, 'outcome="absent"'),
        # Blocks that a member evicted are no fault.
        one("cairn_peer_reads_total", grows(5), 'outcome="rejected"')
        | one("cairn_peer_reads_total", grows(45), 'outcome="stored"')
        | one("cairn_peer_reads_total", grows(50), 'outcome="absent"'),
        {},
        "25% of the blocks that n1 reads from members fail",
    ),
    "CairnRestarts": Case(
        *both("cairn_uptime_seconds", "0 60 0 60 0 60 0+60x34", "0 60 0 60 0+60x36"),
        {},
        "n1 began 3 times anew within an hour",
    ),
    "CairnVersionsDiffer": Case(
        one("cairn_build_info", "1x100", 'version="1"') | {'cairn_build_info{instance="n2",version="2"}': "1x100"},
        one("cairn_build_info", "1x100", 'version="1"') | {'cairn_build_info{instance="n2",version="1"}': "1x100"},
        {},
        "2 versions of cairnd run",
        instance="",
    ),
}
# For longer than the others: their `for` is an hour.
MINUTES_OF = {"CairnVersionsDiffer": 90, "CairnCertificateEnds": 90, "CairnCertificateEndsTomorrow": 90}
