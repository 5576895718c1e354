"""Compilation by numba: functions with a cache on disk, and classes that compiled functions take.

A compiled function is generic in the classes of its arguments. A family of distributions or a kind
of design matrix is a named tuple that derives from :class:`Compiled`; compiled functions read its
fields and call those of its methods that are marked by :func:`compiled_method`, like Python does.
numba compiles such a function once for every class that it is called with, and keeps the result in
its cache.

numba looks at the source file of the function that it has cached, not at those of the functions
that this one calls. Hence the type of a :class:`Compiled` class contains a digest of its sources:
the files of the class and its bases, of the functions that they import from their own package, and
of this package. An edit of a family invalidates what was compiled for that family and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar, TypeVar, cast, overload

import numba
from numba import types
from numba.core.datamodel import models
from numba.extending import (
    intrinsic,
    overload_attribute,
    overload_method,
    register_jitable,
    register_model,
    typeof_impl,
)

Function = TypeVar("Function", bound=Callable[..., Any])

#: flags of every compiled function. They are explicit because numba lets a function without flags
#: inherit those of the first caller that it is compiled for
FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": False}
#: sums may be reordered; NaN and infinity keep their meaning
REORDERED = {"contract", "reassoc", "nsz", "arcp"}

_SOURCES = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]


@overload
def compiled(function: Function) -> Function: ...
@overload
def compiled(**flags: Any) -> Callable[[Function], Function]: ...
def compiled(function: Any = None, **flags: Any) -> Any:
    """Compile a function by numba, with a cache on disk if one can be written.

    Args:
        function: the function; without it, a decorator is returned.
        **flags: of ``numba.njit``; by default those in ``FLAGS``, and the GIL is released.
    """
    if function is None:
        return functools.partial(compiled, **flags)
    flags = {**FLAGS, "nogil": True, **flags}
    try:
        return numba.njit(cache=True, **flags)(function)
    except RuntimeError as error:  # numba's "cannot cache function …: no locator available"
        if "locator" not in str(error):
            raise
        _warn_uncached()
        return numba.njit(**flags)(function)


@functools.cache
def _warn_uncached() -> None:
    """Warn, at most once, that compiled functions are not kept."""
    warnings.warn(
        "numba finds no writable directory for its cache, so functions are compiled again in every "
        "process, which takes seconds: set NUMBA_CACHE_DIR to a directory that can be written",
        RuntimeWarning,
        stacklevel=3,
    )


@overload
def helper(function: Function) -> Function: ...
@overload
def helper(**flags: Any) -> Callable[[Function], Function]: ...
def helper(function: Any = None, **flags: Any) -> Any:
    """Let compiled functions call a function, which stays one of Python otherwise.

    It has no cache of its own, and may take named tuples that are made in compiled code.

    Args:
        function: the function; without it, a decorator is returned.
        **flags: as those of ``compiled``.
    """
    if function is None:
        return functools.partial(helper, **flags)
    return register_jitable(**{**FLAGS, "forceinline": True, **flags})(function)


class CompiledType(types.NamedTuple):
    """The numba type of a :class:`Compiled` class.

    Two types are equal if the class's name, its digest and the types of its fields are. They are
    pickled by name: an index of numba's cache can then be read where a class in it is not defined.

    Args:
        fields: types of the fields.
        cls: the class.
    """

    def __init__(self, fields: Sequence[Any], cls: type[Compiled]) -> None:
        super().__init__(fields, cls)
        self.digest = cls.source_digest

    @property
    def key(self) -> Any:
        """Return the key that decides whether two types are equal."""
        return self.instance_class, self.types, self.digest

    def __bool__(self) -> bool:
        return True  # numba asks whether a method has an object; a type without fields has length 0

    def __reduce__(self) -> Any:
        cls = self.instance_class
        return _restored_type, (cls.__module__, cls.__qualname__, self.digest, self.types)


class _AbsentType(types.Type):
    """A :class:`CompiledType` in the cache whose class is not defined, or not any more."""

    def __init__(self, *names: Any) -> None:
        super().__init__(f"absent {names}")
        self.names = names

    def __reduce__(self) -> Any:
        return _restored_type, self.names


def _restored_type(module: str, name: str, digest: str, fields: tuple[Any, ...]) -> Any:
    """Return the type that was pickled; nothing is imported to find its class."""
    cls: Any = sys.modules.get(module)
    for part in name.split("."):
        cls = getattr(cls, part, None)
    if getattr(cls, "source_digest", None) != digest:
        return _AbsentType(module, name, digest, fields)
    return CompiledType(fields, cls)


register_model(CompiledType)(models.TupleModel)


class Compiled:
    """Mixin of named tuples that compiled functions take, and whose methods they call.

    Derive a class from this (first) and from a named tuple of its fields. Fields must be floats,
    integers or arrays, always of the same type.

    Attributes:
        source_digest: a hash of the source files.
    """

    source_digest: ClassVar[str] = ""
    _source_files: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        files = set().union(*(getattr(base, "_source_files", ()) for base in cls.__bases__))
        _add_sources(cls.__module__, files)
        cls._source_files = frozenset(files)
        digest = hashlib.sha256(b"\0".join(_SOURCES))
        for file in sorted(cls._source_files):
            digest.update(_read(file))
        cls.source_digest = digest.hexdigest()
        typeof_impl.register(cls)(_type_of)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and tuple.__eq__(cast(Any, self), cast(Any, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), tuple(cast(Any, self))))

    def __bool__(self) -> bool:
        return True  # also without fields


def _add_sources(name: str, files: set[str]) -> None:
    """Add the file of a module, and those of functions that it imports from its own package."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None or file in files:
        return
    files.add(file)
    package = name.partition(".")[0]
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            used = value.__name__
        elif isinstance(value, FunctionType) or hasattr(value, "py_func"):
            used = str(value.__module__)
        else:
            continue
        if used.partition(".")[0] == package and used != package:
            _add_sources(used, files)


