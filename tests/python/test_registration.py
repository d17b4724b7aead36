"""From the package to a run: where the library is, what it is called, what it offers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from onnx import helper

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def relu(make_model):
    return make_model([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": [2, 3]}, {"y": [2, 3]})


def in_new_process(code, **variables):
    """The words of a Python process which has registered nothing yet."""
    env = {**os.environ, **variables}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), env.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def register_as(name):
    code = f"""
import onnxruntime_ep_encore as encore
name = encore.register({name!r})
assert encore.register({name!r}) == name, "a second time does nothing"
print(name, len(encore.devices(name)))"""
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr
    provider, count = done.stdout.split()
    assert int(count) >= 1
    return provider


def test_threads_may_register_at_once():
    done = in_new_process("""
import threading, time
import onnxruntime as ort, onnxruntime_ep_encore as encore

class Slow:
    def __getattr__(self, name):
        return getattr(ort, name)

    def register_execution_provider_library(self, *how):
        time.sleep(0.2)
        ort.register_execution_provider_library(*how)

names = []
threads = [threading.Thread(target=lambda: names.append(encore.register(ort=Slow()))) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert names == [encore.get_ep_name()] * 4, names""")
    assert done.returncode == 0, done.stderr


# ---- the library


def test_library_path_is_a_file():
    assert Path(onnxruntime_ep_encore.get_library_path()).is_file()


def test_environment_names_the_library(tmp_path, monkeypatch):
    copy = shutil.copy(onnxruntime_ep_encore.get_library_path(), tmp_path / "other.so")
    monkeypatch.setenv("ENCORE_LIBRARY", str(copy))
    assert onnxruntime_ep_encore.get_library_path() == str(copy)


def test_a_missing_library_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCORE_LIBRARY", str(tmp_path / "nowhere.so"))
    with pytest.raises(FileNotFoundError, match="ENCORE_LIBRARY names .*nowhere.so, which is not a file"):
        onnxruntime_ep_encore.get_library_path()


def test_a_package_without_its_library_says_where_it_looked(tmp_path):
    package = tmp_path / "onnxruntime_ep_encore"
    shutil.copytree(Path(onnxruntime_ep_encore.__file__).parent, package, ignore=shutil.ignore_patterns("*.so"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import onnxruntime_ep_encore as e; e.get_library_path()"
    done = in_new_process(code, ENCORE_LIBRARY="")
    assert re.search(f"is missing: reinstall.*\n  {re.escape(str(package))}/cuda/libonnx", done.stderr), done.stderr


def test_a_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "broken.so").write_text("not a library")
    code = "import onnxruntime_ep_encore as e; e.register()"
    done = in_new_process(code, ENCORE_LIBRARY=str(tmp_path / "broken.so"))
    assert done.returncode == 1
    assert "broken.so" in done.stderr


def test_exports_are_what_onnxruntime_looks_up_and_completions():
    command = ["nm", "-D", "--defined-only", onnxruntime_ep_encore.get_library_path()]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split()[-1] for line in lines}
    of_applications = {name for name in names if name.startswith("encore_virtual_")}
    of_completions = {f"encore_completion_{name}" for name in ("done", "free", "new", "order", "wait")}
    assert names - of_applications == {"CreateEpFactories", "ReleaseEpFactory", *of_completions}
    assert bool(of_applications) == encore_session.on_virtual_gpu()


# ---- the onnxruntime


@pytest.mark.parametrize(
    "found, said",
    [
        ("None", "ModuleNotFoundError: Encore needs onnxruntime 1.24 or newer: `pip install onnxruntime`"),
        ("types.SimpleNamespace(__version__='1.22.1')", "newer; this is 1.22.1: `pip install -U onnxruntime`"),
        ("types.ModuleType('onnxruntime')", "newer; this is no onnxruntime, though a folder has its name"),
    ],
)
def test_an_onnxruntime_that_does_not_do_is_named_with_the_way_out(found, said):
    code = f"import sys, types; sys.modules['onnxruntime'] = {found}; import onnxruntime_ep_encore as e; e.register()"
    done = in_new_process(code)
    assert done.returncode == 1 and said in done.stderr.splitlines()[-1], done.stderr


# ---- names and devices


def test_names():
    assert onnxruntime_ep_encore.get_ep_names() == [onnxruntime_ep_encore.get_ep_name()] == ["CUDAExecutionProvider"]


@pytest.mark.parametrize("name", ["CudaPluginExecutionProvider", "CUDAExecutionProvider"])
def test_a_registration_name_with_the_ending_is_the_providers(name):
    assert register_as(name) == name


@pytest.mark.parametrize("name", ["encore", "cuda.virtual", None])
def test_any_other_registration_name_gives_the_usual_one(name):
    assert register_as(name) == onnxruntime_ep_encore.get_ep_name()


def test_one_name_for_one_provider():
    done = in_new_process("""
import onnxruntime as ort, onnxruntime_ep_encore as encore
assert encore.register("first") == encore.register() == encore.register("first")
try:
    encore.register("second")
except ValueError as error:
    print(error)
ort.unregister_execution_provider_library("first")
print(*(encore.register(name) for name in ("second", "OtherExecutionProvider", "OtherExecutionProvider")))""")
    said, names = done.stdout.splitlines()
    assert re.match("Encore can't be registered as 'second': it is registered as 'first', and .*unregister", said)
    assert names == "CUDAExecutionProvider OtherExecutionProvider OtherExecutionProvider"


def test_without_a_name_the_one_that_is_registered_will_do():
    done = in_new_process("""
import onnxruntime_ep_encore as encore
assert encore.register("OtherExecutionProvider") == encore.register()""")
    assert done.returncode == 0, done.stderr


def test_a_library_without_a_device_can_be_registered_twice():
    done = in_new_process(
        """
import onnxruntime_ep_encore as encore
assert encore.register("first") == encore.register("first") and not encore.devices()""",
        ENCORE_VIRTUAL_DEVICES="0",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.returncode == 0, done.stderr


def test_a_device_says_what_it_is(encore):
    device = onnxruntime_ep_encore.devices(encore)[0]
    assert device.device.type == ort.OrtHardwareDeviceType.GPU
    assert device.device.vendor_id == encore_session.NVIDIA
    assert device.ep_metadata["version"] == onnxruntime_ep_encore.__version__
    assert device.ep_metadata["cuda_device_id"] == "0"
    assert device.ep_metadata["cuda_device_name"]
    assert re.fullmatch(r"\d+\.\d+", device.ep_metadata["cuda_compute_capability"])
    assert device.ep_options["device_id"] == "0"


def test_one_version_everywhere():
    stated = re.search(r"project\(encore VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert stated == onnxruntime_ep_encore.__version__


# ---- a run


def test_a_model_runs_on_encore(encore, relu):
    session = encore_session.make_session(relu)
    encore_session.assert_all_on_encore(session)
    x = np.float32([[-1, 2, -3], [4, -5, 6]])
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_a_run_from_device_memory_to_device_memory(encore, relu):
    x = np.float32([[-1, 2, -3], [4, -5, 6]])
    bound = encore_session.Bound(encore_session.make_session(relu), {"x": x}, {"y": ([2, 3], np.float32)})
    np.testing.assert_array_equal(bound.run()["y"], np.maximum(x, 0))
    np.testing.assert_array_equal(bound.run({"x": -x})["y"], np.maximum(-x, 0))


def test_unregistering_under_a_live_session_leaves_it_working(relu):
    done = in_new_process(f"""
import sys; sys.path.insert(0, {str(ROOT / "tests")!r})
import encore_session, numpy, onnx, onnxruntime
session = encore_session.make_session({relu.SerializeToString()!r})
onnxruntime.unregister_execution_provider_library(encore_session.EP_NAME)
x = -numpy.ones((2, 3), numpy.float32)
print(session.run(None, {{"x": x}})[0].sum())
del session""")
    assert (done.returncode, done.stdout.split()) == (0, ["0.0"]), done.stderr


@encore_session.only_if(encore_session.on_virtual_gpu())
def test_the_virtual_gpu_says_once_what_it_is():
    said = in_new_process("import onnxruntime_ep_encore as e; e.register(); e.register(); e.devices()").stderr
    assert len(re.findall("this is the virtual GPU, which computes on the CPU", said)) == 1, said


@encore_session.only_if(encore_session.on_virtual_gpu())  # which has whatever capability it is told
def test_a_gpu_newer_than_the_kernels_is_not_offered():
    code = "import onnxruntime_ep_encore as e; assert not e.devices(e.register())"
    said = in_new_process(code, ENCORE_VIRTUAL_ARCH="200").stderr
    assert "Encore does not offer device 0: " in said and "has 20.0; take a newer release" in said


@encore_session.only_if(encore_session.on_virtual_gpu())
@pytest.mark.parametrize("architecture, facts", [("80", "8.0 A100"), ("120", "12.0 RTX 5090"), ("", "9.0 H100")])
def test_the_virtual_gpu_is_of_the_architecture_that_it_is_told(architecture, facts):
    code = """
import onnxruntime_ep_encore as e
facts = e.devices(e.register())[0].ep_metadata
print(facts["cuda_compute_capability"], facts["cuda_device_name"])"""
    capability, product = facts.split(maxsplit=1)
    said = in_new_process(code, ENCORE_VIRTUAL_ARCH=architecture).stdout.strip()
    assert said == f"{capability} Encore virtual GPU ({product})"


@encore_session.only_if(encore_session.on_virtual_gpu())
def test_an_architecture_that_is_no_number_is_named():
    code = "import onnxruntime_ep_encore as e; assert not e.devices(e.register())"
    assert "ENCORE_VIRTUAL_ARCH must be a number such as 80" in in_new_process(code, ENCORE_VIRTUAL_ARCH="a100").stderr
