"""What `./encore wheel` packs: the same bytes for the same libraries, and no wheel that would not work elsewhere."""

import os
import subprocess
import sys
import zipfile

import pytest
from encore_session import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import environment
import wheel

pytestmark = pytest.mark.newest


@pytest.fixture
def libraries(tmp_path):
    """libraries(*options): small ones for both devices, in a folder of their own."""

    def make(*options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        made = {device: folder / f"{device}.so" for device in ("cuda", "virtual")}
        for path in made.values():
            text = 'extern int puts(const char*); void say() { puts(""); }'
            command = ["gcc", "-shared", "-fPIC", "-s", "-o", path, "-xc", "-", "-xnone", *options]
            subprocess.run(command, input=text, text=True, check=True)
        return made

    return make


def test_the_same_libraries_give_the_same_bytes(libraries, tmp_path):
    first, second = libraries(), libraries()
    for file in second.values():
        os.utime(file, (10**9, 10**9))
        file.chmod(0o700)
    made = [wheel.pack(each, tmp_path / name).read_bytes() for each, name in ((first, "one"), (second, "two"))]
    assert made[0] == made[1]


def test_the_files_are_of_the_commits_time(libraries, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(10**9))
    with zipfile.ZipFile(wheel.pack(libraries(), tmp_path / "dist")) as made:
        assert {info.date_time[:3] for info in made.infolist()} == {(2001, 9, 9)}


def test_each_device_has_its_library(libraries, tmp_path):
    given = libraries()
    given["cuda"].write_bytes(given["cuda"].read_bytes() + b"more")
    with zipfile.ZipFile(wheel.pack(given, tmp_path / "dist")) as made:
        for device, file in given.items():
            assert made.read(f"onnxruntime_ep_encore/{device}/{environment.LIBRARY}") == file.read_bytes()


def test_a_wheel_that_is_too_large_is_none(libraries, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "LARGEST_BYTES", 10_000)
    with pytest.raises(environment.Failed, match=r"the wheel has 0.0 MB; .*fewer GPUs \(--architectures\)"):
        wheel.pack(libraries(), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("needed", ["libmissing.so", "libgomp.so.1"])
def test_a_library_that_needs_others_than_the_systems_is_refused(libraries, tmp_path, needed):
    other = tmp_path / "libother.so"
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{needed}", "-xc", "/dev/null", "-o", other], check=True)
    with pytest.raises(environment.Failed, match=f"not work everywhere, for its libraries need {needed}$"):
        wheel.pack(libraries("-Wl,--no-as-needed", other), tmp_path / "dist")


def test_where_cuda_is_built_for_other_gpus():
    assert environment.library("cuda", "80-real;120") == ROOT / "build" / "cuda-80-real-120" / environment.LIBRARY
    assert environment.library("cuda") == ROOT / "build" / "cuda" / environment.LIBRARY
