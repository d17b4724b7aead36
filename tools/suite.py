"""The stages of `./encore test`, from the cheapest on. One that fails doesn't keep the others from being run."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import environment as env
import generated
import site_of_docs

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
# On two cores, with an empty ccache. More is said aloud, and fails nothing.
WHOLE_MINUTES = 50
BUILD_MINUTES = {"virtual": 7, "virtual-asan": 7, "virtual-tsan": 4, "cuda": 12}
OLDEST_ORT, *_MIDDLE_ORTS = env.OLDER_ORTS
CORE_ORTS = dict.fromkeys(_MIDDLE_ORTS, "") | {_MIDDLE_ORTS[-1]: "auto_graph=0"}  # and the options of their sessions
LARGEST_CUDA_BYTES = 22_000_000
EXPORTS = [
    "CreateEpFactories",
    "ReleaseEpFactory",
    *(f"encore_completion_{name}" for name in ("done", "free", "new", "order", "wait")),
]
SANITIZERS = {
    "virtual-asan": {"ASAN_OPTIONS": "handle_sigill=1"},  # undefined behaviour traps, and ASan says where
    # Without what computes at length on one stream, which says nothing about threads.
    "virtual-tsan": {
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
        "GTEST_FILTER": "-Attend.*:*FewRows*:NormedRows*:FloatBlas*:*TuningTimes*:Sort.*",
    },
}
# What onnxruntime and Python do is seen only where it calls the sanitizer's functions, such as locks and allocation.
SUPPRESSED = env.ROOT / "tests" / "tsan.supp"
SANITIZED_PYTHON = {
    # To remember less of each allocation saves a tenth of the time.
    "virtual-asan": {"ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=3:handle_sigill=1"},
    "virtual-tsan": {"TSAN_OPTIONS": f"exitcode=66:second_deadlock_stack=1:suppressions={SUPPRESSED}"},
}
RUNTIMES = {"virtual-asan": ("libasan.so", "libstdc++.so"), "virtual-tsan": ("libtsan.so",)}
WORKERS = env.JOBS + 1  # for some wait: for a delay that they asked for, say
# Where tests are marked so; the others need not be collected.
CORE = [
    file.relative_to(env.ROOT / "tests")
    for file in sorted((env.ROOT / "tests").glob("*/test_*.py"))
    if "mark.core" in file.read_text()
]
THREADED = [f"tests/python/test_{name}.py" for name in ("threads", "streams", "devices", "sessions", "c_application")]
# Its threads are onnxruntime's, which hand work over by atomics that TSan doesn't see.
SPREAD = "tests/python/test_threads.py::test_a_fault_fails_a_run_that_onnxruntime_spreads_over_threads"
# Operators that have another way where a GPU has no clusters, as of 8.0, or less shared memory for a block, as of 12.0.
OTHER_WAYS = {"80": ("softmax", "reduce", "group_query_attention"), "120": ("attention", "block_weights")}
# How a test runner's last line looks.
CLOSING = re.compile(r"^(=* ?\d+ (passed|failed|error).* in [\d.]+s.*|\d+% tests passed.*)$")


@dataclass
class Stage:
    name: str
    run: object
    needs: tuple = ()
    minutes: float = 0.75  # its share of the whole
    in_brief: object = None  # instead of run() where CI is late
    seconds: float = 0
    outcome: str = "not run"
    closings: list = field(default_factory=list)

    @property
    def passed(self):
        return self.outcome.startswith("passed")


def run(quick=False, expression=None):
    """Runs the stages; 0 if all passed."""
    start = time.monotonic()
    env.setup()
    stages = _of_expression(expression) if expression else _quick() if quick else _all()
    # Machines of CI differ by a factor of two, and end what takes them 90 minutes. Where the stages so far took more
    # than their shares, the longest of those that follow are run in brief, and the table says so.
    due = 0
    for stage in stages:
        late = IN_CI and time.monotonic() - start > due * 60
        _run_stage(stage, {other.name: other for other in stages}, late)
        due += stage.minutes
    _print_summary(stages, time.monotonic() - start)
    return 0 if all(stage.passed for stage in stages) else 1


def _of_expression(expression):
    return [_build("virtual"), Stage("Python tests", lambda: _pytest("-k", expression), ("build virtual",))]


def _quick():
    newest = Stage(f"Python, onnxruntime {env.NEWEST_ORT}", lambda: _pytest(), ("build virtual",), 5)
    return [_build("virtual"), _native("virtual"), newest]


def _all():
    stages = [
        Stage("format", _format),
        Stage("site", site_of_docs.build),
        _build("virtual", "all"),  # its C++ tests run under ASan
        Stage("generated files", _generated, ("build virtual",)),
        Stage("demo", _demo, ("build virtual",)),
    ]
    for preset in SANITIZERS:
        python = lambda *few, preset=preset: _sanitized_python(preset, *few)
        native = _native(preset)
        native.in_brief = lambda preset=preset: _ctest(preset, "--exclude-regex", "_as_")  # other GPUs
        threads = Stage(f"Python, {preset}", python, (f"build {preset}",), in_brief=lambda of=python: of("--few"))
        stages += [_build(preset), native, threads]
    on_asan = ("build virtual-asan",)
    sanitized = lambda *few: _sanitized_operators("virtual-asan", *few)
    stages.append(Stage("operators, virtual-asan", sanitized, on_asan, 4, lambda: sanitized("--few")))
    stages += [
        Stage("soak", _soak, ("build virtual",), 1.1, lambda: _soak(20)),
        Stage("fuzz", _fuzz, on_asan, 2, lambda: _fuzz(2800)),
    ]
    if IN_CI or env.nvcc():
        cuda = _build("cuda")
        if not env.gpu_works():  # where kernels are but compiled, and need not be fast
            cuda.in_brief = lambda: _build_unoptimized("cuda")
        stages += [cuda, Stage("library", _check_library, ("build cuda",))]
        of_newest = lambda: _wheel(env.NEWEST_ORT)
        stages.append(Stage("wheel", _wheel, ("build virtual", "build cuda"), 1.5, of_newest))
        if env.gpu_works():
            on_gpu = lambda: _pytest(preset="cuda")
            stages += [_native("cuda"), Stage("Python, on the GPU", on_gpu, ("build cuda",))]
    for version, options in CORE_ORTS.items():
        core = lambda version=version, options=options: _pytest(
            "-m", "core and not newest", ort=version, where=CORE, ENCORE_TEST_OPTIONS=options
        )
        stages.append(Stage(f"Python core set, onnxruntime {version} {options}".strip(), core, ("build virtual",)))
    # Nodes by themselves, and groups; tests of fusion count these only so.
    which = "fus or whole or convolution or graph or control or memory or roles or sessions"
    apart = lambda *few: _pytest("-k", which, *few, where=["python"], ENCORE_TEST_OPTIONS="regions=0")
    stages.append(Stage("Python, without regions", apart, ("build virtual",), 3, lambda: apart("--few")))
    # Nodes by themselves, too: recorded, captured, replayed, and with tensors elsewhere.
    automatic = lambda many="--representative": _pytest(
        many, where=["ops"], ENCORE_TEST_OPTIONS="regions=all auto_graph=1"
    )
    by_few = lambda: automatic("--few")
    stages.append(Stage("operators, by automatic graphs", automatic, ("build virtual",), 3, by_few))
    for architecture, operators in OTHER_WAYS.items():
        where = [f"ops/test_{name}.py" for name in operators]
        other = lambda where=where, arch=architecture: _pytest(
            "--representative", where=where, ENCORE_VIRTUAL_ARCH=arch
        )
        stages.append(Stage(f"operators, as on sm_{architecture}", other, ("build virtual",)))
    # What operators compute does not depend on onnxruntime, so the oldest calls each with each type, and not with all
    # shapes; everything about sessions, memory and threads it runs whole. Freed memory is filled, for older ones read
    # it if a session goes before its tensors.
    oldest = lambda: _pytest("--representative", ort=OLDEST_ORT, MALLOC_PERTURB_="165")
    core = lambda: _pytest("-m", "core and not newest", ort=OLDEST_ORT, where=CORE, MALLOC_PERTURB_="165")
    stages.append(Stage(f"Python representative set, onnxruntime {OLDEST_ORT}", oldest, ("build virtual",), 3, core))
    newest, few = lambda: _pytest(), lambda: _pytest("--few")
    stages.append(Stage(f"Python, onnxruntime {env.NEWEST_ORT}", newest, ("build virtual",), 5, few))
    return stages


def _build(preset, *targets):
    build = lambda: env.build(preset, *(targets or ("all", "cpp_tests")))
    return Stage(f"build {preset}", build, minutes=BUILD_MINUTES[preset])


def _build_unoptimized(preset):
    """But for its C++ tests. nvcc takes two thirds of the time; ccache knows nothing of its variable."""
    with mock.patch.dict(os.environ, NVCC_APPEND_FLAGS="-Ofc mid", CCACHE_NAMESPACE="unoptimized"):
        return env.build(preset, "all")


def _native(preset):
    return Stage(f"C++ tests, {preset}", lambda: _ctest(preset), (f"build {preset}",))


# ---- what stages do


def _format():
    env.format_sources(check=True)


def _generated():
    generated.write(check=True)


def _demo():
    """All three ways have to read the same text, and replays to equal eager runs."""
    env.run(env.PYTHON, env.ROOT / "tools" / "demo.py", "--device", "virtual", "--seconds", "0.2")


def _ctest(preset, *options):
    folder = env.ROOT / "build" / preset
    jobs = 1 if preset == "cuda" else env.JOBS  # a GPU's memory is measured; a virtual one is a process's own
    command = [
        *_launcher(preset),
        "ctest",
        "--test-dir",
        folder,
        "--no-tests=error",
        "--output-on-failure",
        "-j",
        jobs,
        *options,
    ]
    closings = _stream(command, _on(preset, GTEST_BRIEF="1", **SANITIZERS.get(preset, {})))
    log = (folder / "Testing" / "Temporary" / "LastTest.log").read_text(errors="replace")
    skipped = sorted(set(re.findall(r"^(\S+): Skipped$", log, re.MULTILINE)))
    if skipped and IN_CI:
        raise env.Failed(f"skipped, which CI does not allow: {' '.join(skipped)}")
    return closings


def _pytest(*options, ort=env.NEWEST_ORT, preset="virtual", where=("",), **variables):
    paths = [env.ROOT / "tests" / each for each in where]
    command = [env.PYTHON, "-m", "pytest", "-q", "-n", WORKERS, *options, *paths]
    return _stream(command, _on(preset, ort, **variables))


def _sanitized_operators(preset, *options):
    """Each kernel, where it would leave its memory or its types' values; its threads run from the last to the first.
    A replay is enough for that."""
    where = [env.ROOT / "tests" / each for each in ("ops", "python/test_elementwise.py")]
    command = [env.PYTHON, "-m", "pytest", "-q", "-n", WORKERS, "--representative", *options, *where]
    more = {"ENCORE_VIRTUAL_ORDER": "reversed", "ENCORE_TEST_REPLAYS": "1"}
    return _stream(command, _in_sanitized_python(preset) | more)


def _launcher(preset):
    """TSan of older compilers can't live with much randomised addresses."""
    works = preset == "virtual-tsan" and subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
    return ["setarch", "-R"] if works else []


