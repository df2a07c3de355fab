"""A torch in small: compiled for aarch64, and its libraries say which torch was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder import process

_COMPILER = "aarch64-linux-gnu-gcc"

_C10 = """\
int c10_stub(void) { return 10; }
"""

_TORCH = """\
int c10_stub(void);
const char *torch_which(void) { return c10_stub() == 10 ? "%s" : "neither"; }
"""

# Against Python's stable ABI, written out: its headers for aarch64 need not be here.
# https://docs.python.org/3/c-api/stable.html, https://docs.python.org/3/c-api/module.html
_EXTENSION = """\
typedef struct _object PyObject;
typedef PyObject *function(PyObject *, PyObject *);
struct method { const char *name; function *call; int flags; const char *doc; };
struct module {
  struct { long count; void *type; PyObject *(*init)(void); long index; PyObject *copy; } base;
  const char *name; const char *doc; long size; struct method *methods;
  void *slots; void *traverse; void *clear; void *free;
};
PyObject *PyModule_Create2(struct module *, int);
PyObject *PyUnicode_FromString(const char *);
const char *torch_which(void);

static PyObject *which(PyObject *self, PyObject *none) {
  return PyUnicode_FromString(torch_which());
}
static struct method methods[] = { {"which", which, 4 /* METH_NOARGS */, 0}, {0} };
static struct module module = { {0}, "%s", 0, -1, methods };
PyObject *PyInit_%s(void) { return PyModule_Create2(&module, 3 /* PYTHON_ABI_VERSION */); }
"""


def compile_torch(which: str, folder: Path) -> Mapping[str, bytes]:
    """The compiled files of a torch whose `torch._C.which()` answers `which`, by path."""
    folder.mkdir(parents=True)
    # DT_RPATH, as in PyTorch's own wheels: unlike DT_RUNPATH it goes before LD_LIBRARY_PATH.
    own = "-Wl,--disable-new-dtags,-rpath,$ORIGIN"
    _link("libc10.so", _C10, folder=folder)
    _link("libtorch.so", _TORCH % which, "-lc10", own, folder=folder)
    extension = _EXTENSION % ("torch._C", "_C")
    _link("_C.abi3.so", extension, "-ltorch", f"{own}/lib", folder=folder)
    return {
        "torch/_C.abi3.so": (folder / "_C.abi3.so").read_bytes(),
        "torch/lib/libc10.so": (folder / "libc10.so").read_bytes(),
        "torch/lib/libtorch.so": (folder / "libtorch.so").read_bytes(),
    }


def compile_against_torch(module: str, folder: Path) -> bytes:
    """An extension module that links to the torch in `folder` and finds it where it is loaded."""
    name = f"{module}.abi3.so"
    _link(name, _EXTENSION % (module, module), "-ltorch", folder=folder)
    return (folder / name).read_bytes()


def _link(name: str, source: str, *options: str, folder: Path) -> None:
    code = folder / f"{name}.c"
    code.write_text(source, encoding="ascii")
    argv = [_COMPILER, "-shared", "-fPIC", "-O2", "-nostdlib", f"-Wl,-soname,{name}"]
    process.run([*argv, "-o", name, code.name, "-L.", *options], cwd=folder)
