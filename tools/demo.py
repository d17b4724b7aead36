"""./encore demo: reads text from a picture, once on the CPU, once on Encore eagerly, once replayed from CUDA graphs."""

import argparse
import os
import sys

import environment as env
import numpy as np
import ocr
import onnxruntime as ort
import onnxruntime_ep_encore as encore
from demo_models import EAGER, OnCpu, OnEncore, milliseconds, nodes_on, run_options
from PIL import Image, ImageDraw, ImageFont

TEXTS = ("Encore reads text", "Captured once, replayed often", "CUDA graphs: 42 nodes", "upside down")
CPU = "CPUExecutionProvider"
COLUMNS = ("model", "way", "on Encore", "on CPU", "graph nodes", "p50", "p99", "host", "graph MB", "off CPU EP by")


def main():
    parser = argparse.ArgumentParser(prog="./encore demo", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--device", choices=["cuda", "virtual"], help="default: cuda if a GPU works here, else virtual")
    parser.add_argument("--picture", metavar="FILE", help="read this picture instead of the one that the demo draws")
    parser.add_argument("--save", metavar="FILE", help="write the picture that was read")
    parser.add_argument("--seconds", type=float, default=2, help="how long each model is timed in each way; default: 2")
    arguments = parser.parse_args()

    os.environ["ENCORE_LIBRARY"] = env.library_for(arguments.device)
    os.environ.pop("ENCORE_DEVICE", None)  # heeded by then
    device = encore.devices(encore.register())[0]
    facts = device.ep_metadata
    print(f"onnxruntime {ort.__version__}, Encore {encore.__version__}: {encore.get_library_path()}")
    print(f"device: {facts['cuda_device_name']}, compute capability {facts['cuda_compute_capability']}")

    image = Image.open(arguments.picture).convert("RGB") if arguments.picture else draw(TEXTS)
    if arguments.save:
        image.save(arguments.save)
    models = ocr.models()
    on_cpu = {stage: OnCpu(file) for stage, file in models.items()}
    on_encore = {stage: OnEncore(file, device) for stage, file in models.items()}

    readings, eager_runs = read_in_each_way(image, on_cpu, on_encore)
    print_readings(readings)
    print_table(on_cpu, on_encore, eager_runs, arguments.seconds)
    if "virtual" in facts["cuda_device_name"].lower():
        print("\nThis is the virtual GPU, which computes on the CPU: its times say nothing about any GPU.")
    return verdict(readings, on_encore, eager_runs)


def draw(texts):
    """A picture of lines of text. The last one stands on its head, for the direction model to find out."""
    image = Image.new("RGB", (640, 320), "white")
    for i, text in enumerate(texts):
        font = ImageFont.load_default(40 - 4 * i)
        _, _, right, bottom = map(int, font.getbbox(text))
        line = Image.new("RGB", (right + 16, bottom + 16), "white")
        ImageDraw.Draw(line).text((8, 8), text, fill=("black", "navy", "darkred", "black")[i % 4], font=font)
        image.paste(line.rotate(180) if text is texts[-1] else line, (24, 16 + 76 * i))
    return image


def read_in_each_way(image, on_cpu, on_encore):
    """What each way reads, and the eager runs as (stage, input, output)."""
    letters = ocr.alphabet(on_cpu["recognition"].session)
    eager_runs = []

    def eagerly(stage, x):
        eager_runs.append((stage, x, on_encore[stage].run_eagerly(x)))
        return eager_runs[-1][2]

    replayed = lambda stage, x: on_encore[stage].run_as_graph(x)
    readings = {
        "CPU EP": ocr.read(image, lambda stage, x: on_cpu[stage].run(x), letters),
        "Encore, eager": ocr.read(image, eagerly, letters),
    }
    ocr.read(image, replayed, letters)  # captures a graph for each shape that comes up
    readings["Encore, graph"] = ocr.read(image, replayed, letters)
    return readings, eager_runs


def print_readings(readings):
    for way, lines in readings.items():
        print(f"\n{way} reads:")
        for line in lines:
            print(f"  {line.text!r}{' (upside down)' if line.upside_down else ''}, {line.probability:.1%} sure")


def print_table(on_cpu, on_encore, eager_runs, seconds):
    print("\nRuns of each model at its widest shape; times in ms, `host` until a run that need not wait has returned.")
    rows = [COLUMNS]
    for stage in ocr.STAGES:
        runs = [(x, y) for each, x, y in eager_runs if each == stage]
        difference = max(float(np.abs(on_cpu[stage].run(x) - y).max()) for x, y in runs)
        rows += rows_of(stage, on_cpu[stage], on_encore[stage], difference, seconds)
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        print(*(cell.ljust(width) for cell, width in zip(row[:2], widths[:2])), end="  ")
        print(*(cell.rjust(width) for cell, width in zip(row[2:], widths[2:])), sep="  ")
    for stage, model in on_encore.items():
        if left := nodes_on(model.session, CPU):
            print(f"On the CPU in {stage}: {', '.join(left)}, which work on shapes; else there would be no graph.")


def rows_of(stage, cpu, gpu, difference, seconds):
    place = gpu.widest()
    graph = next(each for each in encore.graph_report(gpu.session) if each["id"] == place.graph_id)
    if graph["state"] != "ready":
        raise env.Failed(f"{stage} has no graph: {graph['state']}, {graph['refusal']}")

    def times(graph_id):
        run = lambda options: gpu.session.run_with_iobinding(place.binding, options)
        whole, returning = run_options(graph_id), run_options(graph_id, wait=False)
        host, _ = milliseconds(lambda: run(returning), seconds / 4, between=place.binding.synchronize_outputs)
        return [f"{time:.3f}" for time in (*milliseconds(lambda: run(whole), seconds), host)]

    def nodes(session):
        return [str(len(nodes_on(session, name))) for name in (gpu.provider, CPU)]

    x = place.x.numpy()
    on_cpu = [f"{time:.3f}" for time in milliseconds(lambda: cpu.run(x), seconds)]
    held = f"{graph['held_bytes'] / 2**20:.1f}"
    off = f"{difference:.1e}"
    return [
        (stage, "CPU EP", *nodes(cpu.session), "", *on_cpu, "", "", ""),
        (stage, "eager", *nodes(gpu.session), "", *times(EAGER), "", off),
        (stage, "graph", *nodes(gpu.session), str(graph["nodes"]), *times(place.graph_id), held, off),
    ]


def verdict(readings, on_encore, eager_runs):
    """Whether all ways read the same and replays are equal to eager runs, said and as an exit status."""
    texts = [[line.text for line in lines] for lines in readings.values()]
    same_text = all(text == texts[0] for text in texts)
    same_bits = all(on_encore[stage].run_as_graph(x).tobytes() == y.tobytes() for stage, x, y in eager_runs)
    print("\nAll three read the same." if same_text else "\nTHE TEXTS DIFFER.")
    print("Replays equal eager runs to the last bit." if same_bits else "REPLAYS DIFFER FROM EAGER RUNS.")
    return 0 if same_text and same_bits else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (env.Failed, FileNotFoundError) as failure:
        sys.exit(f"encore: {failure}")
