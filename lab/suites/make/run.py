#!/usr/bin/python3
"""A C project of a hundred files built with `make -j4`, rebuilt after changes, against a local twin."""
import os, random, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
NFILES = s.pick(24, 100)
work, twin = s.p("project"), f"{s.tmp}/project"

MAKEFILE = """CC ?= gcc
# The same bytes wherever it is built.
CFLAGS = -O1 -g -MMD -Iinclude -ffile-prefix-map=$(CURDIR)=.
LDFLAGS = -Wl,--build-id=none
SRC := $(wildcard src/*/*.c) src/main.c
OBJ := $(SRC:.c=.o)
all: program libunits.so
program: $(OBJ) libunits.a
\t$(CC) $(LDFLAGS) -o $@ src/main.o -L. -l:libunits.a
libunits.a: $(filter-out src/main.o,$(OBJ))
\trm -f $@
	$(AR) rcsD $@ $^
libunits.so: $(filter-out src/main.o,$(OBJ))
\t$(CC) $(LDFLAGS) -shared -o $@ $^
%.o: %.c
\t$(CC) $(CFLAGS) -fPIC -c -o $@ $<
clean:
\trm -f $(OBJ) $(OBJ:.o=.d) program libunits.a libunits.so
-include $(OBJ:.o=.d)
"""


def generate(root):
    rng = random.Random(4)
    for d in ["include"] + [f"src/m{i}" for i in range(5)]:
        os.makedirs(f"{root}/{d}")

    def put(name, text):
        with open(f"{root}/{name}", "w") as f:
            f.write(text)
    put("Makefile", MAKEFILE)
    for h in range(10):
        put(f"include/h{h}.h", f"#ifndef H{h}\n#define H{h}\n#define BASE{h} {h * 7 + 1}\n#endif\n")
    for i in range(NFILES):
        hs = rng.sample(range(10), 3)
        body = "".join(f'#include "h{h}.h"\n' for h in hs) + "#include <string.h>\n#include <stdio.h>\n"
        for j in range(rng.randint(3, 12)):
            body += (f"unsigned u{i}_{j}(unsigned a) {{\n  unsigned r = a * {rng.randint(3, 99)} + BASE{hs[j % 3]};\n"
                     f"  for (int k = 0; k < 9; k++) r = r * 31 + (unsigned)k;\n  return r;\n}}\n")
        put(f"src/m{i % 5}/u{i}.c", body)
    calls = "".join(f"unsigned u{i}_0(unsigned);\n" for i in range(NFILES))
    sums = "".join(f"  r = u{i}_0(r);\n" for i in range(NFILES))
    put("src/main.c", f"#include <stdio.h>\n{calls}int main(void) {{\n  unsigned r = 1;\n{sums}  printf(\"%u\\n\", r);\n  return 0;\n}}\n")


def make(root, *words):
    return sh(["make", "-j4", "-s", *words], cwd=root)


def objects(root):
    out = {}
    for top, _, files in os.walk(root):
        for f in files:
            if f.endswith(".o"):
                out[os.path.relpath(os.path.join(top, f), root)] = os.stat(os.path.join(top, f)).st_mtime_ns
    return out


generate(twin)
make(twin)


@s.case("build")
def _():
    generate(work)
    make(work)
    equal(sh([f"{work}/program"]), sh([f"{twin}/program"]), "output of the program")


@s.case("same-objects")
def _():
    same_tree(snapshot(work), snapshot(twin))


@s.case("up-to-date")
def _():
    before = objects(work)
    make(work)
    equal(objects(work), before, "an unchanged project was built again")


@s.case("only-what-changed")
def _():
    time.sleep(1.1)   # make compares times; some servers keep whole seconds only
    before = objects(work)
    for root in (work, twin):
        with open(f"{root}/include/h3.h", "a") as f:
            f.write("#undef BASE3\n#define BASE3 1000\n")
    make(work), make(twin)
    after = objects(work)
    changed = {k for k in after if after[k] != before[k]}
    users = {k for k in after if '"h3.h"' in open(f"{work}/{k[:-2]}.c").read()}
    equal(changed, users, "objects built again")
    equal(sh([f"{work}/program"]), sh([f"{twin}/program"]), "output of the program")


@s.case("shared-library")
def _():
    out = sh([sys.executable, "-c", f"import ctypes; print(ctypes.CDLL('{work}/libunits.so').u1_0(1))"])
    want = sh([sys.executable, "-c", f"import ctypes; print(ctypes.CDLL('{twin}/libunits.so').u1_0(1))"])
    equal(out, want, "a function of the library")


@s.case("clean")
def _():
    make(work, "clean"), make(twin, "clean")
    same_tree(snapshot(work), snapshot(twin))
