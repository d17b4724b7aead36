#!/usr/bin/env python3
"""Replicas of a model behind one address, with Ray Serve: each is a process with a session on a GPU of its own.

pip install "ray[serve]"
python examples/make_model.py
python examples/ray_serve.py                    # curl -d '{"x": [[…64 numbers…]]}' 127.0.0.1:8000
python examples/ray_serve.py --try 200          # asks 200 times itself, says which replicas answered, and ends

On a cluster the same program serves from all its machines. `--gpus` is what a replica takes: 1 is a whole one, which
Ray picks by CUDA_VISIBLE_DEVICES, 0.5 shares one, and 0 is for the virtual GPU. Requests are batched in each replica.
On a busy machine Ray may take longer to start than it waits: RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=60.
"""

import argparse
import asyncio
import collections
import json
import os
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime_ep_encore as encore
import ray
from ray import serve

SIZES = [1, 2, 4, 8, 16, 32]


@serve.deployment(max_ongoing_requests=64)
class Classifier:
    def __init__(self, model):
        self.session = encore.session(model, auto_graph=True, pad={"batch": SIZES})
        self.thread = ThreadPoolExecutor(1)  # one stream, and one set of graphs

    @serve.batch(max_batch_size=SIZES[-1], batch_wait_timeout_s=0.002)
    async def classify(self, rows):
        run = lambda: self.session.run(None, {"x": np.stack(rows)})[0]
        return list(await asyncio.get_running_loop().run_in_executor(self.thread, run))

    async def __call__(self, request):
        x = np.array((await request.json())["x"], np.float32)
        y = await asyncio.gather(*map(self.classify, x))
        return {"y": np.stack(y).tolist(), "process": os.getpid()}


def try_it(url, requests, clients=8):
    def ask(number):
        x = np.random.default_rng(number).random((1 + number % 3, 64))
        with urllib.request.urlopen(url, json.dumps({"x": x.tolist()}).encode()) as response:
            answer = json.load(response)
        np.testing.assert_allclose(np.sum(answer["y"], axis=1), np.ones(len(x)), rtol=1e-3)
        return answer["process"]

    with ThreadPoolExecutor(clients) as pool:
        answered = collections.Counter(pool.map(ask, range(requests)))
    print(f"{requests} requests, by {len(answered)} replicas: {sorted(answered.values())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default="model.onnx")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--gpus", type=float, help="for each replica; default: 1, or 0 if there are none")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--try", type=int, dest="requests", metavar="REQUESTS", help="ask itself, and end")
    args = parser.parse_args()
    ray.init(include_dashboard=False)
    gpus = min(1, ray.cluster_resources().get("GPU", 0)) if args.gpus is None else args.gpus
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    deployment = Classifier.options(num_replicas=args.replicas, ray_actor_options={"num_gpus": gpus, "num_cpus": 0})
    serve.run(deployment.bind(str(args.model.resolve())))
    if args.requests:
        try_it(f"http://127.0.0.1:{args.port}", args.requests)
        serve.shutdown()
    else:
        threading.Event().wait()


if __name__ == "__main__":
    main()