@functools.cache
def _read(file: str) -> bytes:
    """Return a source file, or its loader's code where there is no file."""
    try:
        return Path(file).read_bytes()
    except OSError:  # in a zip file, say: its path has the version
        return file.encode()


def _type_of(value: Any, context: Any) -> CompiledType:
    """Return the numba type of an instance."""
    return CompiledType([_field_type(field, context) for field in value], type(value))


def _field_type(field: Any, context: Any) -> Any:
    """Return the type of a field: one for arrays that can be written and for those that cannot."""
    kind = typeof_impl(field, context)
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


@overload
def compiled_method(function: Function) -> Function: ...
@overload
def compiled_method(**flags: Any) -> Callable[[Function], Function]: ...
def compiled_method(function: Any = None, **flags: Any) -> Any:
    """Let compiled functions call a method of a :class:`Compiled` class, and of its subclasses.

    Methods that override it need no mark. What they call must be compiled as well, or be other
    such methods. Arrays in the fields of a class may be read-only, and are not written.

    Args:
        function: the method of the base class; without it, a decorator is returned.
        **flags: of numba, for it and all that override it; by default those in ``FLAGS``.
    """
    if function is None:
        return functools.partial(compiled_method, **flags)
    name = function.__name__

    @functools.wraps(function)
    def method(self: Any, *_: Any) -> Any:
        return getattr(self.instance_class, name)

    cast(Any, overload_method)(
        CompiledType, name, jit_options={**FLAGS, "forceinline": True, **flags}, strict=False
    )(method)
    return function


def compiled_constants(*names: str) -> None:
    """Let compiled functions read attributes of :class:`Compiled` classes, as constants."""
    for name in names:

        def constant(self: Any, name: str = name) -> Any:
            value = getattr(self.instance_class, name)
            return lambda self: value  # noqa: ARG005

        cast(Any, overload_attribute)(CompiledType, name, strict=False)(constant)


Instance = TypeVar("Instance", bound=Compiled)


def like(instance: Instance, values: tuple[Any, ...]) -> Instance:
    """Return values as an instance of the class of another; also in compiled functions."""
    return type(instance)(*values)


def _cast_like(typing: Any, instance: Any, values: Any) -> Any:
    """Do the same, casting the values to the types of the other's fields."""
    del typing

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (_, given) = signature.return_type, signature.args
        fields = [
            context.cast(builder, builder.extract_value(arguments[1], i), given[i], kind[i])
            for i in range(len(kind))
        ]
        return context.make_tuple(builder, kind, fields)

    return instance(instance, values), make


cast_like: Any = intrinsic(_cast_like)


def _like(instance: Any, values: Any) -> Any:
    del instance, values
    return lambda instance, values: cast_like(instance, values)


cast(Any, numba.extending.overload)(like, strict=False)(_like)
