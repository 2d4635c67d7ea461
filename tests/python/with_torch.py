# SPDX-License-Identifier: MIT
"""The module and torch in one process. Usage: with_torch.py before|after: when torch is imported."""
import sys

if sys.argv[1] == "before":
    import torch
import tessera
import torch

mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libtorch_cpu.so" in line}
assert len(mapped) == 1, mapped


def refused(text, call):
    try:
        call()
    except tessera.Error as error:
        assert text in str(error), f"{text!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"not refused: {text}")


with tessera.Job() as job:
    model = tessera.Model.from_config("bloom-mini")
    ids = torch.arange(64, dtype=torch.int32).reshape(4, 16)
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in model.parameter_shapes()}

    def two_steps():
        strategy = tessera.Strategy(job, model, weights, strategy="zero2")
        losses = []
        for _ in range(2):
            losses.append(strategy.forward_backward({"input_ids": ids}).loss)
            strategy.clip(1.0)
            strategy.optimizer_step(1e-2)
        losses.append(strategy.evaluate({"input_ids": ids}).loss)
        strategy.close()
        return losses

    # What torch is told to do for a program's own computations changes nothing here.
    wanted = two_steps()
    assert wanted[2] < wanted[1] < wanted[0], wanted
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta")):
        with mode:
            seen = two_steps()
        assert seen == wanted, (mode, seen, wanted)
    torch.set_default_dtype(torch.float64)
    refused("default dtype", two_steps)
    torch.set_default_dtype(torch.float32)

    # Tensors of other dtypes and strides, and what torch does not give.
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    strategy = tessera.Strategy(job, model, halves)
    for name, array in strategy.parameters().items():
        assert torch.equal(torch.from_dlpack(array), halves[name].float()), name
    mask = torch.ones(4, 16, dtype=torch.bool)
    assert strategy.evaluate({"input_ids": ids.t().contiguous().t(), "attention_mask": mask}).loss == strategy.evaluate({"input_ids": ids}).loss
    name = next(iter(weights))
    refused("does not give its memory", lambda: tessera.Strategy(job, model, {**weights, name: torch.nn.Parameter(weights[name])}))
    refused("has shape", lambda: tessera.Strategy(job, model, {**weights, name: weights[name][:1]}))

    # Its own autograd goes on as before.
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]
print("all as it should be")
