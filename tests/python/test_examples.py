"""The examples, each as a user runs it: in a process of its own, and a folder that has the small model."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import encore_session as es
import language_zoo
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import ROOT, needs_graphs, only_if
from test_genai import with_genai
from test_language_models import PROMPTS, SEEDS, TOKENS, regrets, truth_for

sys.path.insert(0, str(ROOT / "tools"))
import environment

EXAMPLES = ROOT / "examples"
LIBRARY = Path(onnxruntime_ep_encore.get_library_path())
# Run by hand, as examples/README.md says: what it needs takes longer to install than the tests may.
BY_HAND = {"ray_serve.py"}


def with_package(name):
    """Also without it on the virtual GPU, where there is nothing to excuse its absence."""
    return only_if(es.on_virtual_gpu() or importlib.util.find_spec(name) is not None)


def variables(**more):
    """What a user sets: where Encore is, and not how many devices the tests have."""
    mine = ("ENCORE_VIRTUAL_DEVICES", "ENCORE_TEST_OPTIONS")
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    kept = {name: value for name, value in os.environ.items() if name not in mine}
    return {**kept, "PYTHONPATH": path, "ENCORE_LIBRARY": str(LIBRARY), **more}


def run(name, *arguments, folder, fails=False, **more):
    """What the example prints; what it says to stderr, if it is to fail."""
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=variables(**more), capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    run("make_model.py", folder=folder)
    return folder


@pytest.mark.newest
def test_each_example_is_in_the_table_and_tested():
    tested = Path(__file__).read_text() + "".join(
        (ROOT / "tests" / "python" / f"test_{name}.py").read_text() for name in ("streams", "language_models")
    )
    table = (EXAMPLES / "README.md").read_text()
    for file in sorted(EXAMPLES.glob("*.py")):
        assert f"`{file.name}`" in table
        assert file.name in BY_HAND or f'"{file.name}"' in tested


# ---- sessions


@pytest.mark.core
def test_the_smallest_one(folder):
    assert re.fullmatch(r"(class \d, \d+% sure\n){3}", run("smallest.py", folder=folder))


@pytest.mark.core
def test_batches_of_any_size(folder):
    said = re.fullmatch(
        r".*: (\d+) graphs for batches of \[1, 4, 16, 64\], (\d+) runs padded, 4 first runs, (\d+) replays\n",
        run("any_batch.py", folder=folder),
    )
    graphs, padded, replays = map(int, said.groups())
    assert 4 <= graphs <= 8 and padded > 150 and replays > 150


@needs_graphs
@pytest.mark.core
def test_graphs_by_id(folder):
    lines = "".join(rf"graph {i}: ready, \d+ nodes, 99 replays\n" for i in range(3))
    assert re.fullmatch(lines, run("graph_ids.py", folder=folder))


@pytest.mark.newest
def test_torchs_default_stream(folder):
    """Without a GPU and torch it says that it needs them."""
    torch = importlib.util.find_spec("torch")
    if torch and not es.on_virtual_gpu():
        said = run("default_stream.py", folder=folder)
        means = np.array(re.findall(r"\d\.\d*", said), float)
        assert len(means) == 10 and abs(means.sum() - 1) < 0.01
    else:
        said = run("default_stream.py", folder=folder, fails=True)
        assert re.search("^default_stream.py needs (torch with CUDA|a GPU that torch can use)", said, re.M)


# ---- a server


@pytest.mark.newest
def test_a_server_batches(folder):
    said = run("server.py", "--try", 300, folder=folder)
    rows, batches = map(int, re.search(r"(\d+) rows in (\d+) batches", said).groups())
    assert "300 requests of 16 clients: p50 " in said
    assert 300 <= rows <= 900 and batches < 300


@pytest.mark.newest
def test_a_server_answers(folder):
    command = [sys.executable, EXAMPLES / "server.py", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=variables(), stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            answer = post(url, {"x": np.ones((3, 64)).tolist()})
            np.testing.assert_allclose(np.sum(answer["y"], axis=1), np.ones(3), rtol=1e-3)
            for wrong, why in (({"x": [[1, 2]]}, r"x is \[1, 2\]; it must be \[1 to 32, 64\]"), ({}, "'x'")):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    post(url, wrong)
                assert refused.value.code == 400 and re.fullmatch(why, json.load(refused.value)["error"])
        finally:
            server.terminate()


def post(url, body):
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
        return json.load(response)


# ---- models


@with_package("rapidocr")
@pytest.mark.newest
def test_text_in_pictures(folder):
    *times, first, second, third = run("vision.py", folder=folder).splitlines()
    assert len(times) == 3
    assert (first, second, third) == ("Captured once,", "replayed often.", "A longer line has a shape of its own")


@with_package("silero_vad")
@needs_graphs
@pytest.mark.core
def test_speech_in_sound(folder):
    chunks, *speech = run("speech.py", folder=folder).splitlines()
    assert chunks.startswith("93 chunks of 32 ms, ")
    assert speech == ["speech from 1.0 s to 2.0 s"]


@with_genai
@pytest.mark.newest
@pytest.mark.parametrize("name", ["llama", "gptoss"])
def test_a_language_model_by_genai(name, tmp_path):
    language_zoo.save(name, "f16", tmp_path, SEEDS[name, "f16"])
    (tmp_path / "genai_config.json").write_text((language_zoo.GRAPHS / f"{name}.json").read_text())
    prompt = PROMPTS[-1]
    one_device = {"ORT_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "0"}
    said = run("generate_genai.py", tmp_path, *prompt, "--tokens", TOKENS, folder=tmp_path, **one_device)
    tokens = np.array(said.split(), int)
    assert len(tokens) and (regrets(truth_for(name, "f16", SEEDS[name, "f16"]), prompt, tokens) == 0).all()


# ---- C++


@pytest.fixture
def onnxruntime_library(tmp_path):
    """onnxruntime's library as its wheel brings it, under the names that the linker and the loader look for."""
    (library,) = (Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (tmp_path / name).symlink_to(library)
    return tmp_path / "libonnxruntime.so"


@pytest.fixture
def headers(tmp_path):
    """The official ones, if the environment names them; else what stands in for them: flags for CMake."""
    official = os.environ.get("ENCORE_OFFICIAL_ORT_INCLUDE")
    if official:
        return [f"-DONNXRUNTIME_INCLUDE={official}", "-DCMAKE_CXX_FLAGS=-Werror"]
    subprocess.run([sys.executable, ROOT / "abi" / "generate.py", tmp_path / "ort_abi.h"], check=True)
    return [f"-DONNXRUNTIME_INCLUDE={ROOT / 'tests' / 'cxx_api'}", f"-DCMAKE_CXX_FLAGS=-Werror -isystem {tmp_path}"]


def cmake(*arguments):
    path = environment.variables()["PATH"]
    command = [shutil.which("cmake", path=path), *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def package_folder(where, tmp_path):
    if where == "build tree":
        command = [sys.executable, "-m", "onnxruntime_ep_encore", "--cmake-dir"]
        return subprocess.run(command, env=variables(), capture_output=True, text=True, check=True).stdout.strip()
    cmake("--install", LIBRARY.parent, "--prefix", tmp_path / "installed")
    (config,) = (tmp_path / "installed").rglob("encore-config.cmake")  # in the device's folder
    return config.parent


@needs_graphs
@only_if((LIBRARY.parent / "CMakeCache.txt").exists())  # not where a library came without its build
@pytest.mark.newest
@pytest.mark.parametrize("where", ["build tree", "installed"])
def test_an_application_in_cpp(folder, tmp_path, onnxruntime_library, headers, where):
    found = [f"-Dencore_DIR={package_folder(where, tmp_path)}", f"-DONNXRUNTIME_LIBRARY={onnxruntime_library}"]
    cmake("-S", EXAMPLES / "cpp", "-B", tmp_path / "build", "-G", "Ninja", *found, *headers)
    cmake("--build", tmp_path / "build")
    done = application(tmp_path, folder / "model.onnx")
    assert re.fullmatch(r"100 runs: class \d, \d+ % sure\n", done.stdout), done.stderr
    refused = application(tmp_path, folder / "model.onnx", "enable_cuda_grph=1")
    assert refused.returncode == 1 and "did you mean 'ep.cuda.enable_cuda_graph'?" in refused.stderr


def application(tmp_path, *arguments):
    command = [tmp_path / "build" / "application", *map(str, arguments)]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)


@pytest.mark.newest
def test_no_package_for_cmake_is_told(tmp_path):
    alone = shutil.copy(LIBRARY, tmp_path)
    command = [sys.executable, "-m", "onnxruntime_ep_encore", "--cmake-dir"]
    env = variables(ENCORE_LIBRARY=alone)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"{tmp_path / 'cmake'} has no encore-config.cmake" in done.stderr
