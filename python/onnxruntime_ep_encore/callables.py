"""Models as functions: what goes in are arrays and tensors of any library, and the same kind comes out."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .completions import Completions
from .registration import encores
from .texts import is_on, lengths_of
from .values import STRING, Input, Outputs, Values, refuse_what_is_no_tensor

NO_PROTOCOL = (
    "its graphs replay with the buffers that they were captured with, and here each call brings its own; auto_graph "
    "replays those"
)
_WARM_UPS = 3  # a run is eager, one captures, and one replays; where data decides, one rehearses


class Graphed:
    """A model as a function; encore.graphed() makes it. Any threads may call it at once.

    What comes out is of the kind that came in, and on the device if any input is there: then the first one on the
    device says which kind, else the first one. One output comes alone, several as a tuple that has their names, too.
    """

    def __init__(self, session, ort) -> None:
        refuse_what_is_no_tensor(session)
        device_id, library, self._pad = _whereabouts(session, ort)
        self._inputs = [Input(arg) for arg in session.get_inputs()]
        self._names = [each.name for each in self._inputs]
        self._by_name = {each.name: each for each in self._inputs}
        self._output_names = [arg.name for arg in session.get_outputs()]
        self._make_outputs = Outputs.named(self._output_names)
        self._values = values = Values(ort, device_id)
        # Where outputs go: all to the device but strings; to pinned memory but what no array holds.
        types = [Input(arg) for arg in session.get_outputs()]
        self._all_on_host = [values.on_host] * len(types)
        self._on_device = [values.on_host if each.type == STRING else values.on_device for each in types]
        self._for_arrays = [values.pinned if each.dtype else values.on_host for each in types]
        self._wait = ort.RunOptions()
        self._completions = Completions(library, ort)
        self._abandoned: deque = deque()  # runs that nobody asks for any more, with what they read
        self.session = session  # the last to go: before onnxruntime 1.28 no tensor of its may outlive it

    def __call__(self, /, *inputs, **named):
        """Runs the model, and waits for it."""
        feeds, kind = self._taken(inputs, named)
        if kind.is_host and all(isinstance(feed, np.ndarray) for feed in feeds):
            return self._as_outputs(self._run_arrays(feeds, kind))
        found, _kept = self._run(feeds, self._all_on_host if kind.is_host else self._on_device, self._wait)
        return self._as_outputs([self._values.leave(each, kind) for each in found])

    def submit(self, /, *inputs, **named) -> Future:
        """Runs the model without waiting for the device; result() waits, and raises what went wrong.

        The caller may change the inputs at once, but for arrays in pinned memory: those in pageable memory have been
        read, and what it enqueues on its default stream, or on torch's current one, comes after the run.
        """
        self._sweep()
        return Future(self, *self._taken(inputs, named))

    def warm_up(self, shapes: Iterable | None = None, /, **dimensions: int | Iterable[int]) -> Graphed:
        """Runs each shape a few times, so that its graph is captured; returns the callable.

        run.warm_up([(1, 3), (2, 3)])                   shapes of the one input
        run.warm_up([{"x": (1, 3), "mask": (1,)}])      of several, by name or in their order
        run.warm_up(batch=[1, 2], sequence=[32, 64])    all combinations of lengths, by the dimensions' names

        Dimensions that are not named have the lengths of `pad`. Inputs are zeros.
        """
        if shapes is not None and dimensions:
            raise TypeError("warm_up() takes shapes, or lengths of dimensions, and not both")
        if shapes is None:
            wanted = [self._by_dimensions(lengths) for lengths in self._combinations(dimensions)]
        else:
            wanted = [self._by_input(given) for given in shapes]
        for each in wanted:
            zeros = [one.zeros(shape) for one, shape in zip(self._inputs, each)]
            for _ in range(_WARM_UPS):
                self(*zeros)
        return self

    def __repr__(self):
        return f"<graphed({', '.join(map(str, self._inputs))}) -> {', '.join(self._output_names)}>"

    # ---- what goes in

    def _taken(self, inputs, named):
        """Values as onnxruntime takes them, in the model's order, and the kind of what comes out."""
        if named or len(inputs) != len(self._inputs):
            inputs = self._in_order(inputs, named)
        feeds, kind = [], None
        for spec, value in zip(self._inputs, inputs):
            feed, its = self._values.take(spec, value)
            feeds.append(feed)
            if kind is None or (kind.is_host and not its.is_host):
                kind = its
        return feeds, kind or self._values.arrays

    def _in_order(self, inputs, named):
        if len(inputs) > len(self._inputs):
            raise TypeError(f"{len(inputs)} inputs were given, and the model has {self._listed()}")
        values = dict(zip(self._names, inputs))
        for name in named:
            if name not in self._by_name:
                raise TypeError(f"there is no input '{name}': the model has {self._listed()}")
            if name in values:
                raise TypeError(f"input '{name}' was given twice, by its place and by its name")
        values.update(named)
        missing = [str(each) for each in self._inputs if each.name not in values]
        if missing:
            raise TypeError(f"{'an input is' if len(missing) == 1 else 'inputs are'} missing: {', '.join(missing)}")
        return [values[name] for name in self._names]

    def _listed(self):
        return ", ".join(map(str, self._inputs)) or "no inputs"

    # ---- shapes to warm up with

    def _combinations(self, dimensions):
        known = list(dict.fromkeys(name for each in self._inputs for name in each.shape if isinstance(name, str)))
        for name in dimensions:
            if name not in known:
                raise TypeError(f"no input has a dimension '{name}'; there are {', '.join(known) or 'none'}")
        given = {**self._pad, **dimensions}
        lengths = {name: each if isinstance(each, Iterable) else [each] for name, each in given.items()}
        names = [name for name in known if name in lengths]
        return [dict(zip(names, each)) for each in itertools.product(*(lengths[name] for name in names))]

    def _by_dimensions(self, lengths):
        return [each.shape_with(lengths) for each in self._inputs]

    def _by_input(self, given):
        """The shapes of all inputs, given by name, in their order, or as that of the only one."""
        if isinstance(given, Mapping):
            for name in given.keys() - self._by_name.keys():
                raise TypeError(f"there is no input '{name}': the model has {self._listed()}")
            return [given[each.name] if each.name in given else each.shape_with({}) for each in self._inputs]
        if len(self._inputs) == 1 and not any(isinstance(length, Iterable) for length in given):
            return [given]
        if len(given) != len(self._inputs) or not all(isinstance(each, Iterable) for each in given):
            raise TypeError(f"{given!r} is no shape for each input: the model has {self._listed()}")
        return given

    # ---- runs

    def _run_arrays(self, feeds, kind):
        made = self.session.run(None, dict(zip(self._names, feeds)))
        return [self._values.leave_array(each, kind) for each in made]

    def _run(self, feeds, devices, run_options):
        """What comes out, and what has to live as long as the run."""
        vector, kept = self._values.as_vector(self._inputs, feeds)
        found = self._values.vector()
        self.session.run_with_ortvaluevector(run_options, self._names, vector, self._output_names, found, devices)
        # By index: each iteration of such a vector costs what many runs do.
        return [found[at] for at in range(len(devices))], (vector, kept)

    def _as_outputs(self, made):
        return made[0] if len(made) == 1 else self._make_outputs(made)

    def _sweep(self):
        """Lets go of abandoned runs that are over."""
        while True:
            try:
                run = self._abandoned.popleft()
            except IndexError:
                return
            if not run[0].done():
                return self._abandoned.appendleft(run)
            self._completions.give_back(run[0])