def _sanitized_python(preset, *options):
    """The tests with threads."""
    command = [*_launcher(preset), env.PYTHON, "-m", "pytest", "-q", "-p", "no:xdist", *options, *THREADED]
    if preset == "virtual-tsan":
        command += ["--deselect", SPREAD]
    return _stream(command, _in_sanitized_python(preset))


def _in_sanitized_python(preset):
    """With the sanitizer's runtime in Python's process."""
    find = lambda name: subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout
    preload = ":".join(str(Path(find(name).strip()).resolve()) for name in RUNTIMES[preset])
    return _on(preset, LD_PRELOAD=preload, **SANITIZED_PYTHON[preset])


def _soak(seconds=60):
    """Threads that do random things over a few sessions."""
    return _stream([env.PYTHON, env.ROOT / "tests" / "soak" / "soak.py", "--seconds", seconds], _on("virtual"))


def _fuzz(cases=5600):
    """Random nodes and chains of them, under ASan and UBSan, the same every time: two minutes' worth on two cores."""
    program = env.ROOT / "tests" / "fuzz" / "fuzz.py"
    command = [env.PYTHON, program, "--cases", cases, "--seconds", "600", "--seed", "1", "--jobs", env.JOBS]
    return _stream(command, _in_sanitized_python("virtual-asan"))


