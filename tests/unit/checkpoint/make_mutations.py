# SPDX-License-Identifier: MIT
"""Random mutations of good safetensors files, with the verdict of the Python package `safetensors`.

Usage: make_mutations.py COUNT SEED > FILE. One case a line: `accept HEX` or `refuse HEX`, HEX being the whole file.
data/mutations.txt is `make_mutations.py 400 1`; the test reads any other file named by TESSERA_MUTATIONS.
"""
import json
import random
import sys

import safetensors

NUMBERS = ["0", "-0", "1", "2", "-1", "4", "8", "24", "1.0", "1e0", "0.5", "01", "+1", "9223372036854775807",
           "9223372036854775808", "18446744073709551615", "18446744073709551616", "null", "true", '"1"', "[]"]
DTYPES = ["F32", "F16", "BF16", "F64", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3",
          "F8_E5M2", "f32", "F33", "", "C64"]
PIECES = ["{", "}", "[", "]", ",", ":", '"', " ", "\n", "\t", "\\", "\\ud800", "\\u0041", "\x00", "\x01", "null", "é"]
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}


def good_file(rng):
    """A list of (name, dtype, shape, begin, end) and metadata, all legal."""
    tensors, offset = [], 0
    for number in range(rng.randint(0, 4)):
        dtype = rng.choice(list(SIZES))
        shape = [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
        size = SIZES[dtype]
        for extent in shape:
            size *= extent
        tensors.append([f"t{number}", dtype, shape, offset, offset + size])
        offset += size
    rng.shuffle(tensors)
    metadata = rng.choice([None, None, {}, {"format": "pt"}, {"a": "b", "c": ""}])
    return tensors, metadata, offset


def render(tensors, metadata, rng):
    members = []
    if metadata is not None:
        members.append('"__metadata__":' + json.dumps(metadata))
    for name, dtype, shape, begin, end in tensors:
        parts = [f'"dtype":"{dtype}"', f'"shape":{json.dumps(shape)}', f'"data_offsets":[{begin},{end}]']
        rng.shuffle(parts)
        members.append(f'"{name}":{{{",".join(parts)}}}')
    return "{" + ",".join(members) + "}" + " " * rng.choice([0, 0, 0, 1, 7])


def mutate_tensors(tensors, rng):
    if not tensors:
        return
    tensor = rng.choice(tensors)
    kind = rng.randrange(6)
    if kind == 0:
        tensor[3] += rng.choice([-1, 1, 4, -4])
    elif kind == 1:
        tensor[4] += rng.choice([-1, 1, 4, -4])
    elif kind == 2:
        tensor[1] = rng.choice(DTYPES)
    elif kind == 3:
        tensor[2] = tensor[2] + [rng.choice([0, 1, 2, 1 << 31, 1 << 40])]
    elif kind == 4:
        tensor[0] = rng.choice(["t0", "t1", "", "__metadata__", "x" * 300])
    else:
        tensor[3], tensor[4] = tensor[4], tensor[3]


def mutate_text(text, rng):
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return text[:at] + text[at + 1:]
    if kind == 1:
        return text[:at] + rng.choice(PIECES) + text[at:]
    if kind == 2:
        return text[:at]
    if kind == 3:  # another number in place of one
        digits = [i for i, c in enumerate(text) if c.isdigit()]
        if digits:
            at = rng.choice(digits)
            return text[:at] + rng.choice(NUMBERS) + text[at + 1:]
        return text
    return text + rng.choice([" ", "\n", "\x00", "}", "{}", ",", "\t "])


def mutated(rng):
    tensors, metadata, size = good_file(rng)
    if rng.random() < 0.5:
        mutate_tensors(tensors, rng)
    text = render(tensors, metadata, rng)
    if rng.random() < 0.6:
        text = mutate_text(text, rng)
    header = text.encode()
    data = bytes(rng.randrange(256) for _ in range(size))
    length = len(header)
    if rng.random() < 0.1:
        length = rng.choice([0, 1, length - 1, length + 1, length + size, length + size + 1, 1 << 40, (1 << 64) - 1])
    if rng.random() < 0.1:
        data = rng.choice([data[:-1], data + b"\0", b""])
    if rng.random() < 0.1 and header:
        at = rng.randrange(len(header))
        header = header[:at] + bytes([header[at] ^ 1 << rng.randrange(8)]) + header[at + 1:]
    file = max(length, 0).to_bytes(8, "little") + header + data
    return file[:rng.randrange(12)] if rng.random() < 0.02 else file


def verdict(file):
    try:
        safetensors.deserialize(file)
        return "accept"
    except Exception:  # its own error type, or an overflow inside it
        return "refuse"


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    for _ in range(count):
        file = mutated(rng)
        print(verdict(file), file.hex())


if __name__ == "__main__":
    main()
