#!/usr/bin/env python3
"""Writes ort_abi.h, ONNX Runtime's C ABI as one typed C++ header, from the tables in this folder.

    generate.py ort_abi.h [--check ort_abi_check.inc] [--tables DIR]

--check also writes the list that check_official.cc compares with the official headers.
A type that no table knows is an error that names its slot: nothing is ever guessed or emitted as void*.
"""

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_TABLE = 17  # the tables write "<=17" for what their oldest source already had
OLDEST_CHECKED = 23  # official headers older than this lack most of the plugin interface
GATED_SINCE = 24  # the oldest API that a plugin with kernels can run on; younger slots get a named constant

BUILTIN = set("void bool char int float double size_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t".split())
QUALIFIERS = {"const", "unsigned", "union", "noexcept"}
OPAQUE = re.compile(r"Ort[A-Z]\w*")


class TableError(Exception):
    pass


@dataclass(frozen=True)
class Slot:
    struct: str
    index: int
    name: str
    c_type: str
    since: int

    @property
    def is_function(self):
        return "(*)" in self.c_type

    @property
    def is_pointer_sized(self):
        return self.is_function or self.c_type.endswith("*")


@dataclass(frozen=True)
class Enumerator:
    enum: str
    name: str
    value: int
    since: int


@dataclass(frozen=True)
class Typedef:
    name: str
    c_type: str
    since: int


@dataclass(frozen=True)
class Tables:
    structs: dict  # name -> [Slot], in table order
    enums: dict  # name -> [Enumerator]
    typedefs: list

    @property
    def newest_api(self):
        return max(slot.since for slots in self.structs.values() for slot in slots)


def parse_since(text):
    return OLDEST_TABLE if text == f"<={OLDEST_TABLE}" else int(text)


def plain_type(text):
    """C++ needs no `struct X` or `enum X` where X is declared."""
    return re.sub(r"\b(struct|enum)\s+", "", text).replace(" * ", "* ").strip()


def read_tsv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_tables(folder):
    structs, enums = {}, {}
    for row in read_tsv(folder / "slots.tsv"):
        c_type, since = plain_type(row["c_type"]), parse_since(row["since_api"])
        slots = structs.setdefault(row["struct"], [])
        slots.append(Slot(row["struct"], int(row["index"]), row["name"], c_type, since))
    for row in read_tsv(folder / "enums.tsv"):
        entry = Enumerator(row["enum"], row["name"], int(row["value"]), parse_since(row["since_api"]))
        enums.setdefault(entry.enum, []).append(entry)
    typedefs = [
        Typedef(row["name"], plain_type(row["c_type"]), parse_since(row["since_api"]))
        for row in read_tsv(folder / "typedefs.tsv")
    ]
    return Tables(structs, enums, typedefs)


def types_in(c_type):
    """(name, is_pointer) of each type in a declaration: the first word of the result and of every parameter."""
    for piece in re.split(r"[(),;{}]", c_type):
        if piece.strip().startswith("*"):  # the declarator of a function pointer
            continue
        for word in re.finditer(r"[A-Za-z_]\w*", piece):
            if word.group() not in QUALIFIERS:
                yield word.group(), piece[word.end() :].lstrip().startswith("*")
                break


def opaque_types(tables):
    """Types that are only pointed to and have no table of their own. Raises on anything else unknown."""
    known = BUILTIN | set(tables.structs) | set(tables.enums) | {t.name for t in tables.typedefs}
    uses = [(f"{s.struct}.{s.name}", s.c_type) for slots in tables.structs.values() for s in slots]
    uses += [(t.name, t.c_type) for t in tables.typedefs]
    opaque, unknown = set(), []
    for where, c_type in uses:
        for name, is_pointer in types_in(c_type):
            if name in known:
                continue
            if is_pointer and OPAQUE.fullmatch(name):
                opaque.add(name)
            else:
                unknown.append(f"{where}: no table gives the type '{name}'")
    if unknown:
        raise TableError("\n".join(unknown))
    return sorted(opaque)


def declare(c_type, name):
    """`R (*)(A)` and a name make `R (*name)(A)`; `T` and a name make `T name`."""
    return c_type.replace("(*)", f"(*{name})", 1) if "(*)" in c_type else f"{c_type} {name}"


def slot_declaration(slot):
    if not slot.is_function:
        return declare(slot.c_type, slot.name)
    # Exceptions must not cross the C ABI: noexcept makes the compiler refuse a callback that may throw.
    must_use = " ORT_MUST_USE_RESULT" if slot.c_type.startswith("OrtStatusPtr") else ""
    return f"{declare(slot.c_type, slot.name)} noexcept{must_use}"


def by_dependency(structs):
    """Structs in table order, those that are members of others first."""
    done = []

    def visit(name):
        if name in done:
            return
        for slot in structs[name]:
            if slot.c_type in structs:
                visit(slot.c_type)
        done.append(name)

    for name in structs:
        visit(name)
    return done


