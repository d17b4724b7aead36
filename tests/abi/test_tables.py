"""The ABI tables and the header made from them. Needs a C++ compiler, not onnxruntime."""

import csv
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest

ABI = Path(__file__).resolve().parents[2] / "abi"
TABLES = ("slots.tsv", "enums.tsv", "typedefs.tsv")
CXX = os.environ.get("CXX", "g++")


def rows(name, folder=ABI):
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def since(row):
    return int(row["since_api"].removeprefix("<="))


def structs():
    return {name: list(group) for name, group in itertools.groupby(rows("slots.tsv"), key=lambda row: row["struct"])}


def generate(folder, tables=ABI, **environment):
    """Runs the generator into folder; returns the finished process."""
    command = [sys.executable, ABI / "generate.py", folder / "ort_abi.h"]
    command += ["--check", folder / "ort_abi_check.inc", "--tables", tables]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def compile_only(source, *include):
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-c", "-o", os.devnull]
    return subprocess.run([CXX, *flags, *(f"-I{i}" for i in include), source], capture_output=True, text=True)


def compile_text(folder, text):
    (folder / "code.cc").write_text(f'#include "ort_abi.h"\n{text}\n')
    return compile_only(folder / "code.cc", folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    result = generate(folder)
    assert result.returncode == 0, result.stderr
    return folder


def edited_tables(folder, table, pattern, replacement):
    """A copy of the tables in which one pattern of one table is replaced, once."""
    for name in TABLES:
        shutil.copy(ABI / name, folder / name)
    text, count = re.subn(pattern, replacement, (folder / table).read_text(), count=1, flags=re.MULTILINE)
    assert count == 1, f"{pattern} is not in {table}"
    (folder / table).write_text(text)
    return folder


# ---- the tables


def test_indices_are_contiguous():
    assert len(structs()) == len({row["struct"] for row in rows("slots.tsv")}), "a struct's rows stand together"
    for name, slots in structs().items():
        assert [int(slot["index"]) for slot in slots] == list(range(len(slots))), name


def test_names_are_unique():
    for name, slots in structs().items():
        assert len({slot["name"] for slot in slots}) == len(slots), name
    enumerators = [row["name"] for row in rows("enums.tsv")]  # C enumerators share one scope
    assert len(set(enumerators)) == len(enumerators)


def test_structs_only_grow():
    for name, slots in structs().items():
        versions = [max(since(slot), 17) for slot in slots]  # 17 is the oldest header that was read in full
        assert versions == sorted(versions), name


def test_sizes_counted_in_the_binaries():
    assert len(structs()["OrtApi"]) == 426
    assert len(structs()["OrtEpApi"]) == 74
    assert sum(since(slot) <= 24 for slot in structs()["OrtApi"]) == 415
    assert sum(since(slot) <= 26 for slot in structs()["OrtApi"]) == 419


# ---- the header


def test_header_is_deterministic(made, tmp_path):
    assert generate(tmp_path, PYTHONHASHSEED="7").returncode == 0
    for name in ("ort_abi.h", "ort_abi_check.inc"):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()


def test_an_equal_header_is_left_alone(tmp_path):
    generate(tmp_path)
    os.utime(tmp_path / "ort_abi.h", (1, 1))
    assert generate(tmp_path).returncode == 0
    assert (tmp_path / "ort_abi.h").stat().st_mtime == 1


def test_header_compiles_alone_and_lays_out_as_measured(made):
    result = compile_text(
        made,
        """
        static_assert(sizeof(OrtApi) == 8 * 426 && sizeof(OrtEpApi) == 8 * 74);
        static_assert(offsetof(OrtEp, GetName) == 8 && offsetof(OrtEp, ReplayGraph) == 8 * 19);
        static_assert(offsetof(OrtEpFactory, CreateEp) == 8 * 4);
        static_assert(offsetof(OrtKernelImpl, Compute) == 8 && offsetof(OrtAllocator, AllocOnStream) == 8 * 6);
        static_assert(sizeof(OrtNodeFusionOptions) == 8 && sizeof(OrtResourceCount) == 56);
        static_assert(ort_abi::kNewestApi == 30 && ort_abi::since::OrtEp::IsGraphCaptureEnabled == 26);
        static_assert(OrtDeviceEpIncompatibility_UNKNOWN == -2147483647 - 1);
        """,
    )
    assert result.returncode == 0, result.stderr


def test_every_slot_of_the_tables_is_in_the_header(made):
    text = (made / "ort_abi.h").read_text()
    for name, slots in structs().items():
        body = re.search(rf"^struct {name} \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL).group(1)
        declared = [re.search(r"\(\*(\w+)\)|(\w+);$", line).group(1, 2) for line in body.splitlines()]
        assert [a or b for a, b in declared] == [slot["name"] for slot in slots]


CALLBACK = "OrtEp ep{{}}; void fill() {{ ep.Sync = [](OrtEp*) {} -> OrtStatus* {{ return nullptr; }}; }}"


def test_callbacks_must_be_noexcept(made):
    assert compile_text(made, CALLBACK.format("noexcept")).returncode == 0
    refused = compile_text(made, CALLBACK.format(""))
    assert refused.returncode != 0 and "noexcept" in refused.stderr


def test_statuses_must_be_used(made):
    call = "void f(const OrtApi* api, OrtSessionOptions* options) {{ {}api->DisableMemPattern(options); }}"
    assert compile_text(made, call.format("(void)!")).returncode == 0
    assert "-Werror=unused-result" in compile_text(made, call.format("")).stderr


def test_an_unknown_type_is_an_error_that_names_the_slot(tmp_path):
    tables = edited_tables(tmp_path, "slots.tsv", r"OrtMemType mem_type\)\t24", "OrtMemKind mem_type)\t24")
    result = generate(tmp_path, tables)
    assert result.returncode != 0
    assert "OrtEpApi.KernelDefBuilder_SetInputMemType: no table gives the type 'OrtMemKind'" in result.stderr
    assert not (tmp_path / "ort_abi.h").exists()


# ---- the comparison with official headers, against stand-ins made from the tables


def stand_in(folder, version, tables=ABI):
    """A folder whose onnxruntime_c_api.h declares what the tables have at that version."""
    older = folder / "older"
    older.mkdir()
    for name in TABLES:
        lines = (tables / name).read_text().splitlines()
        kept = [line for line in lines[1:] if int(line.split("\t")[-1].removeprefix("<=")) <= version]
        (older / name).write_text("\n".join([lines[0], *kept]) + "\n")
    result = generate(older, older)
    assert result.returncode == 0, result.stderr
    header = folder / "official" / "onnxruntime_c_api.h"
    header.parent.mkdir()
    header.write_text(f"#define ORT_API_VERSION {version}\n" + (older / "ort_abi.h").read_text())
    (older / "ort_abi.h").unlink()
    return header.parent


@pytest.mark.parametrize("version", [24, 25, 26, 27, 28, 29, 30])
def test_official_check_compares_what_a_version_has(made, tmp_path, version):
    result = compile_only(ABI / "check_official.cc", made, stand_in(tmp_path, version))
    assert result.returncode == 0, result.stderr[:2000]


@pytest.mark.parametrize(
    "table, pattern, replacement, complaint",
    [
        ("slots.tsv", r"^(OrtEp\t15\t)Sync(.*\n.*)CreateProfiler", r"\1CreateProfiler\2Sync", "offset of OrtEp::Sync"),
        ("slots.tsv", r"bool\* is_supported\)", "int* is_supported)", "type of OrtEp::IsConcurrentRunSupported"),
        ("slots.tsv", r"^OrtEp\t25\t.*\n", "", "size of OrtEp"),
        ("enums.tsv", r"^(OrtEpDataLayout\tOrtEpDataLayout_NHWC)\t1", r"\1\t2", "value of OrtEpDataLayout_NHWC"),
        ("typedefs.tsv", r"const OrtKernelInfo\* info", "OrtKernelInfo* info", "type of OrtKernelCreateFunc"),
    ],
)
def test_official_check_finds_a_difference(tmp_path, table, pattern, replacement, complaint):
    (tmp_path / "wrong").mkdir()
    wrong = edited_tables(tmp_path / "wrong", table, pattern, replacement)
    assert generate(tmp_path, wrong).returncode == 0
    result = compile_only(ABI / "check_official.cc", tmp_path, stand_in(tmp_path, 30))
    assert result.returncode != 0
    assert f"{complaint} differs" in result.stderr
