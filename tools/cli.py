"""The subcommands of ./encore. Standard library alone: this runs before anything is set up."""

import argparse
import os
import shutil
import sys

import environment as env

BENCHMARK = env.ROOT / "bench" / "models.py"


def main():
    parser = argparse.ArgumentParser(
        prog="./encore",
        description="Encore: a CUDA execution provider for stock onnxruntime. "
        "Each command but doctor first sets up what it needs (packages, virtual environment, build).",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name, function, help, **options):
        made = commands.add_parser(name, help=help, description=help, **options)
        made.set_defaults(function=function)
        return made

    command(
        "demo", demo, "read text from a picture with pretrained models: CPU, Encore, captured graphs", add_help=False
    )
    test = command("test", run_tests, "run the whole suite, as CI does")
    test.add_argument(
        "--quick", action="store_true", help="only the virtual build, its C++ tests and the newest onnxruntime"
    )
    test.add_argument(
        "-k", metavar="EXPRESSION", help="only the Python tests that match, as pytest takes it (implies --quick)"
    )
    made = command("build", build, "build a preset")
    made.add_argument(
        "preset", nargs="?", help=f"one of {', '.join(env.PRESETS)}; default: cuda with a GPU and nvcc, else virtual"
    )
    made.add_argument("--target", action="append", default=[], help="only this target of CMake; may be repeated")
    command(
        "doctor", doctor, "say what is here and what is missing: device, driver, libraries, onnxruntime", add_help=False
    )
    pages = command("docs", write_docs, "write what of docs/ is printed from tables in the code")
    pages.add_argument("--check", action="store_true", help="change nothing; fail if something would change")
    made = command("site", site, "build the documentation as a site, build/site; a broken link fails")
    made.add_argument(
        "--serve",
        nargs="?",
        const="127.0.0.1:8000",
        metavar="ADDRESS",
        help="serve it as well, and build it anew when a page changes; default: %(const)s",
    )
    command("wheel", wheel, "make the wheel with the libraries of both devices", add_help=False)
    if BENCHMARK.exists():
        command("bench", bench, "time whole models, eagerly and replayed", add_help=False)
    layout = command("format", format_sources, "lay out C++, CUDA and Python sources")
    layout.add_argument("--check", action="store_true", help="change nothing; fail if something would change")
    fresh = command("setup", setup, "install what is missing: system packages, virtual environment")
    fresh.add_argument("--all", action="store_true", help="also the older onnxruntimes that the tests use")
    clean = command("clean", remove, "remove the builds")
    clean.add_argument(
        "--all", action="store_true", help="also what was downloaded: the virtual environment, the older onnxruntimes"
    )

    arguments, rest = parser.parse_known_args()
    if rest and arguments.function not in (bench, demo, doctor, wheel):
        parser.error(f"unknown: {' '.join(rest)}")
    arguments.rest = rest
    try:
        return arguments.function(arguments)
    except env.Failed as failure:
        print(f"encore: {failure}", file=sys.stderr)
        return 1


def setup(arguments):
    env.setup()
    for version in env.OLDER_ORTS if arguments.all else ():
        env.ort_folder(version)
    env.say(f"ready: {env.VENV}")


def build(arguments):
    why_virtual = "" if arguments.preset else env.why_virtual()
    preset = arguments.preset or ("virtual" if why_virtual else "cuda")
    seconds = env.build(preset, *arguments.target)
    env.say(f"built {preset} in {seconds:.0f} s: {env.ROOT / 'build' / preset}")
    if why_virtual:
        env.say(f"This is the virtual GPU, which computes on the CPU, since {why_virtual}.")


def demo(arguments):
    return _become(env.ROOT / "tools" / "demo.py", arguments.rest)


def doctor(arguments):
    """In the virtual environment if there is one: who asks what is here wants nothing installed."""
    python = env.PYTHON if env.PYTHON.exists() else sys.executable
    os.execv(python, [str(python), str(env.ROOT / "tools" / "doctor.py"), *arguments.rest])


def bench(arguments):
    return _become(BENCHMARK, arguments.rest, ENCORE_LIBRARY=env.library_for())


def wheel(arguments):
    return _become(env.ROOT / "tools" / "wheel.py", arguments.rest)


def write_docs(arguments):
    import generated

    generated.write(arguments.check)


def site(arguments):
    import site_of_docs

    if arguments.serve:
        return site_of_docs.serve(arguments.serve)
    site_of_docs.build()
    env.say(f"built the site: {site_of_docs.SITE}")


def run_tests(arguments):
    import suite

    return suite.run(quick=arguments.quick or bool(arguments.k), expression=arguments.k)


def format_sources(arguments):
    env.format_sources(arguments.check)


def remove(arguments):
    builds = (env.ROOT / "build").glob("*")
    downloads = {env.ROOT / "build" / "ort", *(env.ROOT / "build").glob("site-packages-*")}
    for folder in [env.ROOT / "build", env.VENV] if arguments.all else set(builds) - downloads:
        shutil.rmtree(folder, ignore_errors=True)


def _become(program, arguments, **variables):
    """Runs a program of the repository in the virtual environment."""
    env.setup()
    os.execve(env.PYTHON, [str(env.PYTHON), str(program), *arguments], env.variables(**variables))


if __name__ == "__main__":
    sys.exit(main())