def _check_library():
    """The library exports what onnxruntime looks up and nothing else, and is no larger than it may be."""
    library = env.library("cuda")
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exports = sorted(line.split()[-1] for line in lines.splitlines())
    if exports != EXPORTS:
        raise env.Failed(f"{library} exports {' '.join(exports)}; it has to be {' and '.join(EXPORTS)} alone")
    stripped = library.with_suffix(".stripped")
    env.run("strip", "-o", stripped, library)
    size = stripped.stat().st_size
    print(f"{library}: {size / 1e6:.2f} MB stripped")
    if size >= LARGEST_CUDA_BYTES:
        raise env.Failed(f"the library has {size} bytes; fewer than {LARGEST_CUDA_BYTES} are allowed")
    if not env.gpu_works():
        _check_missing_gpu(library)
    return _stream(
        [env.PYTHON, "-m", "pytest", "-q", env.ROOT / "tests" / "package" / "compiled_programs.py"], env.variables()
    )


def _wheel(*orts):
    """Of what was built before, installed where there is nothing else of Encore's, beside the oldest and the newest."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = env.ROOT / "tools" / "wheel.py"
        env.run(env.PYTHON, wheel, "--architectures", "here", "--output", folder, env=env.variables())
        (made,) = Path(folder).glob("*.whl")
        command = [env.PYTHON, "-m", "pytest", "-q", env.ROOT / "tests" / "package" / "installed.py"]
        orts = " ".join(orts or (OLDEST_ORT, env.NEWEST_ORT))
        return _stream(command, env.variables(ENCORE_WHEEL=str(made), ENCORE_WHEEL_ORTS=orts))


def _check_missing_gpu(library):
    """Where there is no GPU the library still loads, offers no device, and says why."""
    script = "import onnxruntime_ep_encore as e; assert not e.devices(e.register())"
    command = [env.PYTHON, "-c", script]
    done = subprocess.run(command, env=env.variables(ENCORE_LIBRARY=str(library)), capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode or "Encore offers no device: " not in said:
        raise env.Failed(f"without a GPU, registering {library} said: {said[-2000:]}")


def _on(preset, ort=env.NEWEST_ORT, **more):
    return env.variables(ort, ENCORE_LIBRARY=str(env.library(preset)), **more)


def _stream(command, variables):
    """Runs a test runner in plain sight; returns its closing lines."""
    closings = []
    command = [str(part) for part in command]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, cwd=env.ROOT, env=variables, **options) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if CLOSING.match(line.strip()):
                closings.append(line.strip())
    if process.returncode:
        raise env.Failed("; ".join(closings) or f"{Path(command[0]).name} ended with {process.returncode}")
    return closings


# ---- running and telling


def _run_stage(stage, by_name, late):
    in_brief = late and stage.in_brief
    env.say(f"\n-- {stage.name}{', in brief, for it is late' * bool(in_brief)}")
    broken = [name for name in stage.needs if not by_name[name].passed]
    if broken:
        stage.outcome = f"not run: {broken[0]} failed"
        return print(stage.outcome)
    start = time.monotonic()
    try:
        closings = stage.in_brief() if in_brief else stage.run()
        stage.closings = closings if isinstance(closings, list) else []
        stage.outcome = "passed in brief" if in_brief else "passed"
    except env.Failed as failure:
        stage.outcome = f"FAILED: {failure}"
        print(stage.outcome)
    stage.seconds = time.monotonic() - start


def _print_summary(stages, seconds):
    env.say(f"\n-- {len(stages)} stages in {seconds:.0f} s, of {WHOLE_MINUTES * 60} that the whole may take")
    for stage in stages:
        print(f"{stage.seconds:6.0f} s  {stage.name}: {'; '.join([stage.outcome, *stage.closings])}")
    for stage in stages:
        if stage.seconds > stage.minutes * 60:
            print(f"WARNING: {stage.name} took {stage.seconds:.0f} s, over its share of {stage.minutes * 60:.0f} s")
    if seconds > WHOLE_MINUTES * 60:
        print(f"WARNING: the whole took {seconds / 60:.0f} minutes; it may take {WHOLE_MINUTES}")
    if shutil.which("ccache"):
        subprocess.run(["ccache", "--show-stats"], check=False, env=env.variables())
    for closing in (closing for stage in stages for closing in stage.closings):
        print(closing)
