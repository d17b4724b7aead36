"""The wheel that $ENCORE_WHEEL names, installed by pip in an environment of its own: the suite's stage `wheel`."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WHEEL = Path(os.environ["ENCORE_WHEEL"])
LARGEST_BYTES = 80_000_000
FILE = "libonnxruntime_providers_cuda_plugin.so"
# What each Linux of that glibc has.
SYSTEMS = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
ORTS = os.environ["ENCORE_WHEEL_ORTS"].split()

RUN = """
import sys
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore

x, wanted = np.load("x.npy"), np.load("y.npy")
session = encore.session("model.onnx", use_tf32=False)
for _ in range(3):
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
assert encore.region_report(session)[0]["replays"], encore.region_report(session)
if tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 26):
    session = encore.session("model.onnx", use_tf32=False, enable_cuda_graph=True)
    on_device = ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, 0x10DE)
    result = ort.OrtValue.ortvalue_from_shape_and_type(wanted.shape, np.float32, "gpu", 0, 0x10DE)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", on_device)
    binding.bind_ortvalue_output("y", result)
    session.run_with_iobinding(binding)
    on_device.update_inplace(-x)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(result.numpy(), np.load("y_of_minus_x.npy"), rtol=1e-5)
    (report,) = encore.graph_report(session)
    assert (report["state"], report["replays"]) == ("ready", 1), report
print(encore.__file__)
print(encore.devices()[0].ep_metadata["cuda_device_name"])
"""


@pytest.fixture(scope="module", params=ORTS)
def environment(request, tmp_path_factory):
    """A virtual environment with the wheel, numpy and an onnxruntime; and a folder to be in."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    wanted = [WHEEL, f"onnxruntime=={request.param}", f"numpy=={np.__version__}"]
    subprocess.run([folder / "venv" / "bin" / "pip", "install", "-q", *wanted], check=True)
    return folder


@pytest.fixture(scope="module")
def folder(environment):
    """With a model, y = relu(x @ w) + x, inputs and what it makes of them."""
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (8, 8)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8])] for name in "xy"]
    graph = helper.make_graph(nodes, "test", *ends, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, environment / "model.onnx")
    np.save(environment / "x.npy", x)
    for name, value in {"y": x, "y_of_minus_x": -x}.items():
        np.save(environment / f"{name}.npy", np.maximum(value @ w, 0) + value)
    return environment


def run(folder, program, *arguments, **variables):
    """In it, with nothing of the checkout's or of other GPUs, and no variables of Encore's."""
    kept = {key: os.environ[key] for key in ("HOME", "PATH", "TMPDIR") if key in os.environ}
    return subprocess.run(
        [folder / "venv" / "bin" / program, *arguments],
        cwd=folder,
        env={**kept, "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- the file


def test_what_is_inside():
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        words = wheel.read(about).decode()
    libraries = {f"onnxruntime_ep_encore/{device}/{FILE}" for device in ("cuda", "virtual")}
    assert {name for name in names if ".so" in name} == libraries
    assert {f"onnxruntime_ep_encore/{device}/cmake/encore-config.cmake" for device in ("cuda", "virtual")} <= set(names)
    assert {name.split("/")[0] for name in names} == {"onnxruntime_ep_encore", about.split("/")[0]}
    assert not [name for name in names if "__pycache__" in name]
    assert "Name: onnxruntime-ep-encore\n" in words and "Provides-Extra: cuda\n" in words
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY.txt"}
    assert WHEEL.stat().st_size < LARGEST_BYTES


def test_for_which_systems_it_is(tmp_path):
    assert re.fullmatch(r"onnxruntime_ep_encore-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", WHEEL.name)
    glibc = tuple(int(part) for part in re.search(r"manylinux_(\d+)_(\d+)", WHEEL.name).groups())
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(tmp_path)
    for device in ("cuda", "virtual"):
        library = tmp_path / "onnxruntime_ep_encore" / device / FILE
        said = subprocess.run(["readelf", "-dVW", library], capture_output=True, text=True, check=True).stdout
        assert set(re.findall(r"NEEDED.*\[(.*)\]", said)) <= SYSTEMS
        versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", said)}
        assert max(versions) <= glibc
        sections = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
        assert ".debug" not in sections and ".symtab" not in sections


# ---- the package


def test_a_model_runs_and_a_graph_is_replayed_on_the_virtual_gpu(folder):
    done = run(folder, "python", "-c", RUN)
    assert done.returncode == 0, done.stderr
    file, device = done.stdout.splitlines()
    assert Path(file).is_relative_to(folder / "venv") and device.startswith("Encore virtual GPU")
    (line,) = [line for line in done.stderr.splitlines() if "Encore computes on the CPU" in line]
    assert "no GPU works here" in line


@pytest.mark.parametrize("command", [["encore"], ["python", "-m", "onnxruntime_ep_encore"]], ids=" ".join)
def test_the_command(folder, command):
    machine = run(folder, *command, "check")
    assert machine.returncode == 0, machine.stdout + machine.stderr
    assert "a model of one node ran on Encore virtual GPU" in machine.stdout
    assert "This is the virtual GPU, which computes on the CPU: no GPU works here" in machine.stdout
    model = run(folder, *command, "check", "model.onnx", "--shape", "n=3")
    assert model.returncode == 0, model.stderr
    assert "0 elsewhere" in model.stdout and "agreement   with the CPU" in model.stdout
    timed = run(folder, *command, "bench", "model.onnx", "--shape", "n=3", "--seconds", "0.01", "--no-cpu")
    assert timed.returncode == 0 and re.search(r"^  automatic +\d", timed.stdout, re.M), timed.stdout + timed.stderr


def test_cmake_finds_it(folder):
    (place,) = run(folder, "encore", "--cmake-dir", ENCORE_DEVICE="virtual").stdout.splitlines()
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(application LANGUAGES NONE)\n"
        'find_package(encore REQUIRED)\nmessage(STATUS "Encore: ${encore_LIBRARY}")\n'
    )
    command = ["cmake", "-S", folder, "-B", folder / "build", f"-Dencore_DIR={place}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"-- Encore: {Path(place).parent / FILE}\n" in done.stdout, done.stdout + done.stderr


def test_it_is_no_gpu_for_who_asks_for_one(folder):
    code = "import onnxruntime_ep_encore as encore; encore.session('model.onnx')"
    done = run(folder, "python", "-c", code, ENCORE_DEVICE="cuda")
    assert done.returncode == 1 and "RuntimeError: Encore offers no device here" in done.stderr, done.stderr
    done = run(folder, "encore", "check", ENCORE_DEVICE="cuda")
    assert done.returncode == 1 and "missing  a device that Encore works on" in done.stdout
    assert "ENCORE_DEVICE=virtual computes on the CPU" in done.stdout
