"""What a build is for: nvcc is found where the scripts look, and a build without it says that it is the virtual GPU."""

import subprocess
import sys

import pytest
from encore_session import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import environment

CMAKE = environment.shutil.which("cmake", path=environment.variables()["PATH"])
NOTE = "this is the virtual GPU, which computes on the CPU: there was no nvcc when Encore was built"


def cmake(*arguments):
    return subprocess.run([CMAKE, *map(str, arguments)], capture_output=True, text=True, check=True)


@pytest.fixture
def clean(monkeypatch):
    """No CUDA in the environment."""
    for name in ("CUDACXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return monkeypatch


@pytest.fixture
def make_nvcc(tmp_path):
    def make(name):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.touch(mode=0o755)
        return str(file)

    return make


def found_by_cmake(tmp_path):
    script = tmp_path / "find.cmake"
    script.write_text(f'include({ROOT}/cmake/nvcc.cmake)\nmessage("found:${{CMAKE_CUDA_COMPILER}}")\n')
    return cmake("-P", script).stderr.split("found:")[1].strip()


@pytest.mark.parametrize("named_by", ["CUDACXX", "PATH", "CUDA_HOME", "CUDACXX before PATH", "PATH before CUDA_HOME"])
def test_nvcc_is_found_where_the_scripts_look(clean, make_nvcc, tmp_path, named_by):
    before, _, after = named_by.partition(" before ")
    for number, variable in enumerate([name for name in (before, after) if name]):
        nvcc = make_nvcc(f"{number}/bin/nvcc")
        value = {"CUDACXX": nvcc, "PATH": f"/usr/bin:/bin:{tmp_path}/{number}/bin", "CUDA_HOME": f"{tmp_path}/{number}"}
        clean.setenv(variable, value[variable])
    assert found_by_cmake(tmp_path) == environment.nvcc() == f"{tmp_path}/0/bin/nvcc"


def test_a_compiler_that_is_not_there_is_passed_over(clean, make_nvcc, tmp_path):
    clean.setenv("CUDACXX", "/nowhere/nvcc")
    clean.setenv("CUDA_HOME", str(tmp_path))
    assert found_by_cmake(tmp_path) == (environment.nvcc() or "")
    nvcc = make_nvcc("bin/nvcc")
    assert found_by_cmake(tmp_path) == environment.nvcc() == nvcc


def test_a_build_without_nvcc_says_that_it_is_the_virtual_gpu(tmp_path):
    given = {"ENCORE_DEVICE": "auto", "ENCORE_NVCC": "OFF", "ENCORE_TESTS": "OFF", "Python3_EXECUTABLE": sys.executable}
    options = [f"-D{name}={value}" for name, value in given.items()]
    made = cmake("-S", ROOT, "-B", tmp_path, "-G", "Unix Makefiles", *options)
    assert NOTE in " ".join(made.stderr.split())
    cmake("--build", tmp_path, "--target", "src/plugin/devices.cc.o")
    (built,) = tmp_path.rglob("devices.cc.o")
    assert NOTE.encode() in built.read_bytes()
    # Where the package looks for it.
    assert "/onnxruntime_ep_encore/virtual" in (tmp_path / "cmake_install.cmake").read_text()


def test_the_scripts_heed_the_variable_that_names_a_device(monkeypatch):
    monkeypatch.delenv("ENCORE_LIBRARY", raising=False)
    monkeypatch.setattr(environment, "gpu_works", lambda: True)
    monkeypatch.setattr(environment, "build", lambda *_: None)
    monkeypatch.setenv("ENCORE_DEVICE", "virtual")
    assert environment.library_for() == str(environment.library("virtual"))
    assert environment.library_for("cuda") == str(environment.library("cuda"))
    # The library that a program is started with may be of the other device.
    assert "ENCORE_DEVICE" not in environment.variables(ENCORE_LIBRARY=str(environment.library("cuda")))
