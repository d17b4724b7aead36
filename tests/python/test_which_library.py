"""Which library a process takes, of those of a wheel or of a checkout's builds; and that it takes one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import onnxruntime_ep_encore
import pytest
from encore_session import on_virtual_gpu, only_if

on_virtual = only_if(on_virtual_gpu())  # in whose library a process without GPUs finds a device

FILE = "libonnxruntime_providers_cuda_plugin.so"
# Before the code of a test: a driver with a GPU, and one that must not be asked.
GPU = "encore.libraries.why_no_gpu = lambda: ''\n"
ASLEEP = "encore.libraries.why_no_gpu = None\n"


@pytest.fixture(params=["wheel", "checkout"])
def package(request, tmp_path):
    """package(*devices): a folder for Python's path, with libraries of these devices beside it as they would be."""
    path = tmp_path / "python"
    shutil.copytree(Path(onnxruntime_ep_encore.__file__).parent, path / "onnxruntime_ep_encore")
    if request.param == "checkout":
        (tmp_path / "CMakePresets.json").touch()
    libraries = tmp_path / "build" if request.param == "checkout" else path / "onnxruntime_ep_encore"

    def make(*devices):
        for device in devices:
            (libraries / device).mkdir(parents=True)
            # The virtual GPU's for both: another file is another library.
            shutil.copy(onnxruntime_ep_encore.get_library_path(), libraries / device / FILE)
        return path, libraries

    return make


def run(path, code, **variables):
    """The words of a Python process which has this package and nothing else of Encore's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ENCORE_") or "VIRTUAL" in key}
    paths = [path, Path(onnxruntime.__file__).parents[1]]
    env = {**kept, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables}
    command = [sys.executable, "-c", f"import onnxruntime_ep_encore as encore\n{code}"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def taken(done):
    """The device of the library that was printed, and what was said."""
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split()[-1]).parent.name, done.stderr


PRINT = "print(encore.get_library_path())"


def test_without_a_gpu_it_is_the_virtual_one_and_a_line_says_so(package):
    device, said = taken(run(package("cuda", "virtual")[0], f"{PRINT}\n{PRINT}"))
    assert device == "virtual"
    (line,) = said.splitlines()
    assert line.startswith("Encore computes on the CPU, by its virtual GPU: no GPU works here (")
    assert "ENCORE_DEVICE=virtual asks for that" in line


@on_virtual
def test_the_line_comes_whatever_onnxruntime_logs(package):
    code = "import onnxruntime\nonnxruntime.set_default_logger_severity(4)\nencore.register()"
    done = run(package("cuda", "virtual")[0], code)
    assert done.returncode == 0 and done.stderr.startswith("Encore computes on the CPU"), done.stderr


def test_with_a_gpu_it_is_cuda(package):
    assert taken(run(package("cuda", "virtual")[0], GPU + PRINT)) == ("cuda", "")


def test_a_gpu_without_its_library_is_told(package):
    device, said = taken(run(package("virtual")[0], GPU + PRINT))
    assert device == "virtual"
    assert "a GPU is here, but no library for it: re" in said or "no library for it: run `./encore build cuda`" in said


def test_what_there_is_alone_is_taken(package):
    """As a package has it that was built where there is no GPU, for one: the library says what is missing."""
    assert taken(run(package("cuda")[0], PRINT)) == ("cuda", "")


@pytest.mark.parametrize("device", ["cuda", "virtual"])
def test_who_says_which_has_it_without_a_line_and_the_driver_is_left_alone(package, device):
    path, libraries = package("cuda", "virtual")
    other = {"cuda": "virtual", "virtual": "cuda"}[device]
    by_argument = run(path, f"{ASLEEP}print(encore.get_library_path({device!r}))", ENCORE_DEVICE=other)
    by_variable = run(path, ASLEEP + PRINT, ENCORE_DEVICE=device)
    for done in (by_argument, by_variable):
        assert (done.stdout, done.stderr) == (f"{libraries / device / FILE}\n", "")


def test_a_device_without_a_library_is_named_with_the_way_out(package):
    path, libraries = package("virtual")
    for code, variables in (("encore.register(device='cuda')", {}), ("encore.register()", {"ENCORE_DEVICE": "cuda"})):
        done = run(path, code, **variables)
        assert "FileNotFoundError: the library of cuda is missing: re" in done.stderr.replace("run `./encore", "re")
        assert str(libraries / "cuda" / FILE) in done.stderr and "/virtual/" not in done.stderr


def test_a_device_that_there_is_not(package):
    path, _ = package("virtual")
    for code, variables in (("encore.session('', device='gpu')", {}), (PRINT, {"ENCORE_DEVICE": "gpu"})):
        done = run(path, code, **variables)
        assert "is no device of Encore's: cuda and virtual are" in done.stderr.splitlines()[-1]


@on_virtual
def test_a_named_library_is_of_the_device_that_is_asked_for(package):
    path, libraries = package("virtual")
    named = {"ENCORE_LIBRARY": str(libraries / "virtual" / FILE)}
    for variables in ({}, {"ENCORE_DEVICE": "virtual"}):
        assert taken(run(path, PRINT, **named, **variables)) == ("virtual", "")
    done = run(path, "encore.register(device='cuda')", **named)
    said = "ValueError: device='cuda', but ENCORE_LIBRARY names a library of virtual, "
    assert done.stderr.splitlines()[-1].startswith(said)


# ---- one in a process


@on_virtual
def test_a_process_has_one_of_them(package):
    path, libraries = package("cuda", "virtual")
    code = """
