# SPDX-License-Identifier: MIT
"""Two ranks: weights, packed rows, adapters and, where there is torch, losses of one's own give the numbers of ddp under other layouts."""
import importlib.util
import pathlib
import tempfile

import numpy
import tessera

LAYOUTS = ({"strategy": "ddp"}, {"pipeline_parallel": 2}, {"tensor_parallel": 2}, {"tensor_parallel": 2, "sequence_parallel": True},
           {"strategy": "zero3"}, {"strategy": "fsdp"})
random = numpy.random.default_rng(0)
ids, weights = random.integers(0, 500, (4, 16)), random.random((4, 16)).astype(numpy.float32) - 0.3
LENGTHS = (5, 11, 16, 9, 7, 16)  # of documents, 64 tokens in four rows
places = numpy.concatenate([numpy.arange(length) for length in LENGTHS]).reshape(4, 16)
documents = numpy.concatenate([numpy.full(length, i) for i, length in enumerate(LENGTHS)]).reshape(4, 16)
padded = numpy.zeros((len(LENGTHS), 16), int)
mask = numpy.arange(16)[None] < numpy.array(LENGTHS)[:, None]
padded[mask] = ids.reshape(-1)
padded_weights = numpy.zeros(padded.shape, numpy.float32)
padded_weights[mask] = weights.reshape(-1)


def close(mine, theirs, what):
    assert numpy.allclose(mine, theirs, rtol=1e-5, atol=1e-6), (what, mine, theirs)


def preference(values):
    import torch

    halves = values.sum(1).chunk(2)
    return -torch.nn.functional.logsigmoid(halves[0] - halves[1]).mean()


def refused(text, call):
    try:
        call()
    except tessera.Error as error:
        assert text in str(error), f"{text!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"not refused: {text}")


def steps(strategy, batch, **more):
    """Loss and norm of two steps."""
    seen = []
    for _ in range(2):
        seen.append(strategy.forward_backward(batch, **more).loss)
        seen.append(strategy.clip(0.5).norm)
        strategy.optimizer_step(0.1)
    return seen


with tessera.Job() as job:
    model = tessera.Model.from_config("llama-mini")
    wanted, adapters = {}, None
    for layout in LAYOUTS:
        make = lambda **more: tessera.Strategy(job, model, seed=3, optim="sgd", **layout, **more)
        cases = {"weights": dict(batch={"input_ids": ids, "weights": weights}),
                 "packed": dict(batch={"input_ids": ids, "position_ids": places, "weights": weights}),
                 "documents": dict(batch={"input_ids": ids, "document_ids": documents, "weights": weights}),
                 "padded": dict(batch={"input_ids": padded, "attention_mask": mask, "weights": padded_weights})}
        if importlib.util.find_spec("torch"):
            cases["loss"] = dict(batch={"input_ids": ids}, loss=preference)
        for name, case in cases.items():
            strategy = make()
            values = strategy.log_probabilities({name: value for name, value in case["batch"].items() if name != "weights"})
            seen = [numpy.asarray(values).sum(), *steps(strategy, **case)]
            strategy.close()
            close(seen, wanted.setdefault(name, seen), (name, layout))
        close(wanted["packed"], wanted["padded"], "packed rows are those of padded ones")
        close(wanted["packed"], wanted["documents"], "document_ids")

        strategy = make(lora_r=4, lora_target_modules="q_proj,up_proj")
        seen = steps(strategy, cases["packed"]["batch"])
        saved = strategy.save(job.exchange(tempfile.mkdtemp())[0])
        folder = pathlib.Path(job.exchange(tempfile.mkdtemp())[0]) / "adapter"
        strategy.export(folder)
        more = steps(strategy, cases["packed"]["batch"])
        assert strategy.load(saved) == 2
        close(steps(strategy, cases["packed"]["batch"]), more, "behind load()")
        strategy.close()
        close(seen + more, wanted.setdefault("lora", seen + more), ("lora", layout))
        assert seen[2] < seen[0] and not numpy.isclose(seen[1], wanted["padded"][2]), seen
        again = make(adapter=str(folder))
        close(steps(again, cases["packed"]["batch"]), more, "an adapter is trained on")
        again.close()

    strategy = tessera.Strategy(job, model)
    for batch, text in (({"input_ids": ids, "weights": weights[:, :3]}, "weights has shape [4, 3]; it must have that of input_ids"),
                        ({"input_ids": ids, "weights": ids}, "weights are of Long; they must be of a floating dtype"),
                        ({"input_ids": ids, "position_ids": places + 1}, "position_ids must count from 0"),
                        ({"input_ids": ids, "position_ids": places * 2}, "position_ids must count from 0"),
                        ({"input_ids": ids, "position_ids": places, "document_ids": documents}, "one of them says where documents begin"),
                        ({"input_ids": ids, "position_ids": places, "attention_mask": ids > 0}, "an attention_mask and packed rows")):
        refused(text, lambda: strategy.evaluate(batch))
    refused("lora_r", lambda: tessera.Strategy(job, model, lora_r=-1))
    refused("q_prog", lambda: tessera.Strategy(job, model, lora_r=2, lora_target_modules="q_prog"))
print("all as it should be")
