# SPDX-License-Identifier: Apache-2.0
"""Pages of HTML: axes with round ticks, nothing that is not there, nothing from elsewhere."""

import re
from xml.etree import ElementTree

import pytest
from cairn.evaluate import Evaluation, Loss
from cairn.evaluate.page import make_page as evaluate_page
from cairn.evaluate.terminal import make_table
from cairn.pages import replay
from cairn.pages.chart import chart


def calls_of(count, p50_us, p99_us):
    times = {"count": count, "p50_us": p50_us, "p90_us": p50_us, "p99_us": p99_us, "max_us": p99_us}
    return dict.fromkeys(("match", "get", "put"), times)


def report_of(minutes, windows):
    hits = {"blocks": 30, "tokens": 15360, "block_rate": 0.3, "token_rate": 0.25}
    return {
        "trace": "<trace>.jsonl",
        "trace_ms": minutes * 60000,
        "recipe": "exact",
        "block_bytes": 65536,
        "parallel": 4,
        "elapsed_ms": 1500,
        "requests": 1000,
        "blocks": 100,
        "distinct_blocks": 50,
        "hits": {"host": hits, "ssd": hits, "all": hits, "unbounded": hits},
        "calls": calls_of(1000, 150, 8000),
        "get_wire_bytes": 1 << 30,
        "put_wire_bytes": 3 << 20,
        "stored_blocks": 50,
        "stored_bytes": 3 << 20,
        "wrong_bytes": 0,
        "late_calls": 0,
        "errors": {"put RESOURCE_EXHAUSTED": 2},
        "tiers": [{"tier": "host", "used_bytes": 3 << 20, "capacity_bytes": 1 << 26, "evicted_for_index": 0}],
        "windows": windows,
    }


def window_of(asked=10, host=3, ssd=2, count=5):
    return {"asked": asked, "ceiling": 7 if asked else 0, "hits": {"host": host, "ssd": ssd}, "calls": calls_of(count, 150, 8000)}


def charts_of(page):
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def texts_of(svg):
    return [text.strip() for element in svg.iter("text") for text in element.itertext()]


@pytest.mark.parametrize(
    ("minutes", "ticks"),
    [(59, ["10 min", "50 min"]), (3, ["0.5 min", "2.5 min"]), (60 * 30, ["6 h", "24 h"]), (0.05, ["1 s", "2 s"])],
)
def test_axes_of_a_replay_have_round_ticks(minutes, ticks):
    page = replay.make_page(report_of(minutes, [window_of() for _ in range(120)]))
    hits, latency = charts_of(page)
    assert set(ticks) <= set(texts_of(hits)), texts_of(hits)
    assert {"0%", "25%", "100%", "host", "ssd", "unbounded store"} <= set(texts_of(hits))
    scale = [text for text in texts_of(latency) if re.fullmatch(r"[\d.]+ (µs|ms)|[\d.]+ s", text) and text not in ticks]
    assert {"100 µs", "1 ms", "10 ms"} == {text for text in scale if "µs" in text or "ms" in text}, "as far as calls took"


def test_a_page_of_a_replay_names_nothing_elsewhere():
    page = replay.make_page(report_of(10, [window_of() for _ in range(4)]))
    assert "://" not in page and "<script" not in page
    assert "Replay of &lt;trace&gt;.jsonl" in page
    assert "failed: put RESOURCE_EXHAUSTED" in page and "3 MiB of 64 MiB" in page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "of two charts"
    for name in re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', page):
        assert "".join(name) in ids


def test_windows_without_requests_are_left_out():
    idle = window_of(asked=0, host=0, ssd=0, count=0)
    page = replay.make_page(report_of(10, [window_of(), idle, window_of()]))
    assert len(charts_of(page)) == 2
    assert len(charts_of(replay.make_page(report_of(10, [idle, idle])))) == 2


def evaluation(recipe, bits, error, **more):
    return Evaluation(
        recipe=recipe,
        bits=bits,
        ratio=16 / bits,
        k_error=error,
        v_error=error,
        layers=[0, 1],
        k_error_by_layer=[error, error],
        v_error_by_layer=[error, error],
        attention_error_by_layer=[None, None],
        encode_rate=1e9,
        decode_rate=1e9,
        **more,
    )


ABOUT = {"name": "dump", "tokens": 128, "layers": 2, "dtype": "bf16", "copy_rate": 1e9, "notes": [], "warnings": [], "not_measured": {}}


def test_columns_without_a_value_are_not_shown():
    found = [evaluation("exact", 10.5, 0.0), evaluation("kivi:4", 4.4, 0.1)]
    table = make_table(found, ABOUT)
    assert "K error" in table and "KL" not in table and "ppl" not in table and "unavailable" not in table
    page = evaluate_page(found, found[1], Loss("kv_error", 0.2), ABOUT)
    heads = re.findall(r"<th>([^<]*)</th>", page.partition("Figures")[2].partition("</thead>")[0])
    assert "bits" in heads and not {"KL, nats", "ppl ×", "top-1", "attention (worst layer)"} & set(heads)
    judged = dict(kl=0.01, kl_error=0.001, kl_trimmed=0.01, perplexity_ratio=1.0, perplexity_error=0.0, same_top=0.9)
    table = make_table([found[0], evaluation("kivi:4", 4.4, 0.1, **judged)], ABOUT)
    assert "KL" in table and re.search(r"^exact .*–", table, re.MULTILINE)


def test_names_of_a_plot_stand_inside_it_and_apart():
    """Of the recipes that none beats; the others' are for the mouse."""
    recipes = [("exact", 10.5, 0.0), ("kivi:8", 8.4, 0.001), ("kivi:4", 4.4, 0.1), ("fp8", 8.5, 0.2)]
    recipes += [(f"cairn:{bits}", bits, 0.4 - bits / 20) for bits in (2.3, 2.35, 2.4, 3.0)]
    found = [evaluation(*one) for one in recipes]
    (svg,) = charts_of(evaluate_page(found, found[2], Loss("kv_error", 0.2), ABOUT))
    texts, hints = texts_of(svg), [element.text for element in svg.iter("title")]
    assert {"exact", "kivi:8", "kivi:4", "cairn:2.3"} <= set(texts) and "fp8" not in texts
    assert any(hint.startswith("fp8: 8.50 bits") for hint in hints) and len(hints) == len(found)
    assert {"2", "3", "4", "6", "8"} <= set(texts)


def test_one_drawing_makes_one_file():
    drawn = [chart("a title", (3, 2), (0.5, 0.1, 0.3, 0.3), lambda axes: axes.plot([1, 2])) for _ in range(2)]
    assert drawn[0] == drawn[1] and 'aria-label="a title"' in drawn[0]
