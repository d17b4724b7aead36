"""A model's sessions, as a command makes them: whatever is wrong with the model or the options is a Mistake."""

import contextlib
import re

from .. import devices, register, session
from .environment import is_virtual
from .inputs import pairs
from .mistake import Mistake


def device():
    """The first device of Encore's."""
    try:
        offered = devices(register())
    except Exception as error:
        raise Mistake(error) from error
    if not offered:
        raise Mistake("Encore offers no device here; `encore check` without a model says what is missing")
    return offered[0]


def warn_of_virtual(chosen):
    if is_virtual(chosen):
        print("This is the virtual GPU, which computes on the CPU: its times say nothing about a GPU's.")


@contextlib.contextmanager
def mistakes_of(model, assumed=()):
    """What onnxruntime and Encore raise in here is the model's, or the options', or due to what was assumed."""
    try:
        yield
    except Mistake:
        raise
    except Exception as error:
        said = re.sub(
            r".*while running (\S+) node\. Name:('.*?') Status Message: (.*)", _node_and_words, str(error), flags=re.S
        )
        hint = f" ({', '.join(assumed)}: --shape and --input tell others)" if assumed else ""
        raise Mistake(f"{model}: {said}{hint}") from error


def _node_and_words(failed):
    """Without the names that onnxruntime gives to fused nodes; Encore's words name the node inside."""
    op, name, words = failed.groups()
    return words if "ExecutionProvider" in op else f"{op} node {name}: {words}"


def open_session(model, given, **options):
    """On Encore, with options given on the command line, and others."""
    if not model.is_file():
        raise Mistake(f"{model} is not a file")
    with mistakes_of(model):
        return session(model, **{**options, **pairs(given, "option")})


def on_cpu(model):
    """onnxruntime's own, which may lack an operator; then None."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:
        return None
