"""What building and running need: system packages, the virtual environment, other onnxruntimes, and the builds."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
from onnxruntime_ep_encore.libraries import gpu_works, why_no_gpu

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PRESETS = ("virtual", "virtual-asan", "virtual-tsan", "cuda", "cuda-all")
LIBRARY = "libonnxruntime_providers_cuda_plugin.so"
OLDEST_CMAKE = (3, 25)
NEWEST_ORT = next(
    line.split("==")[1]
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line.startswith("onnxruntime==")
)
OLDER_ORTS = ("1.24.4", "1.26.0", "1.28.0", "1.30.0", "1.31.1")
NVCC_PLACES = "CUDACXX, PATH, CUDA_HOME, /usr/local/cuda"
JOBS = int(os.environ.get("ENCORE_JOBS") or len(os.sched_getaffinity(0)))


class Failed(Exception):
    """Something a person has to read; said without a traceback."""


def say(text):
    print(f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text, flush=True)


def run(*command, **options):
    """Runs a command; what it prints is shown, and a failure ends the whole."""
    result = subprocess.run([str(part) for part in command], **options)
    if result.returncode:
        text = " ".join(map(str, command))
        raise Failed(f"failed with {result.returncode}: {text if len(text) < 500 else text[:500] + ' …'}")
    return result


def nvcc():
    """The CUDA compiler, or None; cmake/nvcc.cmake looks in the same places."""
    places = [os.environ.get("CUDACXX"), shutil.which("nvcc")]
    places += [f"{home}/bin/nvcc" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    return next((place for place in places if place and shutil.which(place)), None)


def variables(ort=NEWEST_ORT, **more):
    """The environment in which everything runs: the venv's programs first, and one of the onnxruntimes."""
    path = [ROOT / "python"] + ([] if ort == NEWEST_ORT else [ort_folder(ort)])
    env = {**os.environ, "VIRTUAL_ENV": str(VENV), "PYTHONPATH": os.pathsep.join(map(str, path))}
    env["PATH"] = f"{VENV / 'bin'}{os.pathsep}{env.get('PATH', '')}"
    if nvcc():
        env["CUDACXX"] = nvcc()
    # What one checkout has compiled serves the others on the machine, wherever they are.
    env |= {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    if "ENCORE_LIBRARY" in more:  # which may be of the other device
        env.pop("ENCORE_DEVICE", None)
    return {**env, **more}


# ---- setting up


def setup():
    """Does what is missing, and nothing if nothing is."""
    with _one_at_a_time():
        _system_packages()
        _virtual_environment()


@contextlib.contextmanager
def _one_at_a_time():
    """So that two of these may be started at once in one checkout."""
    with open(ROOT / "requirements.txt") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _system_packages():
    wanted = {
        "g++": shutil.which("g++"),
        "cmake": shutil.which("cmake"),
        "ninja-build": shutil.which("ninja"),
        "ccache": shutil.which("ccache"),
        "libgtest-dev": Path("/usr/include/gtest/gtest.h").exists(),
        "libgmock-dev": Path("/usr/include/gmock/gmock.h").exists(),
        "libeigen3-dev": Path("/usr/include/eigen3/Eigen/Core").exists(),
        _venv_package(): _has_ensurepip(),
    }
    missing = [package for package, found in wanted.items() if not found]
    if not missing:
        return
    root = [] if os.geteuid() == 0 else ["sudo"]
    if not shutil.which("apt-get") or (root and not shutil.which("sudo")):
        raise Failed(
            f"these are missing (Debian's names): {' '.join(missing)}.\n"
            "There is no apt-get, or no right to use it, here: install them, then run this again."
        )
    say(f"installing {' '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(*root, "apt-get", "update", "-q", env=env)
    run(*root, "apt-get", "install", "-q", "-y", "--no-install-recommends", *missing, env=env)


def _venv_package():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"python{version}-venv"


def _has_ensurepip():
    # Debian's own Python has the module ensurepip, but the wheels that it installs are in another package.
    if (VENV / "bin" / "pip").exists():
        return True
    command = [sys.executable, "-c", "import ensurepip; ensurepip.version()"]
    return subprocess.run(command, capture_output=True).returncode == 0


def _virtual_environment():
    lists = [ROOT / "requirements.txt", ROOT / "requirements-data.txt"]
    key = hashlib.sha256(b"".join([sys.version.encode(), *(file.read_bytes() for file in lists)])).hexdigest()
    stamp = VENV / "requirements.sha256"
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == key:
        return
    say(f"installing what requirements.txt lists into {VENV}, Python {sysconfig.get_python_version()}")
    same_python = (VENV / "bin" / f"python{sysconfig.get_python_version()}").exists()
    run(sys.executable, "-m", "venv", *([] if same_python else ["--clear"]), VENV)
    pip(lists[0])
    pip(lists[1], "--no-deps")
    if _cmake_version() < OLDEST_CMAKE:
        pip(f"cmake>={'.'.join(map(str, OLDEST_CMAKE))}")
    stamp.write_text(key)


def _cmake_version():
    text = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in text.split()[2].split("-")[0].split(".")[:2])


def pip(what, *options):
    """Installs a requirement or a file of them."""
    wanted = ("-r", what) if isinstance(what, Path) else (what,)
    run(PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", *options, *wanted)


def ort_folder(version):
    """Where an older onnxruntime lies; installed when first asked for."""
    if version not in OLDER_ORTS:
        raise Failed(f"onnxruntime {version} isn't one of {', '.join((*OLDER_ORTS, NEWEST_ORT))}")
    # Wheels differ from Python to Python.
    folder = ROOT / "build" / "ort" / f"{version}-py{sysconfig.get_python_version()}"
    # What it depends on comes from the virtual environment.
    return packages_in(folder, f"onnxruntime {version}", f"onnxruntime=={version}", "--no-deps")


def packages_in(folder, words, what, *options):
    """The folder, with what pip installs there when it is first asked for."""
    with _one_at_a_time():
        if not folder.exists():
            say(f"installing {words} into {folder}")
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            pip(what, *options, "--target", partial)
            partial.replace(folder)
    return folder


# ---- building


def library(preset, architectures=None):
    return folder(preset, architectures) / LIBRARY


def folder(preset, architectures=None):
    """Where a preset is built, or a preset of CUDA's for others than its own architectures."""
    return ROOT / "build" / "-".join([preset, *(architectures or "").replace(";", " ").split()])


def build(preset, *targets, architectures=None):
    """Configures and builds a preset; returns the seconds that it took.

    The preset cuda is for the GPUs that are here, if there are any and no architectures are given.
    """
    if preset not in PRESETS:
        raise Failed(f"no preset is named '{preset}'; there are: {', '.join(PRESETS)}")
    if preset.startswith("cuda") and not nvcc():
        raise Failed(f"the preset {preset} needs nvcc, from CUDA 12.8 on. Looked at: {NVCC_PLACES}.")
    setup()
    start = time.monotonic()
    place = folder(preset, architectures)
    options = [f"-DPython3_EXECUTABLE={PYTHON}"]
    if architectures or (preset == "cuda" and gpu_works()):
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={architectures or ''}")
    run("cmake", "--preset", preset, "-B", place, *options, cwd=ROOT, env=variables())
    wanted = ["--target", *targets] if targets else []
    run("cmake", "--build", place, "-j", JOBS, *wanted, cwd=ROOT, env=variables())
    return time.monotonic() - start


def why_virtual():
    """Why nothing can be built here for a GPU that is here; empty if it can."""
    if not gpu_works():
        return f"no GPU works here ({why_no_gpu()})"
    return "" if nvcc() else f"a GPU is here, but no nvcc (looked at: {NVCC_PLACES})"


def library_for(device=None):
    """Builds the library for `cuda` or `virtual`, by default $ENCORE_DEVICE or what works here; returns its path.

    $ENCORE_LIBRARY is taken as it is. Where there is no nvcc, an earlier build for cuda is.
    """
    if os.environ.get("ENCORE_LIBRARY"):
        return os.environ["ENCORE_LIBRARY"]
    device = device or os.environ.get("ENCORE_DEVICE") or None
    works = gpu_works()
    if device == "cuda" and not works:
        raise Failed("no GPU works here; `./encore doctor` says why")
    preset = device or ("cuda" if works and (nvcc() or library("cuda").exists()) else "virtual")
    if works and not device and preset == "virtual":
        say("A GPU is here, but neither nvcc nor a build for it: this is the virtual GPU.")
    if preset == "virtual" or nvcc():
        build(preset, "onnxruntime_providers_cuda_plugin")
    return str(library(preset))


# ---- layout of the sources


def sources(*suffixes):
    """The repository's own files, tracked or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name.endswith(suffixes) and (ROOT / name).exists()]


def format_sources(check=False):
    setup()
    clang = ["--dry-run", "--Werror"] if check else ["-i"]
    native = sources(".h", ".cc", ".cu", ".cuh")
    for some in (native[i : i + 200] for i in range(0, len(native), 200)):
        run(VENV / "bin" / "clang-format", "--style=file", *clang, *some)
    python = sources(".py")
    run(VENV / "bin" / "ruff", "format", "-q", *(["--check", "--diff"] if check else []), *python)
    run(VENV / "bin" / "ruff", "check", "-q", *([] if check else ["--fix"]), *python)
