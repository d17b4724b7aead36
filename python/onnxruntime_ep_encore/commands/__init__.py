"""The command `encore`: what a model becomes on this machine, and how fast it runs."""

import argparse
import sys
from pathlib import Path

from .. import __version__, get_cmake_dir
from . import bars
from .mistake import Mistake

_SHAPES = """
A shape is of an input, as x=1x3x224x224, or the length of a dimension by its name, as batch=8, or several to try, as
batch=1,8. What is not told is 1.
Floats are random, integers and booleans 1; --input ids=ids.npy, or ids=7, gives an input other contents.
"""


def main(arguments=None):
    try:
        args = _parser().parse_args(arguments)
        return args.run(args)
    except Mistake as mistake:
        print(f"encore: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


class _CmakeDir(argparse.Action):
    def __call__(self, parser, *_):
        try:
            print(get_cmake_dir())
        except FileNotFoundError as error:
            parser.error(str(error))
        parser.exit()


def _file(text):
    """One that is written in the end, when it is late to learn that it cannot be."""
    file = Path(text)
    if not file.parent.is_dir():
        raise Mistake(f"{file}: there is no folder {file.parent}")
    if file.is_dir():
        raise Mistake(f"{file} is a folder")
    return file


def _picture(text):
    file = _file(text)
    bars.check(file)
    return file


def _parser():
    parser = argparse.ArgumentParser(
        prog="encore", description="Encore: a CUDA execution provider for stock onnxruntime, with CUDA graphs."
    )
    parser.add_argument("--version", action="version", version=f"encore {__version__}")
    parser.add_argument(
        "--cmake-dir", action=_CmakeDir, nargs=0, help="print the folder that find_package(encore) reads, for C++"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name, run, about, **model):
        made = commands.add_parser(
            name, help=about, description=about, epilog=_SHAPES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.add_argument("model", type=Path, help="an ONNX file", **model)
        made.add_argument("--shape", action="append", default=[], metavar="NAME=LENGTHS", help="may be repeated")
        made.add_argument("--input", action="append", default=[], metavar="NAME=CONTENTS", help="may be repeated")
        made.add_argument(
            "--option", action="append", default=[], metavar="KEY=VALUE", help="of the provider, as use_tf32=0"
        )
        made.add_argument("--json", type=_file, metavar="FILE", help="write the same there, for programs")
        made.set_defaults(run=run)
        return made

    command(
        "check",
        _check,
        "What is here, and what a model becomes: where its nodes run and why, what is replayed, what memory it takes.",
        nargs="?",
    )
    bench = command("bench", _bench, "Time a model on the CPU and on Encore: eager, replayed, and with bound tensors.")
    bench.add_argument("--seconds", type=float, default=1.0, help="for each way of running it; default: 1")
    bench.add_argument("--profile", action="store_true", help="tell the nodes that take longest, eager and replayed")
    bench.add_argument(
        "--picture",
        type=_picture,
        metavar="FILE",
        help="draw the times there: an .svg, or a .png if matplotlib is here",
    )
    bench.add_argument("--no-cpu", action="store_true", help="leave out the CPU, with which results are compared")
    return parser


# Imported when they are asked for, as they import onnxruntime.
def _check(args):
    from .check import check

    return check(args)


def _bench(args):
    from .bench import bench

    return bench(args)
