# SPDX-License-Identifier: MIT
"""Random texts for the fixtures of tokenizers."""


def random_text(rng, parts, blocks, most, share):
    """Up to `most` pieces: this share of them one of `parts`, else up to three code points of one of `blocks`."""
    out = []
    for _ in range(rng.randint(1, most)):
        if rng.random() < share:
            out.append(rng.choice(parts))
        else:
            low, high = rng.choice(blocks)
            out += [chr(c) for c in (rng.randint(low, high) for _ in range(rng.randint(1, 3))) if not 0xD800 <= c < 0xE000]
    return "".join(out)
