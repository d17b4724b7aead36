"""Rooms include only the rooms below them, and each secret (CUDA, onnxruntime's ABI) is kept in one room."""

import re
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
BELOW = {
    "device": set(),
    "profile": {"device"},
    "memory": {"device"},
    "graph": {"device", "memory", "profile"},
    "ops": {"device"},
    "fuse": {"device", "ops", "profile"},
    "automatic": {"device", "graph", "memory", "ops", "profile"},
    "plugin": {"automatic", "device", "fuse", "graph", "memory", "ops", "profile"},
}
# Chambers of rooms, from the lowest on: each may include those below, and none beside it. What lies in none is on top.
CHAMBERS = {
    "ops/attention": [
        ["rotary"],
        ["kv_cache"],
        ["dense"],
        ["inputs"],
        ["paged", "sparse", "longformer", "linear"],
        ["operators"],
    ],
    "plugin": [["host"], ["options"], ["model"], ["session"], ["kernels"]],
}
BACK_ENDS = ("device/cuda/", "device/virtual/")
GENERATED = {"ort_abi.h": "plugin", "operators.h": "ops"}  # for one room each; they aren't in src
# What is neither ours nor of standard C++, whose headers have neither dot nor slash in their names.
OTHERS = {
    "device/half.h": {"cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h"},  # where nvcc compiles it, for the intrinsics
    "device/virtual/": {"Eigen/", "sanitizer/", "sys/mman.h", "ucontext.h"},
    "": {"cxxabi.h", "dlfcn.h", "pthread.h", "unistd.h"},  # POSIX and the compiler
    "memory/copy_past_caches.h": {"emmintrin.h"},
}
FOREIGN_WORD = re.compile(r"\b(Ort[A-Z]\w*|ORT|onnxruntime\w*|CUDA|cuda\w*|cublas\w*|cudnn\w*)\b")


def sources():
    return [file for file in sorted(SRC.rglob("*")) if file.suffix in (".h", ".cc", ".cu", ".cuh")]


def name_of(file):
    return file.relative_to(SRC).as_posix()


def includes(file, opened):
    """The names that a file includes with `"` or with `<`."""
    return re.findall(rf'^\s*#\s*include\s*{opened}([^">]+)[">]', file.read_text(), re.MULTILINE)


def starts_with_one_of(name, beginnings):
    return any(name.startswith(beginning) for beginning in beginnings)


def chamber_of(room, name):
    """The chamber of a file of the room, and how high it stands."""
    chamber = name.removeprefix(f"{room}/").split("/")[0]
    levels = CHAMBERS[room]
    return chamber, next((level for level, chambers in enumerate(levels) if chamber in chambers), len(levels))


every_source = pytest.mark.parametrize("file", sources(), ids=name_of)


def test_the_rooms_are_those_of_the_design():
    assert {name_of(file).split("/")[0] for file in sources()} == set(BELOW)


@every_source
def test_a_room_includes_only_rooms_below(file):
    room = name_of(file).split("/")[0]
    for name in includes(file, '"'):
        if name in GENERATED:
            assert room == GENERATED[name], f"only src/{GENERATED[name]} knows {name}"
            continue
        assert (SRC / name).is_file(), f"{name} isn't a path from src on"
        assert name.split("/")[0] in {room, *BELOW[room]}, f"{room} may not know of {name}"
        if room != "device":
            assert not starts_with_one_of(name, BACK_ENDS), f"{name} is behind the seam"


@pytest.mark.parametrize("room", CHAMBERS)
def test_a_room_has_these_chambers(room):
    chambers = [chamber for level in CHAMBERS[room] for chamber in level]
    assert sorted(folder.name for folder in (SRC / room).iterdir() if folder.is_dir()) == sorted(chambers)


@pytest.mark.parametrize(
    "room, file", [(room, file) for room in CHAMBERS for file in sorted((SRC / room).rglob("*.*"))], ids=str
)
def test_a_chamber_includes_only_chambers_below(room, file):
    own, level = chamber_of(room, name_of(file))
    for name in includes(file, '"'):
        if name.startswith(f"{room}/"):
            chamber, height = chamber_of(room, name)
            assert height < level or chamber == own or height == level == len(CHAMBERS[room]), (
                f"{name_of(file)} may not know of {name}"
            )


def test_a_name_is_of_one_type():
    """Two types of one name, each in its own files, would be one to the linker."""
    places = {}
    for file in sources():
        seen = re.sub(r"^namespace \{$.*?^\}  // namespace$", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)
        for name in re.findall(
            r"^(?:struct|class|enum class|union) (?:alignas\(.*\) )?(\w+)(?: final)? [:{]", seen, re.M
        ):
            if not starts_with_one_of(name_of(file), BACK_ENDS):
                places.setdefault((name_of(file).split("/")[0], name), set()).add(name_of(file))
    assert not {name: files for name, files in places.items() if len(files) > 1}


@every_source
def test_headers_of_others_stay_where_they_belong(file):
    if name_of(file).startswith("device/cuda/"):
        return
    allowed = {other for place, others in OTHERS.items() if name_of(file).startswith(place) for other in others}
    for name in includes(file, "<"):
        assert re.fullmatch(r"[a-z_0-9]+", name) or starts_with_one_of(name, allowed), f"<{name}> doesn't belong here"


@pytest.mark.parametrize("file", sorted((SRC / "ops").rglob("*.*")), ids=name_of)
def test_ops_name_neither_onnxruntime_nor_cuda(file):
    for number, line in enumerate(file.read_text().splitlines(), 1):
        assert not FOREIGN_WORD.search(line), f"{name_of(file)}:{number}: {line.strip()}"
