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
def install(tmp_path):
    """install(*options): a folder with small libraries of both devices, where the package has them."""

    def make(*options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for device in ("cuda", "virtual"):
            path = library_in(folder, device)
            path.parent.mkdir(parents=True)
            text = 'extern int puts(const char*); void say() { puts(""); }'
            command = ["gcc", "-shared", "-fPIC", "-s", "-o", path, "-xc", "-", "-xnone", *options]
            subprocess.run(command, input=text, text=True, check=True)
        return folder

    return make


def library_in(folder, device):
    return folder / wheel.PACKAGE / device / environment.LIBRARY


def test_the_same_libraries_give_the_same_bytes(install, tmp_path):
    first, second = install(), install()
    for file in (library_in(second, device) for device in ("cuda", "virtual")):
        os.utime(file, (10**9, 10**9))
        file.chmod(0o700)
    made = [wheel.pack(each, tmp_path / name).read_bytes() for each, name in ((first, "one"), (second, "two"))]
    assert made[0] == made[1]


def test_the_files_are_of_the_commits_time(install, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(10**9))
    with zipfile.ZipFile(wheel.pack(install(), tmp_path / "dist")) as made:
        assert {info.date_time[:3] for info in made.infolist()} == {(2001, 9, 9)}


def test_each_device_has_its_library(install, tmp_path):
    folder = install()
    with open(library_in(folder, "cuda"), "ab") as file:
        file.write(b"more")
    with zipfile.ZipFile(wheel.pack(folder, tmp_path / "dist")) as made:
        for device in ("cuda", "virtual"):
            wanted = library_in(folder, device).read_bytes()
            assert made.read(f"onnxruntime_ep_encore/{device}/{environment.LIBRARY}") == wanted


def test_a_wheel_that_is_too_large_is_none(install, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "LARGEST_BYTES", 10_000)
    with pytest.raises(environment.Failed, match=r"the wheel has 0\.\d MB; .*fewer GPUs \(--architectures\)"):
        wheel.pack(install(), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("needed", ["libmissing.so", "libgomp.so.1"])
def test_a_library_that_needs_others_than_the_systems_is_refused(install, tmp_path, needed):
    other = tmp_path / "libother.so"
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{needed}", "-xc", "/dev/null", "-o", other], check=True)
    with pytest.raises(environment.Failed, match=f"not work everywhere, for its libraries need {needed}$"):
        wheel.pack(install("-Wl,--no-as-needed", other), tmp_path / "dist")


def test_where_cuda_is_built_for_other_gpus():
    assert environment.library("cuda", "80-real;120") == ROOT / "build" / "cuda-80-real-120" / environment.LIBRARY
    assert environment.library("cuda") == ROOT / "build" / "cuda" / environment.LIBRARY