def enum_lines(tables):
    for name, entries in tables.enums.items():
        yield f"enum {name} {{"
        for e in entries:
            value = "-2147483647 - 1" if e.value == -(2**31) else e.value  # C++ has no literal for INT_MIN
            yield f"  {e.name} = {value},"
        yield "};"
        yield f"static_assert(sizeof({name}) == 4);"
        yield ""


def struct_lines(name, slots):
    yield f"struct {name} {{"
    yield from (f"  {slot_declaration(slot)};" for slot in slots)
    yield "};"
    if all(slot.is_pointer_sized for slot in slots[1:]):  # a leading version is padded to eight bytes
        yield f"static_assert(sizeof({name}) == 8 * {len(slots)});"
        yield f"static_assert(offsetof({name}, {slots[-1].name}) == 8 * {len(slots) - 1});"
    yield ""


def since_lines(tables):
    for name, slots in tables.structs.items():
        gated = [slot for slot in slots if slot.since >= GATED_SINCE]
        if gated:
            yield f"namespace {name} {{"
            yield from (f"inline constexpr uint32_t {slot.name} = {slot.since};" for slot in gated)
            yield f"}}  // namespace {name}"


def header(tables):
    lines = [
        "// Made by abi/generate.py from abi/*.tsv; edit those.",
        "#pragma once",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef ENCORE_OFFICIAL_ORT  // the same code against the official headers",
        "#include <onnxruntime_c_api.h>",
        "#else",
        "",
        "#ifndef ORT_MUST_USE_RESULT",
        "#define ORT_MUST_USE_RESULT __attribute__((warn_unused_result))",
        "#endif",
        "",
        'extern "C" {',
        "",
    ]
    lines += [f"struct {name};" for name in sorted([*opaque_types(tables), *tables.structs])] + [""]
    lines += enum_lines(tables)
    lines += [f"typedef {declare(t.c_type, t.name)};" for t in tables.typedefs] + [""]
    for name in by_dependency(tables.structs):
        lines += struct_lines(name, tables.structs[name])
    lines += [
        '}  // extern "C"',
        "",
        "// Two four-byte fields share the first word here, so the rule of eight bytes a slot doesn't hold.",
        "static_assert(offsetof(OrtKernelImpl, Compute) == 8 && sizeof(OrtKernelImpl) == 40);",
        "",
        "#endif  // ENCORE_OFFICIAL_ORT",
        "",
        "namespace ort_abi {",
        f"inline constexpr uint32_t kNewestApi = {tables.newest_api};",
        "",
        f"// The API version that brought each slot younger than {GATED_SINCE - 1}.",
        "namespace since {",
        *since_lines(tables),
        "}  // namespace since",
        "}  // namespace ort_abi",
        "",
    ]
    return "\n".join(lines)


def gated(since, line):
    return [line] if since <= OLDEST_CHECKED else [f"#if ORT_API_VERSION >= {since}", line, "#endif"]


def size_lines(name, slots):
    """A header of version V ends each struct at the first slot that V lacks."""
    first_slots = {}  # since -> its first slot, for versions after the oldest checked
    for slot in slots[1:]:
        if slot.since > max(OLDEST_CHECKED, slots[0].since):
            first_slots.setdefault(slot.since, slot.name)
    keyword = "#if"
    expected = f"SIZE({name}, sizeof(tables::{name}))"
    for since, first in sorted(first_slots.items(), reverse=True):
        yield f"{keyword} ORT_API_VERSION >= {since}"
        yield expected
        expected = f"SIZE({name}, offsetof(tables::{name}, {first}))"
        keyword = "#elif"
    yield f"{keyword} ORT_API_VERSION >= {slots[0].since}"
    yield expected
    yield "#endif"


def check_list(tables):
    lines = [
        "// Made by abi/generate.py; check_official.cc says what the macros mean.",
        f"#if ORT_API_VERSION < {OLDEST_CHECKED}",
        f'#error "the official headers are too old to compare: {OLDEST_CHECKED} is the oldest"',
        "#endif",
    ]
    for entries in tables.enums.values():
        for e in entries:
            lines += gated(e.since, f"ENUMERATOR({e.name})")
    for t in tables.typedefs:
        lines += gated(t.since, f"TYPEDEF({t.name}, {t.c_type})")
    for name, slots in tables.structs.items():
        for slot in slots:
            kind = "MEMBER" if slot.c_type.startswith("union") else "SLOT"  # an unnamed type can only be placed
            c_type = "" if kind == "MEMBER" else f", {slot.c_type}"
            lines += gated(slot.since, f"{kind}({name}, {slot.name}{c_type})")
        lines += size_lines(name, slots)
    return "\n".join(lines) + "\n"


def write_if_changed(path, text):
    """Leaves an equal file alone, so that nothing is rebuilt for it."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header", type=Path)
    parser.add_argument("--check", type=Path, metavar="OUT")
    parser.add_argument("--tables", type=Path, metavar="DIR", default=Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    try:
        tables = read_tables(arguments.tables)
        write_if_changed(arguments.header, header(tables))
        if arguments.check:
            write_if_changed(arguments.check, check_list(tables))
    except (TableError, OSError, KeyError, ValueError) as error:
        sys.exit(f"{Path(__file__).name}: {error}")


if __name__ == "__main__":
    main()
