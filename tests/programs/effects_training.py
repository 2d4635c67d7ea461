# SPDX-License-Identifier: MIT
"""Effects of the flags of the sections Training and Adapters.

Usage: effects_training.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json

from effects import ROWS, Effect, fresh, run, walk

IDS = fresh() / "ids.jsonl"
IDS.write_text("".join(json.dumps({"input_ids": [5 + i, 6, 7] * (i + 1)}) + "\n" for i in range(8)))
EVALUATED = {**ROWS, "validation_ids": IDS, "per_device_eval_batch_size": 8}
ADAPTED = {**ROWS, "lora_r": 4, "max_steps": 4}
SAVED = fresh() / "saved"  # by a run
run("causal", {**ADAPTED, "lora_target_modules": "dense", "save_final": True, "output_dir": SAVED})
EXPERTS = {**ROWS, "model_config": "qwen3_moe-tiny"}
SCHEDULED = {**ROWS, "max_steps": 10, "warmup_steps": 3}

rates = lambda run: run.column("learning_rate")
updates = lambda run: (run.losses[1:], run.weights)
trained = lambda run: (run.start["num_trainable_parameters"], run.losses, run.weights)
size = lambda run: (run.column("tokens"), run.held("activation"))
less = lambda base, other: other.held("activation") < base.held("activation")
first_loss_stays = lambda base, other: other.losses[0] == base.losses[0]


def schedule(name, options, **more):
    return {"lr_scheduler_type": name, "lr_scheduler_kwargs": options, **more}


def updated(flag, what, *values, **more):
    return Effect(flag, what + ": the first loss stays, later losses and the weights do not", list(values), updates, expect=first_loss_stays, **more)


def adapted(flag, what, *values):
    return Effect(flag, what + "; they begin as zero, so that the first loss stays", list(values), lambda run: (run.losses, run.weights), ADAPTED,
                  expect=first_loss_stays)


walk("effects_training.py", {"Training", "Adapters"}, [
    Effect("per_device_train_batch_size", "half the rows in twice the micro-batches: less padding and fewer activations, the same step",
           [{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}], size, expect=less),
    Effect("gradient_accumulation_steps", "four micro-batches of a row: no padding, the fewest activations, the same step",
           [{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}], size, expect=less),
    Effect("per_device_eval_batch_size", "fewer rows at once: evaluation holds less, and the score stays", [2],
           lambda run: run.held("evaluation"), EVALUATED, expect=lambda base, other: other.held("evaluation") < base.held("evaluation")),
    Effect("num_train_epochs", "steps that are made: 6 an epoch, and half as many in half of one", [1, 0.5], lambda run: len(run.steps),
           {**ROWS, "max_steps": None, "num_train_epochs": 2}, expect=lambda base, other: len(other.steps) == 6 * other.steps[-1]["epoch"]),
    Effect("max_steps", "steps that are made", [1, 8], lambda run: len(run.steps)),
    updated("learning_rate", "size of the updates", 1e-3, 0),
    Effect("lr_scheduler_type", "rate of every step; no two schedules have the same",
           ["cosine", schedule("cosine_with_restarts", '{"num_cycles": 2}'), schedule("polynomial", '{"power": 2}'), "constant",
            "constant_with_warmup", "inverse_sqrt", schedule("cosine_with_min_lr", '{"min_lr": 0.001}'),
            schedule("cosine_warmup_with_min_lr", '{"min_lr": 0.001, "warmup_lr_rate": 0.1}'),
            schedule("warmup_stable_decay", '{"num_decay_steps": 3}'),
            schedule("reduce_lr_on_plateau", '{"patience": 0, "factor": 0.5, "threshold": 1}', validation_ids=IDS, eval_steps=1),
            schedule("WarmupLR", '{"warmup_type": "log"}'), schedule("WarmupDecayLR", '{"warmup_type": "linear"}'), "WarmupCosineLR"],
           rates, SCHEDULED),
    Effect("lr_scheduler_kwargs", "rate of every step", ['{"power": 3}', '{"power": 3, "lr_end": 0.001}'], rates,
           {**SCHEDULED, "lr_scheduler_type": "polynomial"}),
    Effect("warmup_steps", "rate of every step: more of them rise, a number below 1 is a part of all steps", [5, 0.2], rates, SCHEDULED),
    Effect("optim", "the update, and what is kept for it: two numbers a parameter, one, or none", ["adamw_8bit", "adam", "lion_32bit", "sgd", "adagrad", "muon"],
           lambda run: (run.start["optim"], run.losses[1:], run.weights), {**ROWS, "weight_decay": 0.5},
           expect=lambda base, other: other.held("optimizer") <= base.held("optimizer")),
    updated("optim_args", "momentum, and where it looks", "momentum=0.9", "momentum=0.9,nesterov=true", context={**ROWS, "optim": "sgd", "learning_rate": 1}),
    Effect("moments_dtype", "what is kept of both moments, so the updates behind the first: 16 bits, 8 or 32", ["int8", "fp32"],
           lambda run: (run.losses[2:], run.weights, run.held("optimizer")), {**ROWS, "moments_dtype": "bf16"},
           expect=lambda base, other: other.losses[:2] == base.losses[:2]),
    updated("weight_decay", "weights shrink beside the updates", 0.5),
    updated("no_decay_names", "which weights shrink beside the updates: all, or all but some", "none", "query_key_value,bias",
            context={**ROWS, "weight_decay": 0.5}),
    updated("lr_groups", "size of the updates of some parameters", "h.0=10", "h.0=0.1,ln_f=2"),
    updated("adam_beta1", "the first moment forgets faster", 0.5),
    updated("adam_beta2", "the second moment forgets faster", 0.9),
    updated("adam_epsilon", "small gradients make small updates", 1e-2),
    Effect("max_grad_norm", "gradients are clipped to another norm, or not at all; losses follow once the rate is felt", [0.1, 0],
           lambda run: run.column("clip_coefficient"), expect=first_loss_stays),
    Effect("lora_r", "how much is trained, beside a base that stays; adapters begin as zero, so that the first loss stays", [2, 8], trained,
           expect=first_loss_stays),
    adapted("lora_alpha", "size of what adapters add", 32),
    adapted("lora_dropout", "what adapters see", 0.5),
    adapted("lora_init", "the matrices that adapters begin with", "gaussian"),
    adapted("use_rslora", "size of what adapters add", True),
    Effect("lora_target_modules", "which layers have adapters", ["dense", "all-linear"], trained, ADAPTED, expect=first_loss_stays),
    Effect("lora_target_parameters", "which tensors of all experts have adapters", ["experts.down_proj", "experts.gate_up_proj,experts.down_proj"], trained,
           {**ADAPTED, "model_config": "gpt_oss-tiny"}, expect=first_loss_stays),
    Effect("lora_modules_to_save", "layers that are trained in full", ["ln_f"], trained, ADAPTED, expect=first_loss_stays),
    Effect("adapter", "where adapters begin: what is saved has learned", [SAVED / "final"], trained, ROWS,
           expect=lambda base, other: other.losses[0] != base.losses[0]),
    Effect("router_aux_loss_coef", "how evenly routers learn to share out tokens", [0.5], updates, EXPERTS),
    Effect("router_z_loss_coef", "how large routers' logits become", [0.5], updates, EXPERTS),
    Effect("count_experts", "the tokens of every expert in metrics", [False], lambda run: ["expert_tokens" in step for step in run.steps], EXPERTS),
    Effect("seed", "weights from the start, and the order of the rows", [7], lambda run: (run.losses[0], run.column("tokens"))),
])
