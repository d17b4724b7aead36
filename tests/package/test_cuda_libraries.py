"""Where the library for CUDA finds those that it opens itself, which its source alone tells: no CUDA has to be here."""

import shutil
import subprocess
import sys

import pytest
from encore_session import ROOT

pytestmark = pytest.mark.newest

WHERE = """
#include "device/cuda/library.h"
using namespace encore::device::cuda;
extern "C" const char* cublaslt_path() { return cublaslt().path().c_str(); }
extern "C" const char* cudnn_path() { return cudnn().path().c_str(); }
extern "C" const char* why_missing() {
  static std::string said;
  try {
    Library({"libnowhere.so.1", "Nowhere 1", "nvidia-nowhere"});
  } catch (const std::exception& e) {
    said = e.what();
  }
  return said.c_str();
}
"""
# As the packages that pyproject.toml names have them.
LAYOUTS = {
    13: [
        "cu13/lib/libcublas.so.13",
        "cu13/lib/libcublasLt.so.13",
        "cu13/lib/libnvrtc.so.13",
        "cudnn/lib/libcudnn.so.9",
    ],
    12: [
        "cublas/lib/libcublas.so.12",
        "cublas/lib/libcublasLt.so.12",
        "cuda_nvrtc/lib/libnvrtc.so.12",
        "cudnn/lib/libcudnn.so.9",
    ],
}


@pytest.fixture(scope="module", params=[13, 12])
def built(request, tmp_path_factory):
    """The major version of CUDA, and a library with what opens others."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {request.param}000\n")
    (folder / "where.cc").write_text(WHERE)
    sources = [folder / "where.cc", *(ROOT / "src" / "device" / name for name in ("cuda/library.cc", "error.cc"))]
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{folder}", f"-I{ROOT / 'src'}", "-o", folder / "library.so"]
    subprocess.run(["g++", *options, *sources], check=True)
    return request.param, folder / "library.so"


@pytest.fixture
def site(built, tmp_path):
    """site-packages with it as the package has it."""
    package = tmp_path / "onnxruntime_ep_encore" / "cuda"
    package.mkdir(parents=True)
    shutil.copy(built[1], package)
    return tmp_path


def install(site, *files):
    """Puts libraries there that can be opened and nothing else."""
    for file in files:
        path = site / "nvidia" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", f"-Wl,-soname,{path.name}", "-xc", "/dev/null", "-o", path], check=True)


def ask(site, function):
    """What a function of it returns in a new process, and then what the process has open of `site`."""
    code = f"""
import ctypes
function = ctypes.CDLL("{site}/onnxruntime_ep_encore/cuda/library.so").{function}
function.restype = ctypes.c_char_p
print(function().decode())
print(*sorted({{line.split()[-1] for line in open("/proc/self/maps") if "/nvidia/" in line}}), sep="\\n")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    return done.stdout.splitlines()


def test_they_are_found_where_pip_puts_them(built, site):
    files = LAYOUTS[built[0]]
    install(site, *files)
    paths = [f"{site}/nvidia/{file}" for file in files]
    assert ask(site, "cublaslt_path")[0] == paths[1]
    assert ask(site, "cudnn_path") == [paths[3], *sorted(paths)]  # cuDNN finds the others in the process


def test_a_missing_one_is_named_with_its_package_and_where_it_was_looked_for(site):
    install(site, "cudnn/lib/libcudnn.so.9")
    said = "\n".join(ask(site, "why_missing"))
    assert "libnowhere.so.1 (Nowhere 1) could not be opened. Looked at:" in said
    assert f"{site}/nvidia/cudnn/lib: not there" in said and "`pip install nvidia-nowhere`" in said
