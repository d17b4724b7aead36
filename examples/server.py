#!/usr/bin/env python3
"""An HTTP server that batches: requests from many clients become a few large runs, each replayed from a CUDA graph.

python examples/make_model.py
python examples/server.py                 # and, elsewhere: curl -d '{"x": [[…64 numbers…]]}' 127.0.0.1:8000
python examples/server.py --try 400       # clients of its own, and what each of 400 requests took

One thread runs the model. It takes what is waiting, up to the largest batch, and waits for more no longer than
`--wait` milliseconds. `pad` makes each batch one of a few sizes, whose graphs are there before the first request.
"""

import argparse
import json
import queue
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime_ep_encore as encore

SIZES = [1, 2, 4, 8, 16, 32]
FEATURES = 64


class Batcher:
    """Rows from any thread, run together: submit(x) is a future of y."""

    def __init__(self, model, wait):
        self.session = encore.session(model, auto_graph=True, pad={"batch": SIZES})
        self.wait = wait
        self.batches = self.rows = 0  # that were run
        self.waiting = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()
        for rows in range(1, SIZES[-1] + 1):  # so that all graphs are there, of the thread that runs the model
            for _ in range(3):
                self.submit(np.zeros((rows, FEATURES), np.float32)).result()
        self.batches = self.rows = 0

    def submit(self, x):
        if x.ndim != 2 or x.shape[1] != FEATURES or not 1 <= len(x) <= SIZES[-1]:
            raise ValueError(f"x is {list(x.shape)}; it must be [1 to {SIZES[-1]}, {FEATURES}]")
        future = Future()
        self.waiting.put((x, future))
        return future

    def _run(self):
        batch = []
        while True:
            batch, left = self._collect(batch)
            futures = [future for _, future in batch]
            try:
                (y,) = self.session.run(None, {"x": np.concatenate([x for x, _ in batch])})
                self.batches, self.rows = self.batches + 1, self.rows + len(y)
                ends = np.cumsum([len(x) for x, _ in batch])[:-1]
                for future, part in zip(futures, np.split(y, ends)):
                    future.set_result(part)
            except Exception as error:
                for future in futures:
                    future.set_exception(error)
            batch = left

    def _collect(self, batch):
        """What to run now, and what came with it that has no room."""
        batch = batch or [self.waiting.get()]
        rows, end = len(batch[0][0]), time.monotonic() + self.wait
        while rows < SIZES[-1]:
            try:
                item = self.waiting.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                break
            if rows + len(item[0]) > SIZES[-1]:
                return batch, [item]
            batch.append(item)
            rows += len(item[0])
        return batch, []


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # clients that may connect at once


def make_server(batcher, port):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # which keeps connections
        disable_nagle_algorithm = True

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                x = np.array(json.loads(body)["x"], np.float32)
                answer, status = {"y": batcher.submit(x).result().tolist()}, 200
            except (KeyError, TypeError, ValueError) as error:
                answer, status = {"error": str(error)}, 400
            except Exception as error:
                answer, status = {"error": str(error)}, 500
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Server(("127.0.0.1", port), Handler)


def try_it(batcher, port, requests, clients=16):
    """Clients that ask one after the other, each for one to three rows; prints what they waited."""

    def client(number):
        connection = HTTPConnection("127.0.0.1", port)
        rng, times = np.random.default_rng(number), []
        for _ in range(number, requests, clients):
            body = json.dumps({"x": rng.random((rng.integers(1, 3, endpoint=True), FEATURES)).tolist()})
            start = time.monotonic()
            connection.request("POST", "/", body)
            answer = json.loads(connection.getresponse().read())
            times.append(1000 * (time.monotonic() - start))
            np.testing.assert_allclose(np.sum(answer["y"], axis=1), 1, rtol=1e-3)
        return times

    with ThreadPoolExecutor(clients) as pool:
        times = np.concatenate(list(pool.map(client, range(clients))))
    p50, p99 = np.percentile(times, [50, 99])
    print(f"{len(times)} requests of {clients} clients: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"{batcher.rows} rows in {batcher.batches} batches, {batcher.rows / batcher.batches:.1f} each")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="model.onnx")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--wait", type=float, default=2, metavar="MS", help="for more requests; default: 2")
    parser.add_argument("--try", type=int, dest="requests", metavar="REQUESTS", help="of its own clients, and end")
    args = parser.parse_args()
    batcher = Batcher(args.model, args.wait / 1000)
    server = make_server(batcher, 0 if args.requests else args.port)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    if args.requests:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try_it(batcher, server.server_port, args.requests)
    else:
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
