# SPDX-License-Identifier: MIT
"""Effects of the flags of the section Strategy and precision.

Usage: effects_strategy.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import os
import subprocess
import time

from effects import ROWS, Effect, Run, command, environment, fresh, planned, walk

# A bloom whose stages differ by what is shared out: 12 small layers and a head that is large on CPUs.
MODEL = fresh("model") / "config.json"
MODEL.write_text(json.dumps({
    "model_type": "bloom", "hidden_size": 64, "n_layer": 12, "n_head": 2, "vocab_size": 20000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}))

TWO = {**ROWS, "ranks": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
FOUR = {**TWO, "ranks": 4}
HALF = {**ROWS, "dtype": "fp16", "max_steps": 6}
OVERFLOWS = {**HALF, "initial_loss_scale": 2**36}
STAGES = {**TWO, "pipeline_parallel": 2, "gradient_accumulation_steps": 4}
BALANCED = {**STAGES, "model_config": MODEL, "max_steps": 1}
OFFLOADED = {**TWO, "strategy": "zero3", "persistence_threshold": 1000, "offload": "optimizer", "offload_step": "host"}
EXPERTS = {**ROWS, "model_config": "qwen3_moe-tiny"}
CARD = {"model_config": "bloom-560m", "random_rows": 24, "max_seq_length": 128, "per_device_train_batch_size": 4, "max_steps": 3}

sent = lambda seen: seen.end.get("comm_bytes")
state = lambda seen: seen.held("parameter", "gradient", "optimizer", "buffer", "host")
layout = lambda seen: (sent(seen), state(seen))
activations = lambda seen: seen.held("activation")
scales = lambda seen: seen.column("loss_scale")
parts = lambda seen: seen.says(r"pipeline stages of ([\d, ]+) blocks")
stage_times = lambda seen: [float(ms) for ms in ", ".join(seen.says(r"pipeline stages of [\d, ]+ blocks; measured: (.*) ms")).split(", ") if ms]
less = lambda of: lambda base, other: of(other) < of(base)
more = lambda of: lambda base, other: of(other) > of(base)


def with_threads(program, flags):
    """Counts the program's threads while it trains; those of the optimizer step are made with the strategy and stay."""
    out = fresh() / "out"
    process = subprocess.Popen(command(program, {"output_dir": out, **flags}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    most = 0
    while process.poll() is None:
        try:
            most = max(most, len(os.listdir(f"/proc/{process.pid}/task")))
        except FileNotFoundError:
            pass
        time.sleep(0.002)
    run = Run(process.returncode, process.stdout.read().decode(), out)
    run.threads = most
    return run


walk("effects_strategy.py", {"Strategy and precision"}, [
    Effect("strategy", "what every rank holds and sends; on two ranks single is refused",
           ["single", "zero1", "zero2", {"strategy": "zero3", "persistence_threshold": 1000}, "fsdp"], layout, {**TWO, "strategy": "ddp"},
           codes=(2, 0, 0, 0, 0)),
    Effect("dtype", "losses are rounded, parameters take half", ["bf16", "fp16"], lambda seen: (seen.losses, seen.held("parameter", "optimizer")),
           expect=less(lambda seen: seen.held("parameter"))),
    Effect("fp8", "losses of layers that multiply in 8 bits", ["tensorwise", "rowwise", "auto"],
           lambda seen: (seen.losses, seen.weights, seen.says(r"fp8 auto: layers in 8 bits: (\S+), as a CPU")),
           gpu="CPUs have no such products, so that auto takes none"),
    Effect("fp8_layers", "losses, by the layers that multiply in 8 bits", ["qkv", "up,down"], lambda seen: (seen.losses, seen.weights),
           {**ROWS, "fp8": "tensorwise"}),
    Effect("frozen_dtype", "losses beside a base that is rounded to 8 bits, in a byte a number", ["fp8"], lambda seen: (seen.losses, seen.held("parameter")),
           {**ROWS, "lora_r": 4, "max_steps": 4}, expect=less(lambda seen: seen.held("parameter"))),
    Effect("tf32", "predicted time of a step on a GPU", [True], lambda seen: seen.says("predicted step: .*"), CARD, run=planned,
           gpu="CPUs have no TF32; the plan for a GPU reckons with it"),
    Effect("gradient_dtype", "gradients take twice the bytes, and sums over micro-batches are rounded less", ["fp32"],
           lambda seen: (seen.held("gradient"), seen.weights), {**ROWS, "dtype": "bf16", "gradient_accumulation_steps": 2},
           expect=lambda base, other: other.held("gradient") == [2 * base.held("gradient")[0]]),
    Effect("reduce_dtype", "half the bytes are sent, and sums over ranks are rounded", ["bf16", "fp16"], lambda seen: (sent(seen), seen.weights), TWO,
           expect=lambda base, other: sent(other) < 0.51 * sent(base)),
    Effect("initial_loss_scale", "the first scales; steps that overflow are skipped", [2.0**36], scales, HALF,
           expect=lambda base, other: other.column("skipped")[0] and not base.column("skipped")[0]),
    Effect("loss_scale", "the scale of every step, which stays even when steps overflow", [2.0**36], scales, HALF,
           expect=lambda base, other: set(scales(other)) == {2.0**36} and all(other.column("skipped"))),
    Effect("min_loss_scale", "the run ends with exit code 6 where the scale may fall no more", [2.0**35], lambda seen: (seen.code, scales(seen)), OVERFLOWS,
           codes=(6,)),
    Effect("loss_scale_window", "the scale doubles after every good step, until one overflows", [1], scales, HALF, expect=more(lambda seen: max(scales(seen)))),
    Effect("bucket_bytes", "buffers for gradients that travel in another dtype", [4096], state, {**TWO, "reduce_dtype": "bf16"}, expect=less(state), bits=True),
    Effect("coalesce_bytes", "buffers for blocks that are gathered together", [10**6], layout, {**TWO, "strategy": "fsdp"}, bits=True),
    Effect("overlap", "no second buffer for a gradient that is under way", [False], state, {**TWO, "strategy": "zero2"}, expect=less(state), bits=True),
    Effect("reduce_at_boundary", "gradients are sent once a step and kept whole until then", [True], layout, {**TWO, "strategy": "zero2"},
           expect=less(sent)),
    Effect("persistence_threshold", "parameters that stay whole: none is more to send", [0], layout, {**TWO, "strategy": "zero3"}, expect=more(sent)),
    Effect("prefetch_blocks", "buffers for gathered blocks, and how many are gathered again", [0, 2], layout, {**TWO, "strategy": "fsdp"}, bits=True),
    Effect("fp8_all_gather", "weights travel in --dtype, four times the bytes of codes", [False], sent,
           {**TWO, "strategy": "fsdp", "fp8": "tensorwise"}, expect=more(sent)),
    Effect("shard_ranks", "ranks hold more and send less", [2], layout, {**FOUR, "gradient_accumulation_steps": 1, "strategy": "fsdp"},
           expect=more(lambda seen: seen.held("parameter"))),
    Effect("reshard_after_forward", "nothing is gathered again", [False], layout, {**TWO, "strategy": "fsdp"}, expect=less(sent)),
    Effect("fsdp_unit_numel", "blocks are gathered together", [10**6], layout, {**TWO, "strategy": "fsdp"}),
    Effect("tensor_parallel", "ranks hold half a layer and send activations", [{"tensor_parallel": 2, "per_device_train_batch_size": 4}], layout, TWO,
           expect=less(lambda seen: seen.held("parameter"))),
    Effect("sequence_parallel", "fewer activations on each rank", [True], activations, {**TWO, "tensor_parallel": 2}, expect=less(activations)),
    Effect("expert_parallel", "ranks hold a part of the experts, and send tokens in place of their weights", [2], layout,
           {**TWO, "model_config": "qwen3_moe-tiny", "strategy": "ddp"}, expect=less(lambda seen: seen.held("parameter"))),
    Effect("context_parallel", "ranks share every row: fewer activations on each", [{"context_parallel": 2, "gradient_accumulation_steps": 4}], activations, TWO,
           expect=less(activations)),
    Effect("context_attention", "keys and values of all heads are held in place of all tensors of some heads", ["keys", "heads"], activations,
           {**TWO, "context_parallel": 2}, alike={"heads": ["auto"]}),
    Effect("pipeline_parallel", "ranks hold a part of the blocks", [{"pipeline_parallel": 2, "per_device_train_batch_size": 4}], layout, TWO,
           expect=less(lambda seen: seen.held("parameter"))),
    Effect("pipeline_schedule", "activations that wait for backward: of all micro-batches, or of as many as there are stages; chunks send more",
           ["gpipe", {"pipeline_schedule": "interleaved", "pipeline_chunks": 2}], lambda seen: (sent(seen), activations(seen)), STAGES),
    Effect("pipeline_schedule", "layers without fused kernels do not split their backward, and it is said", ["zbh1"],
           lambda seen: seen.says("splits its backward"), STAGES),
    Effect("pipeline_chunks", "activations go round more often", [4], sent,
           {**STAGES, "model_config": MODEL, "pipeline_schedule": "interleaved", "pipeline_chunks": 2}, expect=more(sent)),
    Effect("pipeline_vocabulary", "no stage holds the whole table", ["shared"], layout, STAGES, expect=less(lambda seen: seen.held("parameter"))),
    Effect("pipeline_balance", "blocks of every stage", ["flops", "parameters"], parts, BALANCED, "squad"),
    Effect("pipeline_balance", "blocks are timed, and the times of both stages are said; the stages may be those of another value", ["measured"], stage_times,
           BALANCED, "squad", expect=lambda base, other: len(stage_times(other)) == 2 and min(stage_times(other)) > 0),
    Effect("gradient_checkpointing", "activations that are kept for backward", [True], activations, expect=less(activations), bits=True),
    Effect("activation_memory", "blocks run again so that activations take no more; auto takes what the host has, where all stay", ["1.5MiB", "auto"],
           lambda seen: (seen.start["recomputed_blocks"], activations(seen)),
           expect=lambda base, other: other.start["recomputed_blocks"] == 0 or activations(other) < activations(base), bits=True),
    Effect("save_norm_outputs", "memory of layers on a GPU", [True], lambda seen: seen.says(r"layers +[\d.,]+"), CARD, run=planned,
           gpu="layers on CPUs keep the same either way; the plan for a GPU counts them"),
    Effect("save_attention_outputs", "recomputed layers on a GPU keep attention's outputs", [True], lambda seen: seen.says(r"layers +[\d.,]+"),
           {**CARD, "gradient_checkpointing": True}, run=planned,
           gpu="layers on CPUs form attention again either way; the plan for a GPU counts what is kept"),
    Effect("recompute_experts", "memory of layers: backward forms experts' activations again", [True], activations, EXPERTS, expect=less(activations),
           bits=True),
    Effect("offload", "inputs of recomputed layers are in host memory",
           ["activations", "optimizer+activations", "optimizer+params+activations"], layout,
           {**OFFLOADED, "offload": "none", "offload_step": None, "gradient_checkpointing": True}, expect=more(lambda seen: seen.held("host")), bits=True),
    Effect("offload", "state is in host memory", ["optimizer", "optimizer+params"], layout, {**OFFLOADED, "offload": "none", "offload_step": None},
           expect=more(lambda seen: seen.held("host")), bits=True),
    Effect("offload_step", "host memory, and staging for a step on the device", ["device", "both", "auto"], state, OFFLOADED, bits=True,
           alike={"auto": ["host", "device"]}),  # what is faster
    Effect("offload_keep_on_gpu", "state of some blocks, or of all, stays where it is updated", ["0.2MiB", "1"], state, OFFLOADED,
           expect=less(lambda seen: seen.held("host")), bits=True),
    Effect("pin_memory", "nothing here, though with --offload none it is called idle", [False], lambda seen: seen.says("has no effect here"), OFFLOADED,
           bits=True, gpu="pages are locked for a GPU's copies", alike={"false": ["true"]}),
    Effect("offload_threads", "threads of the program: two ranks have these", [20], lambda seen: seen.threads >= 2 * 20,
           {**OFFLOADED, "offload_threads": 1, "max_steps": 20}, run=with_threads, bits=True),
])
