# SPDX-License-Identifier: MIT
"""DeepSpeed's engine around transformers' model: stages 0 to 3, offload of optimizer and parameters."""
import os

import peer_common
from peer_common import LOCAL_RANK, WORLD


def configuration(work):
    stage = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[work.strategy]
    zero = {"stage": stage}
    if work.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": work.pin_memory}
    if work.offload == "optimizer+params":
        zero["offload_param"] = {"device": "cpu", "pin_memory": work.pin_memory}
    return {"train_micro_batch_size_per_gpu": work.per_device_train_batch_size,
            "gradient_accumulation_steps": work.gradient_accumulation_steps, "gradient_clipping": work.max_grad_norm,
            "zero_optimization": zero, "bf16": {"enabled": work.dtype == "bf16"}, "fp16": {"enabled": work.dtype == "fp16"},
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": work.offload != "none",
            "steps_per_print": 1 << 30}


def run(work, torch, transformers, deepspeed):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(LOCAL_RANK)
    # without torchrun; at port 0 the store listens at one that is free
    for name, value in [("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", 0)]:
        os.environ.setdefault(name, str(value))
    deepspeed.init_distributed("nccl" if cuda else "gloo")
    torch.manual_seed(work.seed)
    model = peer_common.load_model(work, transformers, torch.float32)
    groups = peer_common.parameter_groups(model, work.weight_decay)
    settings = {"lr": work.learning_rate, "betas": (work.adam_beta1, work.adam_beta2), "eps": work.adam_epsilon}
    if work.offload == "none":
        optimizer = torch.optim.AdamW(groups, **settings, fused=cuda)
    else:
        optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(groups, **settings)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(work))
    recorder = peer_common.Recorder(work, torch, {
        "torch_version": torch.__version__, "transformers_version": transformers.__version__, "deepspeed_version": deepspeed.__version__})
    recorder.train_begins()
    for number, parts in enumerate(work.steps()):
        rate = work.rate(number)
        for group in optimizer.param_groups:
            group["lr"] = rate
        sums = torch.zeros(2, device=engine.device)
        for part in parts:
            batch = {key: value.to(engine.device) for key, value in work.collate(part, torch).items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            sums += torch.stack([loss.detach().float() / len(parts), torch.tensor(float(batch["input_ids"].numel()), device=engine.device)])
        if WORLD > 1:
            torch.distributed.all_reduce(sums)
        norm = engine.get_global_grad_norm()
        recorder.step(sums[0].item() / WORLD, float(norm) if norm is not None else None, rate, int(sums[1].item()))
    recorder.end()


if __name__ == "__main__":
    peer_common.main(run, "deepspeed")
