# SPDX-License-Identifier: MIT
"""What the rivals of tessera-compare share: the work they are given, and the files they leave.

A peer is started with one argument, a JSON file that tessera-compare wrote: the model's directory, the rows of every
step in order, and the values of the row's flags. It writes metrics.jsonl as tessera's programs do.
"""
import importlib
import json
import os
import resource
import statistics
import sys
import time
import traceback

UNAVAILABLE, OUT_OF_MEMORY = 69, 3
RANK, WORLD, LOCAL_RANK = (int(os.environ.get(name, default)) for name, default in
                           [("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)])


def stop(code, message):
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def need(*packages):
    """The packages, or the row says which one is missing."""
    found = []
    for package in packages:
        try:
            found.append(importlib.import_module(package))
        except ImportError as error:
            stop(UNAVAILABLE, f"Python package {package} cannot be imported ({error}); install it beside {sys.executable}")
    return found


class Work:
    """The row's values as attributes, and its data."""

    def __init__(self, path):
        with open(path) as file:
            self.__dict__.update(json.load(file))

    def all_rows(self):
        """Of all steps and ranks, in order."""
        with open(self.rows) as file:
            return [json.loads(line) for line in file]

    def steps(self):
        """For each step this rank's micro-batches, each a list of rows."""
        rows = self.all_rows()
        size, parts = self.per_device_train_batch_size, self.gradient_accumulation_steps
        for step in range(self.max_steps):
            mine = step * self.global_batch_size + RANK * size * parts
            yield [rows[mine + i * size:mine + (i + 1) * size] for i in range(parts)]

    def collate(self, rows, torch):
        """Tensors of one micro-batch, padded on the right to its longest row."""
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(key, value):
            return torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows])

        mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
        labels = padded("labels", -100)
        # A row's first token is nobody's target. Trainer divides by the labels there are, and leaves the first out itself
        # only where a model's class is called ...ForCausalLM, which GPT-2's is not.
        labels[:, 0] = -100
        return {"input_ids": padded("input_ids", self.pad_id), "attention_mask": torch.tensor(mask), "labels": labels}

    def rate(self, step):
        """Of the step counted from 0: linear warm-up, then linear decay to 0 or constant."""
        if step < self.warmup_steps:
            return self.learning_rate * step / max(1, self.warmup_steps)
        if self.lr_scheduler_type.startswith("constant"):
            return self.learning_rate
        return self.learning_rate * max(0, self.max_steps - step) / max(1, self.max_steps - self.warmup_steps)


def load_model(work, transformers, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(work.model_directory, dtype=dtype)
    model.config.use_cache = False
    if work.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def parameter_groups(model, decay):
    """Weight decay skips biases and norms, as in transformers."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [{"params": [p for _, p in named if p.ndim > 1], "weight_decay": decay},
            {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0}]


class Recorder:
    """metrics.jsonl of rank 0, in the events of docs/schema/metrics.schema.json. Steps are timed between calls of step(),
    each of which waits for the device."""

    def __init__(self, work, torch, versions):
        self.work, self.torch, self.cuda = work, torch, torch.cuda.is_available()
        self.begin = self.last = time.time()
        self.seconds, self.tokens, self.losses = [], [], []
        self.file = None
        if RANK == 0:
            os.makedirs(work.output_dir, exist_ok=True)
            self.file = open(os.path.join(work.output_dir, "metrics.jsonl"), "w")
        device = torch.cuda.get_device_name() if self.cuda else "cpu"
        same = ["strategy", "world_size", "model", "num_parameters", "num_trainable_parameters", "lora_r", "dataset", "dataset_sha256", "max_seq_length",
                "per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size", "num_train_samples", "offload",
                "pin_memory", "seed"]
        self.write("run_start", {"peer": work.peer, "exp": f"{work.peer}_{work.name}", "device": device, "parameter_dtype": work.dtype,
                                 "num_train_steps": work.max_steps, "dp": WORLD, "tp": 1, "pp": 1, **versions,
                                 **{key: getattr(work, key) for key in same}})

    def write(self, event, fields):
        if self.file:
            now = time.time()
            self.file.write(json.dumps({"schema": "tessera.metrics/1", "event": event, "time_unix_s": now, "rank": 0,
                                        "run_id": self.work.name, "elapsed_s": now - self.begin, **fields}) + "\n")
            self.file.flush()

    def train_begins(self):
        """After everything is built: peaks and the clock start here."""
        if self.cuda:
            self.torch.cuda.synchronize()
            self.torch.cuda.reset_peak_memory_stats()
        self.begin = self.last = time.time()

    def step(self, loss, grad_norm, rate, tokens):
        """tokens: of all ranks, padding included."""
        if self.cuda:
            self.torch.cuda.synchronize()
        now = time.time()
        self.seconds.append(now - self.last)
        self.tokens.append(tokens)
        self.losses.append(loss)
        self.last = now
        self.write("step", {"step": len(self.seconds), "loss": loss, "grad_norm": grad_norm, "learning_rate": rate,
                            "step_time_s": self.seconds[-1], "samples": self.work.global_batch_size, "tokens": tokens,
                            "tokens_per_second": tokens / self.seconds[-1]})

    def end(self):
        runtime, count = self.last - self.begin, len(self.seconds)
        warmup = 0 if count < 2 else min(10, max(1, count // 5))
        seconds, tokens = self.seconds[warmup:], self.tokens[warmup:]
        peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                 self.torch.cuda.max_memory_allocated() if self.cuda else 0,
                 self.torch.cuda.max_memory_reserved() if self.cuda else 0]
        if WORLD > 1:
            everyone = [None] * WORLD
            self.torch.distributed.all_gather_object(everyone, peaks)
            peaks = [sum(p[0] for p in everyone), max(p[1] for p in everyone), max(p[2] for p in everyone)]
        self.write("run_end", {
            "train_runtime": runtime, "train_steps": count, "train_samples_per_second": count * self.work.global_batch_size / runtime,
            "train_steps_per_second": count / runtime, "train_tokens_per_second": sum(self.tokens) / runtime,
            "train_loss": statistics.fmean(self.losses), "train_loss_final": self.losses[-1],
            "step_time_median_s": statistics.median(seconds), "step_time_mean_s": statistics.fmean(seconds),
            "tokens_per_second_median": statistics.median(t / s for t, s in zip(tokens, seconds)), "warmup_steps_excluded": warmup,
            "cpu_rss_tree_peak_bytes": peaks[0], "gpu_mem_allocated_peak_bytes": peaks[1] if self.cuda else None,
            "gpu_mem_reserved_peak_bytes": peaks[2] if self.cuda else None, "exit_code": 0})


def main(peer, *packages):
    """peer(work, *modules), with out of memory as tessera's exit code."""
    if len(sys.argv) != 2:
        stop(2, f"usage: {sys.argv[0]} WORK.json, as tessera-compare writes it")
    modules = need("torch", "transformers", *packages)
    try:
        peer(Work(sys.argv[1]), *modules)
        if modules[0].distributed.is_initialized():
            modules[0].distributed.barrier()
            sys.stdout.flush()
            os._exit(0)  # taking down Gloo's threads aborts some runs that are done
    except Exception as error:
        memory = isinstance(error, (MemoryError, modules[0].OutOfMemoryError)) or "can't allocate memory" in str(error)
        if memory:
            stop(OUT_OF_MEMORY, "out of memory: " + str(error).splitlines()[0])
        traceback.print_exc()  # behind it the log holds what torchrun says of it
        stop(1, "".join(traceback.format_exception_only(type(error), error)).splitlines()[0])
