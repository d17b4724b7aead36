#!/usr/bin/env python3
"""Finds speech in a stream of sound, with the model of silero-vad (MIT): one CUDA graph, whose state stays on the GPU.

pip install --no-deps silero-vad
python examples/speech.py [sound.wav]        # 16 kHz, one channel, 16 bits; without any, it makes a vowel

The model reads 32 ms at a time and hands its state from one run to the next. Here both are one buffer: a run reads the
state there and leaves the next one in its place, so that all the host copies is the sound. Needs onnxruntime 1.26.
"""

import importlib.util
import sys
import time
import wave
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore

RATE, CHUNK, CONTEXT = 16000, 512, 64  # the model sees the end of the chunk before, too
THRESHOLD = 0.5


def find_model():
    package = importlib.util.find_spec("silero_vad")
    if package is None:
        sys.exit("speech.py needs the model of silero-vad: pip install --no-deps silero-vad==6.2.3")
    return Path(package.submodule_search_locations[0]) / "data" / "silero_vad_half.onnx"


def read(file):
    with wave.open(file) as sound:
        form = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
        if form != (RATE, 1, 2):
            sys.exit(f"{file} has rate, channels and bytes {form}; they have to be {(RATE, 1, 2)}")
        return np.frombuffer(sound.readframes(sound.getnframes()), np.int16).astype(np.float32) / 32768


def make_vowel():
    """Three seconds of which the middle one is an 'a': pulses of a voice, and what a mouth makes of them."""
    t = np.arange(3 * RATE) / RATE
    pulses = (np.cumsum(120 + 10 * np.sin(2 * np.pi * 3 * t)) / RATE % 1 < 0.1) - 0.1
    for formant, width in ((700, 90), (1220, 110), (2600, 170)):
        rings = np.exp(-np.pi * width * t[:800]) * np.sin(2 * np.pi * formant * t[:800])
        pulses = np.convolve(pulses, rings)[: len(t)]
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (0.5 * pulses / abs(pulses).max() * ((t > 1) & (t < 2)) + 0.003 * noise).astype(np.float32)


class Detector:
    def __init__(self):
        self.session = encore.session(str(find_model()), enable_cuda_graph=True)
        on_device = lambda *shape: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32), "cuda", 0)
        self.input, self.state, self.output = on_device(1, CONTEXT + CHUNK), on_device(2, 1, 128), on_device(1, 1)
        self.binding = self.session.io_binding()
        self.binding.bind_ortvalue_input("input", self.input)
        self.binding.bind_ortvalue_input("state", self.state)
        self.binding.bind_ortvalue_output("output", self.output)
        self.binding.bind_ortvalue_output("stateN", self.state)
        self.session.run_with_iobinding(self.binding)  # warms up and captures, which are runs that advance the state
        self.reset()

    def reset(self):
        """For another sound."""
        self.state.update_inplace(np.zeros((2, 1, 128), np.float32))
        self.context = np.zeros(CONTEXT, np.float32)

    def hear(self, chunk):
        """How probable speech is in the next 32 ms."""
        self.input.update_inplace(np.concatenate([self.context, chunk])[None])
        self.context = chunk[-CONTEXT:]
        self.session.run_with_iobinding(self.binding)
        return float(self.output.numpy()[0, 0])


def main():
    sound = read(sys.argv[1]) if len(sys.argv) > 1 else make_vowel()
    detector = Detector()
    start = time.perf_counter()
    heard = [detector.hear(sound[i : i + CHUNK]) > THRESHOLD for i in range(0, len(sound) - CHUNK + 1, CHUNK)]
    took = (time.perf_counter() - start) * 1000 / len(heard)
    print(f"{len(heard)} chunks of {1000 * CHUNK / RATE:.0f} ms, {took:.2f} ms each")
    edges = np.flatnonzero(np.diff(heard, prepend=False, append=False)).reshape(-1, 2) * CHUNK / RATE
    for begin, end in edges:
        print(f"speech from {begin:.1f} s to {end:.1f} s")


if __name__ == "__main__":
    main()
