#!/usr/bin/env python3
"""Times models that onnxruntime takes apart, by control flow or by sizes that depend on data: eagerly and with
automatic graphs of their pieces, through run(None, feeds).

    bench/pieces.py [--models detector,voice] [--seconds 0.5] [--options enable_cudnn=1] [--json FILE]

  detector   twelve convolutions of 64 channels, 320 × 320, and NonMaxSuppression
  voice      a network for each of two sampling rates, in an If, as silero-vad has them
  decoding   greedily, twenty tokens, by a Loop whose body is a model of two layers, with GroupQueryAttention
  static     the same with a cache of a fixed size, and attention spelled out
  exported   an encoder's layer with dynamic axes, by torch's older exporter
Medians in microseconds:
  apart      node by node, but for groups that are one (regions=0)
  eager      by regions
  pieces     auto_graph=1, conditional_nodes=0: what data decides onnxruntime runs
  automatic  auto_graph=1
and of the latter's runs of pieces the share that was replayed.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import onnxruntime_ep_encore  # noqa: E402
import pieces  # noqa: E402
from models import es  # noqa: E402  (which have named the provider)
from pieces import FLOAT, INT, some  # noqa: E402

PAST = (1, pieces.HEADS, pieces.CAPACITY, pieces.WIDTH // pieces.HEADS)
TOKENS = [{"k": np.array(20), "first": INT([[first]]), "past": np.zeros(PAST, FLOAT)} for first in (3, 7, 11)]
VOICE = {"state": np.zeros((2, 1, 16), FLOAT), "rate": np.array(16000)}
# Each model, and the feeds of runs that take turns.
MODELS = {
    "detector": (
        lambda: pieces.detector(64, 12),
        [{"picture": some(1, 3, 320, 320, seed=seed), "threshold": FLOAT([0.5])} for seed in range(4)],
    ),
    "voice": (pieces.voice_activity, [{"x": some(1, 320, seed=seed), **VOICE} for seed in range(4)]),
    "decoding": (lambda: pieces.decoder(pieces.shared), TOKENS),
    "static": (lambda: pieces.decoder(pieces.fixed), TOKENS),
    "exported": (
        pieces.exported,
        [{"x": some(8, 16, 32, seed=seed), "mask": np.ones((8, 16), INT)} for seed in range(4)],
    ),
}


WAYS = {
    "apart": {"regions": 0},
    "eager": {"auto_graph": 0},
    "pieces": {"auto_graph": 1, "conditional_nodes": 0},
    "automatic": {"auto_graph": 1},
}


def row(name, seconds, options):
    make, feeds = MODELS[name]
    model, out = make(), {"model": name}
    for way, chosen in WAYS.items():
        session, at = es.make_session(model, **{"use_tf32": 1, **chosen, **options}), 0

        def run(session=session):
            nonlocal at
            session.run(None, feeds[at % len(feeds)])
            at += 1

        out[way] = models.median_us(run, seconds, warm=50)
    report = onnxruntime_ep_encore.region_report(session)
    ran = [sum(one[kind] for kind in ("replays", "captures", "eager", "first_runs")) for one in report]
    out["replayed %"] = 100 * sum(one["replays"] for one in report) / max(1, sum(ran))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    models.add_arguments(parser)
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    options = models.provider_options(args)
    header = ["model", *WAYS, "replayed %"]
    models.print_table(header, (row(name, args.seconds, options) for name in args.models.split(",")), args.json)


if __name__ == "__main__":
    main()