name = encore.register(device="virtual")
assert encore.register() == encore.register(device="virtual") == name
try:
    encore.register(device="cuda")
except ValueError as error:
    print(error)
import onnxruntime
onnxruntime.unregister_execution_provider_library(name)
assert encore.register() == name
onnxruntime.unregister_execution_provider_library(name)
encore.register(device="cuda")
print(encore.devices()[0].ep_metadata["library_path"])"""
    done = run(path, code)
    assert done.returncode == 0, done.stderr
    refused, then = done.stdout.splitlines()
    places = [str(libraries / device / FILE) for device in ("virtual", "cuda")]
    assert refused.startswith("a process has the library of one device: it has registered")
    assert [place in refused for place in places] == [True, True] and then == places[1]


@on_virtual
def test_one_that_offers_no_device_is_the_one_of_a_process_too(package):
    code = """
encore.register(device="virtual")
assert not encore.devices()
try:
    encore.register(device="cuda")
except ValueError as error:
    print(error)"""
    done = run(package("cuda", "virtual")[0], code, ENCORE_VIRTUAL_DEVICES="0")
    assert done.stdout.startswith("a process has the library of one device"), done.stderr


@on_virtual
def test_a_library_that_the_program_has_registered_is_taken(package):
    path, libraries = package("cuda", "virtual")
    code = """
import onnxruntime
onnxruntime.register_execution_provider_library("CUDAExecutionProvider", encore.get_library_path("virtual"))
encore.register()
print(encore.devices()[0].ep_metadata["library_path"])
encore.register(device="cuda")"""
    done = run(path, code)
    assert done.stdout == f"{libraries / 'virtual' / FILE}\n"
    assert "ValueError: a process has the library of one device" in done.stderr


# ---- the libraries that CUDA's opens


@on_virtual
def test_the_library_is_told_where_pip_has_put_others(package, tmp_path):
    path, _ = package("virtual")
    folders = [tmp_path / "site" / "nvidia" / name / "lib" for name in ("cu13", "cudnn")]
    for folder in folders:
        folder.mkdir(parents=True)
    code = """
import os, sys
sys.path.append(os.environ["SITE"])
encore.register()
print(os.environ.get("ENCORE_LIBRARY_PATH"))"""
    found = run(path, code, SITE=str(tmp_path / "site"))
    assert found.stdout.strip().endswith(":".join(map(str, folders))), found.stderr
    found = run(path, code, SITE=str(tmp_path / "site"), ENCORE_LIBRARY_PATH="/mine").stdout.strip()
    assert found.startswith("/mine:") and found.endswith(":".join(map(str, folders)))
