"""LayerSplit against replicated KV, side by side: what fits, how fast prompts are computed, what stands still for it.

    bench.py ── Ask ──▶ rank_process.py: rank 0, the product's own assembly ── plans ──▶ the other ranks
       ▲  ◀── Answer ──     │ spans, a line each                                          │
       │                    ▼                                                             ▼
    records.py ◀── communication.py ◀────────────── spans.py: a file a rank ──────────────┘
       └──▶ summary.py: figures ──▶ report.py, plot.py

| file | what |
|---|---|
| `setting.py` | what is run, and how many tokens the same bytes are |
| `traffic.py` | the sessions' prompts |
| `projection.py` | what the same ownership should give on eight large GPUs: arithmetic, no measurement |

Invariants:
1. Both layouts are asked the same prompts in the same order, in turns, and have the same bytes of KV a rank.
2. A point that is recorded is never run again; what a record says, every figure is made of.
"""
