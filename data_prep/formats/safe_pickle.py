"""Pickles of builtins and numpy arrays, interpreted without executing anything.

``pickle.load`` imports and calls whatever a file names. This module interprets the opcodes itself: a name in the file
selects an entry of ``ALLOWED``, and only arrays, scalars and builtin containers are ever constructed. A list is read
item by item, so that a file larger than the memory can be read.

Source of the opcodes: the documentation in Python's ``pickletools``.
"""

import pickletools
import re
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import IO, Any

import numpy as np

SAFE_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
# Longest text or bytes that a later item of a list may refer to, such as a key or a label.
LONGEST_SHARED = 16


class Callee(Enum):
    """The functions and types that a pickle of arrays names."""

    RECONSTRUCT = auto()
    FROM_BUFFER = auto()
    SCALAR = auto()
    NDARRAY = auto()
    DTYPE = auto()
    ENCODE = auto()


ALLOWED = {("numpy", "ndarray"): Callee.NDARRAY, ("numpy", "dtype"): Callee.DTYPE}
ALLOWED[("_codecs", "encode")] = Callee.ENCODE
for _core in ("numpy.core", "numpy._core"):
    ALLOWED[(f"{_core}.multiarray", "_reconstruct")] = Callee.RECONSTRUCT
    ALLOWED[(f"{_core}.multiarray", "scalar")] = Callee.SCALAR
    ALLOWED[(f"{_core}.numeric", "_frombuffer")] = Callee.FROM_BUFFER


class UnsafePickle(ValueError):
    """The file is damaged, or holds objects other than numbers, texts, containers and numpy arrays."""


class _Box:
    """An array or a dtype under construction, which a pickle makes first and fills later."""

    def __init__(self, value: Any = None):
        self.value = value


# The stack entry that the opcode MARK pushes.
MARK = object()
# What a damaged file can raise while it is interpreted.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, MemoryError, OverflowError, RecursionError)


def items(file: IO[bytes]) -> Iterator[Any]:
    """Read the items of a pickled list one by one, in constant memory.

    Args:
        file: binary file at the start of the pickle.

    Yields:
        The items, as builtins and numpy arrays.

    Raises:
        UnsafePickle: the file is damaged, is not a list, or holds other objects.
    """
    yield from _Interpreter(file, streamed=True).run()


def load(file: IO[bytes]) -> Any:
    """Read a whole pickle. Raises UnsafePickle as ``items`` does."""
    (value,) = _Interpreter(file, streamed=False).run()
    return value