class Future:
    """A run that Graphed.submit() has begun. If nobody asks for it, it goes on to its end all the same."""

    def __init__(self, run: Graphed, feeds, kind) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._outputs: Any = None
        self._error: Exception | None = None
        self._found = self._kept = self._completion = None
        self._graphed = run  # the last to go, with the session
        if any(isinstance(feed, np.ndarray) and feed.dtype.kind in "OSU" for feed in feeds):
            self._at_once(feeds)
        else:
            self._begin(feeds)

    def done(self) -> bool:
        """Whether result() would not wait."""
        completion = self._completion
        return completion is None or completion.done() or self._completion is None  # another run's meanwhile

    def result(self):
        """Waits for the run; what came out, or raises what went wrong. Other threads go on meanwhile."""
        with self._lock:
            self._finish()
            if self._error:
                raise copy.copy(self._error)
            return self._made()

    @property
    def outputs(self):
        """What comes out, without a wait if it stays on the device: to be used on the default stream, on torch's
        current one, or by DLPack. Only result() tells whether the run went well."""
        with self._lock:
            if self._kind.is_host:
                self._finish()
            if self._error:
                raise copy.copy(self._error)
            return self._made()

    def __del__(self):
        if getattr(self, "_completion", None):
            self._graphed._abandoned.append((self._completion, self._kept, self._found))

    def _at_once(self, feeds):
        """Strings: onnxruntime takes them only as arrays, and waits."""
        run = self._graphed
        try:
            self._outputs = run._as_outputs(run._run_arrays(feeds, self._kind))
        except Exception as error:
            self._keep(error)

    def _begin(self, feeds):
        run, kind = self._graphed, self._kind
        completion = run._completions.take()
        devices = run._for_arrays if kind.is_host else run._on_device
        try:
            self._found, self._kept = run._run(feeds, devices, completion.run_options)
            if kind.is_torch and not kind.is_host:
                run._values.order_torch(completion)
        except Exception as error:
            self._keep(error)
        self._completion = completion

    def _finish(self):
        completion = self._completion
        if not completion:
            return
        try:
            completion.wait()
        except RuntimeError as error:
            self._keep(self._error or error)
        if self._error:
            self._found = None
        elif self._kind.is_host:
            self._made()
        self._completion = self._kept = None
        self._graphed._completions.give_back(completion)

    def _keep(self, error):
        """Without its traceback, whose frames have this future: both would wait for the garbage collector, and that
        may take the session before its tensors."""
        self._error = error.with_traceback(None)

    def _made(self):
        """What came out, as it was the first time."""
        if self._found is not None:
            run, kind = self._graphed, self._kind
            if kind.is_host:
                made = [run._values.leave_pinned(each, kind) for each in self._found]
            else:
                made = [run._values.leave(each, kind, self._completion) for each in self._found]
            self._outputs = run._as_outputs(made)
            self._found = None
        return self._outputs


def _whereabouts(session, ort):
    """The device that the session is on, the library, and what is padded; raises if that is not Encore."""
    providers = session.get_providers()
    found = [device for device in encores(ort) if device.ep_name in providers]
    if not found:
        raise ValueError(f"the session is not on Encore; its providers are {', '.join(providers)}")
    entry = lambda key: _entry(session, found[0].ep_name, key)  # noqa: E731
    if is_on(entry("enable_cuda_graph")):
        raise ValueError(f"the session has enable_cuda_graph: {NO_PROTOCOL}")
    return int(entry("device_id") or 0), found[0].ep_metadata["library_path"], lengths_of(entry("pad"))


def _entry(session, name, key):
    """What the session's options say; None if nothing."""
    for entry in f"ep.cuda.{key}", f"ep.{name.lower()}.{key}", key:
        try:
            return session.get_session_options().get_session_config_entry(entry)
        except RuntimeError:  # there is none
            continue
    return None
