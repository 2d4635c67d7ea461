# SPDX-License-Identifier: MIT
"""PyTorch's own parallelism around transformers' model: single, DistributedDataParallel, fully_shard (FSDP2)."""
import contextlib

import peer_common
from peer_common import LOCAL_RANK, WORLD


def summed_loss(logits, labels):
    import torch
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100,
                                             reduction="sum")


def run(work, torch, transformers):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", LOCAL_RANK) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if WORLD > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[work.dtype]
    torch.manual_seed(work.seed)
    model = peer_common.load_model(work, transformers, torch.float32).to(device)
    body = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    loss_of = summed_loss
    if work.compile:  # blocks are compiled once for all layers
        for block in body:
            block.compile()
        loss_of = torch.compile(summed_loss)
    sharded = work.strategy == "fsdp" and WORLD > 1
    if sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for block in body:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif WORLD > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[LOCAL_RANK] if cuda else None)
    optimizer = torch.optim.AdamW(peer_common.parameter_groups(model, work.weight_decay), lr=work.learning_rate,
                                  betas=(work.adam_beta1, work.adam_beta2), eps=work.adam_epsilon, fused=cuda)
    scaler = torch.amp.GradScaler(device.type, enabled=work.dtype == "fp16")
    recorder = peer_common.Recorder(work, torch, {"torch_version": torch.__version__, "transformers_version": transformers.__version__})
    recorder.train_begins()
    for number, parts in enumerate(work.steps()):
        batches = [{key: value.to(device) for key, value in work.collate(part, torch).items()} for part in parts]
        sums = torch.tensor([float(sum((b["labels"][:, 1:] != -100).sum() for b in batches)), 0.0,
                             float(sum(b["input_ids"].numel() for b in batches))], device=device)
        if WORLD > 1:
            torch.distributed.all_reduce(sums)
        targets = sums[0].item()
        for i, batch in enumerate(batches):
            last = i + 1 == len(batches)
            if sharded:
                model.set_requires_gradient_sync(last)
            quiet = model.no_sync() if WORLD > 1 and not sharded and not last else contextlib.nullcontext()
            with quiet, torch.autocast(device.type, dtype, enabled=dtype != torch.float32 and not sharded):
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                loss = loss_of(logits, batch["labels"])
                # gradients are averaged over ranks
                scaler.scale(loss * (WORLD / targets)).backward()
            sums[1] += loss.detach()
        rate = work.rate(number)
        for group in optimizer.param_groups:
            group["lr"] = rate
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), work.max_grad_norm or float("inf"))
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        total = sums[1].clone()
        if WORLD > 1:
            torch.distributed.all_reduce(total)
        recorder.step(total.item() / targets, norm.item(), rate, int(sums[2].item()))
    recorder.end()


if __name__ == "__main__":
    peer_common.main(run)