class _Interpreter:
    """The stack machine of a pickle.

    Args:
        file: binary file at the start of the pickle.
        streamed: whether ``run`` yields the items of the outermost list one by one instead of the whole value.
    """

    def __init__(self, file: IO[bytes], *, streamed: bool):
        self.file = file
        self.streamed = streamed
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        # Entries stored so far: the index of the next MEMOIZE, which ``_flush`` does not reset when it removes some.
        self.num_memoised = 0

    def run(self) -> Iterator[Any]:
        try:
            for opcode, argument, _ in pickletools.genops(self.file):
                name = opcode.name
                if name in VALUES:
                    self.stack.append(argument)
                elif name in HANDLERS:
                    HANDLERS[name](self, argument)
                elif name not in IGNORED:
                    raise UnsafePickle(f"it uses the opcode {name}, which numbers, texts, lists and arrays do not need")
                # With the outermost list alone on the stack, its items are complete.
                if self.streamed and name in APPENDING and len(self.stack) == 1:
                    yield from self._flush()
            if not self.streamed:
                yield _unbox(self.stack.pop())
        except UnsafePickle:
            raise
        except DAMAGE as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UnsafePickle(f"it is damaged or not a pickle ({reason})") from None

    def _flush(self) -> Iterator[Any]:
        """Yield and forget the items that were appended to the outermost list."""
        outermost = self.stack[0]
        if not isinstance(outermost, list):
            raise UnsafePickle("it is not a list of examples")
        for item in outermost:
            yield _unbox(item)
        outermost.clear()
        # Only names, dtypes, labels and short constants are shared between items; the rest would fill the memory.
        self.memo = {key: value for key, value in self.memo.items() if _is_shared(value, outermost)}

    def pop_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        # A missing mark ends in an IndexError, which ``run`` reports as damage.
        start = len(self.stack) - 1
        while self.stack[start] is not MARK:
            start -= 1
        values = self.stack[start + 1 :]
        del self.stack[start:]
        return values

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]
        self.num_memoised += 1

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise UnsafePickle("it refers to an object that was not kept or never stored")
        self.stack.append(self.memo[index])

    def name(self, module: Any, attribute: Any) -> None:
        """Push what a name in the file stands for."""
        callee = ALLOWED.get((module, attribute))
        if callee is None:
            raise UnsafePickle(f"it names {module}.{attribute}; only numpy arrays and builtins are read")
        self.stack.append(callee)

    def set_items(self, pairs: list[Any]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.stack[-1][key] = value


def _is_shared(value: Any, outermost: list) -> bool:
    if isinstance(value, str | bytes):
        return len(value) <= LONGEST_SHARED
    is_dtype = isinstance(value, _Box) and isinstance(value.value, np.dtype)
    return is_dtype or isinstance(value, Callee | np.generic) or value is outermost


def _unbox(value: Any) -> Any:
    """Replace boxes by their arrays, in containers too."""
    # Only finished arrays leave the interpreter.
    if isinstance(value, _Box | Callee):
        if not isinstance(value, _Box) or not isinstance(value.value, np.ndarray):
            raise UnsafePickle("it holds an object that is neither an array nor a builtin")
        return value.value
    if isinstance(value, dict):
        return {key: _unbox(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_unbox(item) for item in value])
    return value


def _to_bytes(data: Any) -> bytes:
    # Python 2 wrote array data as text, which pickletools decodes as Latin-1.
    return data.encode("latin-1") if isinstance(data, str) else bytes(data)


def _array(data: Any, dtype: _Box, shape: tuple, is_fortran: bool) -> np.ndarray:
    array = np.frombuffer(_to_bytes(data), dtype.value)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _reduce(interpreter: _Interpreter, _: None) -> None:
    """Construct the object that a REDUCE asks for, from the entries of ``ALLOWED`` alone."""
    arguments = interpreter.stack.pop()
    callee = interpreter.stack.pop()
    result: object
    match callee:
        # An empty array or a dtype, which BUILD fills later.
        case Callee.RECONSTRUCT:
            result = _Box()
        case Callee.DTYPE:
            if not SAFE_DTYPE.fullmatch(arguments[0]):
                raise UnsafePickle(f"it holds an array of {arguments[0]!r}; only numbers are read")
            result = _Box(np.dtype(arguments[0]))
        # Values of bytes with a dtype.
        case Callee.SCALAR:
            dtype, data = arguments
            result = np.frombuffer(_to_bytes(data), dtype.value)[0]
        case Callee.FROM_BUFFER:
            data, dtype, shape, order = arguments
            result = _Box(_array(data, dtype, shape, order == "F"))
        # Bytes in the protocols 0 to 2, which have no opcode for them.
        case Callee.ENCODE:
            result = str.encode(arguments[0], "latin-1")
        case _:
            raise UnsafePickle("it calls an object that it constructed itself")
    interpreter.stack.append(result)


def _build(interpreter: _Interpreter, _: None) -> None:
    """Fill an array or a dtype with its state."""
    state = interpreter.stack.pop()
    box = interpreter.stack[-1]
    if not isinstance(box, _Box):
        raise UnsafePickle("it sets the state of an object that is not an array")
    # The state of a dtype: its version and its byte order first. The state of an array: shape, dtype, order, data last.
    if isinstance(box.value, np.dtype):
        box.value = box.value.newbyteorder(state[1])
    else:
        shape, dtype, is_fortran, data = state[-4:]
        box.value = _array(data, dtype, shape, is_fortran)


def _push(make: Callable[[list[Any]], Any], count: int | None) -> Callable[[_Interpreter, Any], None]:
    """Make the handler that replaces the last ``count`` values, or those above the mark, by one value."""

    def handler(interpreter: _Interpreter, _: Any) -> None:
        if count is None:
            values = interpreter.pop_mark()
        else:
            start = len(interpreter.stack) - count
            values = interpreter.stack[start:]
            del interpreter.stack[start:]
        interpreter.stack.append(make(values))

    return handler


def _append(interpreter: _Interpreter, _: None) -> None:
    item = interpreter.stack.pop()
    interpreter.stack[-1].append(item)


def _extend(interpreter: _Interpreter, _: None) -> None:
    values = interpreter.pop_mark()
    interpreter.stack[-1].extend(values)


def _stack_name(interpreter: _Interpreter, _: None) -> None:
    attribute = interpreter.stack.pop()
    module = interpreter.stack.pop()
    interpreter.name(module, attribute)


IGNORED = {"PROTO", "FRAME", "STOP"}
# Opcodes after which the outermost object is inspected: it may be a list with new items; at STOP it must be a list.
APPENDING = {"APPEND", "APPENDS", "LIST", "STOP"}
# Opcodes whose argument is the value itself.
VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
VALUES |= {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
VALUES |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}

HANDLERS: dict[str, Callable[[_Interpreter, Any], Any]] = {
    "MARK": lambda vm, _: vm.stack.append(MARK),
    "NONE": lambda vm, _: vm.stack.append(None),
    "NEWTRUE": lambda vm, _: vm.stack.append(True),
    "NEWFALSE": lambda vm, _: vm.stack.append(False),
    "EMPTY_LIST": _push(list, 0),
    "EMPTY_TUPLE": _push(tuple, 0),
    "EMPTY_DICT": _push(dict, 0),
    "TUPLE": _push(tuple, None),
    "TUPLE1": _push(tuple, 1),
    "TUPLE2": _push(tuple, 2),
    "TUPLE3": _push(tuple, 3),
    "LIST": _push(list, None),
    "DICT": _push(lambda pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)), None),
    "APPEND": _append,
    "APPENDS": _extend,
    "SETITEM": lambda vm, _: vm.set_items([vm.stack.pop(-2), vm.stack.pop()]),
    "SETITEMS": lambda vm, _: vm.set_items(vm.pop_mark()),
    "MEMOIZE": lambda vm, _: vm.put(vm.num_memoised),
    "PUT": lambda vm, index: vm.put(index),
    "BINPUT": lambda vm, index: vm.put(index),
    "LONG_BINPUT": lambda vm, index: vm.put(index),
    "GET": lambda vm, index: vm.get(index),
    "BINGET": lambda vm, index: vm.get(index),
    "LONG_BINGET": lambda vm, index: vm.get(index),
    "GLOBAL": lambda vm, path: vm.name(*path.split(" ", 1)),
    "STACK_GLOBAL": _stack_name,
    "REDUCE": _reduce,
    "BUILD": _build,
}
