# SPDX-License-Identifier: MIT
"""The gated delta rule (Qwen3-Next, Qwen3.5, OLMo hybrid) in a form whose operators do not depend on the number of tokens.

transformers computes it in chunks of 64 tokens with a Python loop over them, which a program would hold unrolled for one number of chunks.
A row as one chunk is the same sum in another order; its memory grows with the square of the tokens, as that of eager attention.
"""
import functools
import sys

RULE = "torch_chunk_gated_delta_rule"


def modules():
    """The modules of transformers with the rule."""
    return [module for name, module in list(sys.modules.items()) if name.startswith("transformers.models.") and RULE in vars(module)]


def as_one_chunk(rule):
    """The rule with all tokens in one chunk. rule(query, ...): query is [batch, tokens, heads, size]."""

    @functools.wraps(rule)
    def computed(query, *args, **named):
        return rule(query, *args, **{**named, "chunk_size": query.shape[1]})

    return computed


def solves_triangular(_):
    """In place of transformers' question whether torch.export runs: then it would eliminate row by row, 64 times five operators."""
    return lambda: False
