"""NVRTC compiles what elementwise programs are written in. It needs no GPU for that."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from encore_session import ROOT

LIST = (ROOT / "cmake" / "run_time_headers.cmake").read_text()


def headers():
    own, standard = (re.sub(r"\s+", " ", names).split() for names in re.findall(r"foreach\(name ([^)]*)\)", LIST))
    files = {f"{name}.h": ROOT / "src" / f"{name}.h" for name in own}
    return files | {name: ROOT / "src/device/cuda/nvrtc" / name for name in standard}


def functions():
    text = (ROOT / "src/ops/elementwise/scalar_function.h").read_text()
    return re.findall(r"^  (\w+),$", text, re.MULTILINE)


def source(type_name):
    """Each function of a type, a choice by a condition, and what is made of the other kind of numbers."""
    calls = "".join(f"  v = call<ScalarFunction::{name}, {type_name}>(1u, 2u, v, x, v);\n" for name in functions())
    other = "float" if type_name.startswith("int") else "int64_t"
    return f"""#include "ops/elementwise/compiled_program.h"
namespace encore::compiled {{
using Arguments = ops::JoiningProgramArguments;
DEVICE_FN void body(const Arguments& at, int64_t index, auto wait) {{
  constexpr int kPack = 4;
  int i;
  const int rest = at.sizes[0](int(index), i);
  const auto x = pack<{type_name}, kPack>(at.inputs[0], rolled(i, rest, 3));
  const auto condition = each<bool, kPack>(at.joined.find(0, 0, 16, int(index), 0), 0);
  auto v = call<ScalarFunction::select, {type_name}>(0u, 0u, condition, x, x);
{calls}  store<{type_name}>(at.outputs[0], index * kPack, v);
  store<{other}>(at.outputs[1], index * kPack, call<ScalarFunction::cast, {other}>(0u, 0u, v, v, v));
  store<bool>(at.outputs[2], index * kPack, call<ScalarFunction::below, bool>(0u, 0u, v, x, x));
}}
}}
extern "C" __global__ void entry(const __grid_constant__ encore::compiled::Arguments arguments, long long) {{
  encore::compiled::body(arguments, threadIdx.x, [] {{}});
}}
"""


def nvrtc():
    asked = subprocess.run(["nvcc", "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=True)
    folder = Path(re.search(r"^#\$ TOP=(.*)$", asked.stderr, re.MULTILINE)[1])
    found = sorted(
        file for part in ("lib", "lib64", "targets/x86_64-linux/lib") for file in folder.glob(f"{part}/libnvrtc.so.*")
    )
    assert found, f"the CUDA toolkit in {folder} has no NVRTC"
    return ctypes.CDLL(str(found[0]))


def strings(values):
    return (ctypes.c_char_p * len(values))(*(str(value).encode() for value in values))


@pytest.mark.parametrize("type_name", ["float", "Half", "BFloat16", "bool", "int32_t", "int64_t"])
@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_programs_compile(type_name, architecture):
    library, program, files = nvrtc(), ctypes.c_void_p(), headers()
    texts = strings([file.read_text() for file in files.values()])
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source(type_name).encode(), b"program.cu", len(files), texts, strings(files)
    )
    assert created == 0
    options = strings([f"--gpu-architecture=sm_{architecture}", "--std=c++20", "--device-as-default-execution-space"])
    result = library.nvrtcCompileProgram(program, len(options), options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()
    assert "warning" not in log.value.decode()


def test_the_list_is_the_one_that_sources_need():
    """Each header that is included by another is there, too."""
    files = headers()
    for name, file in files.items():
        for included in re.findall(r'#include ["<]([^">]+)[">]', file.read_text()):
            assert included in files, (name, included)
